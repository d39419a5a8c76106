#include "distributed/tree/barrier.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/core/testing/ranks.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

using ::leafpack::testing::WithGroup;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BarrierTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, BarrierTest, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

TEST_P(BarrierTest, NobodyPassesBeforeAllHaveCome) {
  const int ranks = GetParam();
  constexpr int kRounds = 50;
  std::vector<std::atomic<int>> come(kRounds);
  WithGroup(ranks, [&](const Group& group) {
    for (int round = 0; round < kRounds; ++round) {
      if (round % ranks == group.rank().value()) absl::SleepFor(absl::Microseconds(300));
      ++come[static_cast<size_t>(round)];
      LEAFPACK_ASSERT_OK(Barrier(group));
      EXPECT_EQ(come[static_cast<size_t>(round)], ranks) << "round " << round;
    }
  });
}

TEST_P(BarrierTest, NamesTheRanksThatAreMissing) {
  const int ranks = GetParam();
  if (ranks == 1) GTEST_SKIP() << "alone nobody is missing";
  const int late = ranks - 1;
  std::atomic<int> over{0};
  WithGroup(ranks, [&](const Group& group) {
    LEAFPACK_ASSERT_OK(Barrier(group));
    if (group.rank().value() == late) {
      while (over < ranks - 1) absl::SleepFor(absl::Milliseconds(1));
      const absl::Status told = Barrier(group);
      EXPECT_EQ(told.code(), absl::StatusCode::kCancelled) << told;
    } else {
      const absl::Status status = Barrier(group, {.timeout = absl::Milliseconds(500)});
      ++over;
      EXPECT_TRUE(status.code() == absl::StatusCode::kDeadlineExceeded ||
                  status.code() == absl::StatusCode::kCancelled)
          << status;
      if (status.code() == absl::StatusCode::kDeadlineExceeded) {
        EXPECT_THAT(GetErrorDetails(status).ranks, ElementsAre(GlobalRank(late))) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("barrier")) << status;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("rank " + std::to_string(late) + " had not called it"));
      }
    }
    LEAFPACK_ASSERT_OK(Barrier(group));
  });
}

TEST(BarrierTest, AnotherCallIsADisagreement) {
  WithGroup(2, [&](const Group& group) {
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("x", at::ones({3})));
    const absl::Status status = group.rank().value() == 0 ? Barrier(group) : AllReduce(tree, group);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("barrier"));
    const absl::Status names =
        Barrier(group, {.name = group.rank().value() == 0 ? "epoch" : "step"});
    EXPECT_EQ(names.code(), absl::StatusCode::kFailedPrecondition) << names;
    EXPECT_THAT(std::string(names.message()), HasSubstr("epoch"));
    LEAFPACK_ASSERT_OK(Barrier(group, {.name = "both"}));
  });
}

TEST(BarrierTest, BadOptionsAreRefused) {
  WithGroup(2, [&](const Group& group) {
    if (group.rank().value() == 0) {
      EXPECT_EQ(Barrier(group, {.timeout = absl::ZeroDuration()}).code(),
                absl::StatusCode::kInvalidArgument);
    } else {
      const absl::Status status = Barrier(group);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(GetErrorDetails(status).ranks, ElementsAre(GlobalRank(0)));
    }
    LEAFPACK_ASSERT_OK(Barrier(group));
  });
}

// Processes, so that one can be killed.
TEST(BarrierTest, ADeadRankIsNamed) {
  testing::TempDir dir;
  const std::vector<int> codes = testing::OnProcesses(3, [&](int rank) {
    Group group = testing::MakeFileGroup(dir.path() + "/store", rank, 3);
    if (!Barrier(group).ok()) return 1;
    if (rank == 1) kill(getpid(), SIGKILL);
    const absl::Time start = absl::Now();
    const absl::Status status = Barrier(group);
    const absl::Duration took = absl::Now() - start;
    // Neither leaves before the other has its error, which would name the one that left as well.
    const auto mark = [&](int of) { return absl::StrCat(dir.path(), "/told.", of); };
    std::ofstream(mark(rank)).flush();
    while (access(mark(2 - rank).c_str(), F_OK) != 0 && absl::Now() - start < testing::kPatience) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    if (status.code() == absl::StatusCode::kUnavailable &&
        GetErrorDetails(status).ranks == std::vector<GlobalRank>{GlobalRank(1)}) {
      return took < testing::kPatience / 2 ? 0 : 4;
    }
    std::cerr << "rank " << rank << ": " << status << "\n";
    return 3;
  });
  EXPECT_THAT(codes, ElementsAre(0, 128 + SIGKILL, 0));
}

}  // namespace
}  // namespace leafpack
