// Random groups hold the invariants, and each fault that is put into the machines is found.
#include "distributed/core/protocol/simulator.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>

#include "gtest/gtest.h"

namespace leafpack::protocol {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// More runs: --test_env=LEAFPACK_SIMULATOR_SEEDS=1000000 and, to begin elsewhere,
// LEAFPACK_SIMULATOR_FIRST.
TEST(SimulatorTest, InvariantsHold) {
  const uint64_t first = FromEnvironment("LEAFPACK_SIMULATOR_FIRST", 1);
  const uint64_t seeds = FromEnvironment("LEAFPACK_SIMULATOR_SEEDS", 20'000);
  SimulationResult total;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimulationResult result =
        Simulate({.seed = seed, .trace = std::getenv("LEAFPACK_SIMULATOR_TRACE") != nullptr});
    ASSERT_EQ(result.violation, "") << "LEAFPACK_SIMULATOR_FIRST=" << seed
                                    << " LEAFPACK_SIMULATOR_TRACE=1 prints what happened";
    total.calls += result.calls;
    total.ok += result.ok;
    total.doubts += result.doubts;
    total.told += result.told;
    total.aborts += result.aborts;
    total.mismatches += result.mismatches;
    total.refused += result.refused;
    total.withdrawn += result.withdrawn;
    total.lost += result.lost;
    total.retracted += result.retracted;
    total.held += result.held;
    total.commits += result.commits;
  }
  std::printf(
      "%lu runs, %lu calls: %lu ok, %lu withdrawn, %lu refused, %lu differ, %lu lost, %lu in "
      "doubt, %lu told, %lu retracted, "
      "%lu held; %lu epochs, %lu commits\n",
      static_cast<unsigned long>(seeds), static_cast<unsigned long>(total.calls),
      static_cast<unsigned long>(total.ok), static_cast<unsigned long>(total.withdrawn),
      static_cast<unsigned long>(total.refused), static_cast<unsigned long>(total.mismatches),
      static_cast<unsigned long>(total.lost), static_cast<unsigned long>(total.doubts),
      static_cast<unsigned long>(total.told), static_cast<unsigned long>(total.retracted),
      static_cast<unsigned long>(total.held), static_cast<unsigned long>(total.aborts),
      static_cast<unsigned long>(total.commits));
}

struct Named {
  Mutation mutation;
  const char* name;
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

class MutationTest : public testing::TestWithParam<Named> {};

// A simulator that cannot find a fault proves nothing.
TEST_P(MutationTest, IsFound) {
  constexpr uint64_t kSeeds = 40'000;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimulationResult result = Simulate({.seed = seed, .mutation = GetParam().mutation});
    if (!result.violation.empty()) {
      std::printf("found: %s\n", result.violation.c_str());
      return;
    }
  }
  FAIL() << GetParam().name << " was not found in " << kSeeds << " runs";
}

INSTANTIATE_TEST_SUITE_P(
    All, MutationTest,
    testing::Values(Named{Mutation::kGiveUpAlone, "GiveUpAlone"},
                    Named{Mutation::kWithdrawOverridesOk, "WithdrawOverridesOk"},
                    Named{Mutation::kIgnorePostEpoch, "IgnorePostEpoch"},
                    Named{Mutation::kPostsSurviveAbort, "PostsSurviveAbort"},
                    Named{Mutation::kNoToldRefusal, "NoToldRefusal"},
                    Named{Mutation::kDoubtCountsAsTold, "DoubtCountsAsTold"},
                    Named{Mutation::kNoHeld, "NoHeld"},
                    Named{Mutation::kHeldTakesNewEpoch, "HeldTakesNewEpoch"},
                    Named{Mutation::kLatePostersUnanswered, "LatePostersUnanswered"},
                    Named{Mutation::kRefusalsIgnored, "RefusalsIgnored"},
                    Named{Mutation::kCommitOnFirstDone, "CommitOnFirstDone"},
                    Named{Mutation::kTimersBeforeSocket, "TimersBeforeSocket"},
                    Named{Mutation::kLostEndsRestoreCall, "LostEndsRestoreCall"},
                    Named{Mutation::kRetractStillSends, "RetractStillSends"},
                    Named{Mutation::kGrantAfterFail, "GrantAfterFail"},
                    Named{Mutation::kTrustedNeedsNoAbort, "TrustedNeedsNoAbort"},
                    Named{Mutation::kGapHidesPosts, "GapHidesPosts"}),
    [](const testing::TestParamInfo<Named>& test) { return test.param.name; });

}  // namespace
}  // namespace leafpack::protocol
