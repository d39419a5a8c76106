// What a multirank test does when ranks fail or hang: runs such a test as Bazel would.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code = -1;
  std::string output;
  std::string folder;  // of undeclared outputs
  double seconds = 0;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// Runs a test program of this package with a time-out in seconds.
Outcome RunTest(const char* variable, int timeout) {
  static int count = 0;
  Outcome outcome;
  outcome.folder = ::testing::TempDir() + "/outputs_" + std::to_string(count++);
  mkdir(outcome.folder.c_str(), 0700);
  const std::string program = std::getenv(variable);
  const std::string command = "TEST_TIMEOUT=" + std::to_string(timeout) +
                              " TEST_UNDECLARED_OUTPUTS_DIR=" + outcome.folder + " XML_OUTPUT_FILE=" +
                              outcome.folder + "/test.xml " + program + " 2>&1";
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  size_t n;
  while ((n = fread(buffer, 1, sizeof(buffer), pipe)) > 0) outcome.output.append(buffer, n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

TEST(MultirankRule, AFailedExpectationEndsTheOthersAndTheRankIsNamed) {
  // Rank 1 fails; the others would sleep for a quarter of an hour.
  const Outcome outcome = RunTest("EXPECTATION", 3600);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_LT(outcome.seconds, 200);
  EXPECT_THAT(outcome.output, HasSubstr("launch: rank 1 (pid "));
  EXPECT_THAT(outcome.output, HasSubstr("exited with code 1; the other ranks are ended"));
  EXPECT_THAT(outcome.output, HasSubstr("[1] as asked"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("the second test runs")));
  EXPECT_THAT(outcome.output, HasSubstr("its log is " + outcome.folder + "/rank_1.log"));
  EXPECT_THAT(ReadFile(outcome.folder + "/rank_1.log"), HasSubstr("here is rank 1\n"));
  EXPECT_THAT(ReadFile(outcome.folder + "/rank_0.log"), HasSubstr("here is rank 0\n"));
  // A rank that is ended shows its stack.
  EXPECT_THAT(outcome.output, HasSubstr("[0] *** SIGTERM received"));
  // No file that several ranks would write.
  EXPECT_EQ(access((outcome.folder + "/test.xml").c_str(), F_OK), -1);
}

TEST(MultirankRule, ACrashIsNamed) {
  const Outcome outcome = RunTest("ABORT", 3600);
  EXPECT_EQ(outcome.code, 128 + SIGABRT);
  EXPECT_THAT(outcome.output, HasSubstr("was killed by SIGABRT; the other ranks are ended"));
}

TEST(MultirankRule, AHangEndsInsideTheTimeoutAndShowsWhereRanksStood) {
  const Outcome outcome = RunTest("HANG", 10);  // 10 * 9 / 10 - 5 = 4 s
  EXPECT_EQ(outcome.code, 124);
  EXPECT_THAT(outcome.output, HasSubstr("did not end within 4s; ranks 0, 1 were still running"));
  EXPECT_THAT(outcome.output, HasSubstr("sleeping in clock_nanosleep"));
  EXPECT_THAT(outcome.output, HasSubstr("| here is rank 1"));
}

TEST(MultirankRule, ARankThatIsLateIsNamed) {
  const Outcome outcome = RunTest("LATE", 3600);
  EXPECT_EQ(outcome.code, 124);
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 did not end within 1s"));
  EXPECT_THAT(outcome.output, HasSubstr("sleeping in clock_nanosleep"));
}

// Which of the two happens is up to the machine; it is said either way.
TEST(MultirankRule, WithoutHostsTheTestIsSkippedAndSaysSo) {
  const Outcome outcome = RunTest("HOSTS", 3600);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const std::string xml = ReadFile(outcome.folder + "/test.xml");
  if (outcome.output.find("SKIPPED: ") == std::string::npos) {
    EXPECT_THAT(outcome.output, HasSubstr("[1] here is rank 1"));
    EXPECT_EQ(xml, "");
  } else {
    EXPECT_THAT(outcome.output, HasSubstr("does not let 2 hosts be pretended"));
    EXPECT_THAT(xml, HasSubstr("<skipped message="));
  }
}

TEST(MultirankRule, AnExpectedExitPasses) { EXPECT_EQ(RunTest("EXIT", 3600).code, 0); }

}  // namespace
