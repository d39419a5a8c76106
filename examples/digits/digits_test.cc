// Runs the example as a user does, and looks at what it says.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;
};

Outcome RunDigits(const std::string& flags) {
  Outcome outcome;
  const std::string command = std::string(std::getenv("DIGITS")) + " " + flags + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  size_t n;
  while ((n = fread(buffer, 1, sizeof(buffer), pipe)) > 0) outcome.output.append(buffer, n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// The fingerprints of weights that ranks printed, and how many did.
std::pair<std::set<std::string>, int> Fingerprints(const std::string& output) {
  std::set<std::string> found;
  int count = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("] weights on rank ");
    if (at == std::string::npos) continue;
    found.insert(line.substr(line.rfind(' ') + 1));
    ++count;
  }
  return {found, count};
}

TEST(DigitsExample, LearnsAndProvesIt) {
  const Outcome outcome = RunDigits("--epochs=4");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("1437 images to learn from, 360 held out, 4 ranks"));
  for (int epoch = 1; epoch <= 4; ++epoch) {
    EXPECT_THAT(outcome.output, ContainsRegex("epoch  " + std::to_string(epoch) +
                                              " of 4: loss [0-9.]+, held-out accuracy [0-9.]+ %"));
  }
  EXPECT_THAT(outcome.output, HasSubstr("all 4 ranks hold equal weights, to the bit"));
  EXPECT_THAT(outcome.output, ContainsRegex("weights differ by [^ ]+ at most .tolerance 0.0001"));
  for (const char* phase : {"compute", "pack", "communicate", "unpack"}) {
    EXPECT_THAT(outcome.output, ContainsRegex(std::string("  ") + phase + " +[0-9.]+ ms"));
  }
  const auto [prints, count] = Fingerprints(outcome.output);
  EXPECT_EQ(count, 4) << outcome.output;
  EXPECT_EQ(prints.size(), 1u) << outcome.output;
}

// Ranks that do not divide the batch, and every way to bucket.
TEST(DigitsExample, OtherRanksAndBucketings) {
  for (const char* flags : {"--ranks=1", "--ranks=3 --bucketing=per_leaf",
                            "--ranks=2 --bucketing=65536"}) {
    const Outcome outcome = RunDigits(std::string("--epochs=1 --min_accuracy=0.5 ") + flags);
    EXPECT_EQ(outcome.code, 0) << flags << "\n" << outcome.output;
  }
}

TEST(DigitsExample, FailsWhenItDoesNotLearn) {
  const Outcome outcome = RunDigits("--ranks=2 --epochs=1 --rate=0");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("below --min_accuracy=0.95"));
}

TEST(DigitsExample, BadFlagsAreNamed) {
  EXPECT_THAT(RunDigits("--bucketing=0").output, HasSubstr("--bucketing=0"));
  EXPECT_THAT(RunDigits("--epochs=0").output, HasSubstr("--epochs"));
  EXPECT_THAT(RunDigits("--ranks=0").output, HasSubstr("number of ranks is 0"));
  EXPECT_THAT(RunDigits("--data=/no/such/file --ranks=1").output, HasSubstr("/no/such/file"));
  const Outcome outcome = RunDigits("--batch=1 --ranks=2");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("--batch=1"));
}

}  // namespace
