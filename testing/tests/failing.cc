// Ranks that fail as FAULT says; run by rule_test only.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace {

TEST(Failing, First) {
  const char* fault = std::getenv("FAULT");
  const std::string what = fault == nullptr ? "" : fault;
  std::printf("here is rank %s\n", std::getenv("RANK"));
  std::fflush(stdout);
  EXPECT_NE(what, "expectation") << "as asked";
  if (what == "abort") std::abort();
  if (what == "exit") _exit(5);
  if (what == "hang" || what.empty()) sleep(1000);
}

TEST(Failing, Second) { std::printf("the second test runs\n"); }

}  // namespace
