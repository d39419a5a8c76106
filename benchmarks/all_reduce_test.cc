// That the benchmark runs and its numbers are numbers; not how fast anything is.
#include "benchmarks/all_reduce.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

TEST(AllReduceBenchmarkTest, EveryModeRuns) {
  AllReduceBenchmarkOptions options;
  options.rounds = 2;
  for (const char* name : {"1x64B", "40x8KiB"}) {
    const auto result = RunAllReduceBenchmark(*GridWorkload(name), options);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->modes.size(), 6u);
    for (const ModeResult& mode : result->modes) {
      EXPECT_GT(mode.median, 0) << mode.mode;
      EXPECT_GT(mode.ratio_to_flat, 0) << mode.mode;
      EXPECT_TRUE(absl::StrContains(FormatTable(*result), mode.mode));
      EXPECT_TRUE(absl::StrContains(FormatJson(*result), mode.mode));
    }
    EXPECT_EQ(result->modes[0].messages > 0, std::string(name) == "40x8KiB");
  }
}

TEST(AllReduceBenchmarkTest, OtherBackendsRunBesideGloo) {
  AllReduceBenchmarkOptions options;
  options.rounds = 1;
  options.backend = "shm";
  const auto result = RunAllReduceBenchmark(*GridWorkload("40x8KiB"), options);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->modes.size(), 8u);
  EXPECT_EQ(result->leaves, 40);
  for (const ModeResult& mode : result->modes) EXPECT_GT(mode.ratio_to_local, 0) << mode.mode;
  EXPECT_TRUE(absl::StrContains(FormatTable(*result), "gloo auto"));
  EXPECT_TRUE(absl::StrContains(FormatTable(*result), "arena"));
}

TEST(AllReduceBenchmarkTest, RefusesNonsense) {
  AllReduceBenchmarkOptions options;
  options.ranks = 0;
  EXPECT_FALSE(RunAllReduceBenchmark(*GridWorkload("1x64B"), options).ok());
}

}  // namespace
}  // namespace leafpack
