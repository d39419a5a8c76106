// What an all-reduce leaves behind that fails after data began to move: told, or restored.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

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

namespace leafpack {
namespace {

using ::leafpack::testing::Faults;
using ::leafpack::testing::WithGroup;

constexpr int64_t kNumel = 50'000;
constexpr int kRanks = 3;

struct Leaves {
  TensorDict tree;
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> before;
  std::vector<std::string> paths;
};

// Some leaves that travel where they lie, and some that are packed.
Leaves MakeLeaves(int rank) {
  Leaves leaves;
  for (int i = 0; i < 6; ++i) {
    at::Tensor leaf = at::full({kNumel, 2}, rank + i + 1.0);
    if (i % 2 == 1) leaf = leaf.slice(1, 0, 1);  // strided: packed
    leaves.tensors.push_back(leaf);
    leaves.before.push_back(leaf.clone());
    leaves.paths.push_back(absl::StrCat("leaf", i));
    EXPECT_TRUE(leaves.tree.Set(leaves.paths.back(), leaf).ok());
  }
  return leaves;
}

double Sum(int i) { return kRanks * (kRanks + 1) / 2.0 + kRanks * i; }

void ExpectAllReduced(const Leaves& leaves) {
  for (size_t i = 0; i < leaves.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(leaves.tensors[i], at::full(leaves.tensors[i].sizes(),
                                                      Sum(static_cast<int>(i)))))
        << leaves.paths[i];
  }
}

// What every fault must leave behind: a group that can be used at once.
void ExpectNextCallSucceeds(const Leaves& leaves, const Group& group,
                            const AllReduceOptions& options = {}) {
  const absl::Status status = AllReduce(leaves.tree, group, options);
  EXPECT_TRUE(status.ok()) << status;
  ExpectAllReduced(leaves);
}

void ExpectUnchanged(const Leaves& leaves) {
  for (size_t i = 0; i < leaves.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(leaves.tensors[i], leaves.before[i])) << leaves.paths[i];
  }
}

// A path that is told to be done holds the result; a packed one that is not holds its old value.
void ExpectAsTold(const Leaves& leaves, const ErrorDetails& details) {
  for (size_t i = 0; i < leaves.tensors.size(); ++i) {
    const bool done = std::ranges::count(details.paths_done, leaves.paths[i]) != 0;
    if (done) {
      EXPECT_TRUE(at::equal(leaves.tensors[i], at::full(leaves.tensors[i].sizes(),
                                                        Sum(static_cast<int>(i)))))
          << leaves.paths[i];
    } else if (i % 2 == 1 || details.tree_unchanged) {
      EXPECT_TRUE(at::equal(leaves.tensors[i], leaves.before[i])) << leaves.paths[i];
    }
  }
  EXPECT_TRUE(!details.tree_unchanged || details.paths_done.empty());
}

GroupOptions Fake() {
  testing::RegisterFakeBackend();
  return {.backend = "fake", .timeout = testing::kPatience};
}

class FailingRank : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rank, FailingRank, ::testing::Values(0, 1, 2));

TEST_P(FailingRank, AnErrorInDataIsToldAndTheNextCallSucceeds) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        for (int round = 0; round < 5; ++round) {
          Leaves leaves = MakeLeaves(rank);
          if (rank == GetParam()) Faults(group).fail_next_op = true;
          const absl::Status status =
              AllReduce(leaves.tree, group, {.bucketing = Bucketing::PerLeaf()});
          EXPECT_FALSE(status.ok());
          ExpectAsTold(leaves, GetErrorDetails(status));
          Leaves again = MakeLeaves(rank);
          ExpectNextCallSucceeds(again, group);
        }
      },
      Fake());
}

TEST_P(FailingRank, RestorePutsEveryTreeBack) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        for (int round = 0; round < 5; ++round) {
          Leaves leaves = MakeLeaves(rank);
          if (rank == GetParam()) Faults(group).fail_next_op = true;
          const AllReduceOptions options = {.bucketing = Bucketing::PerLeaf(),
                                            .on_failure = OnFailure::kRestore};
          const absl::Status status = AllReduce(leaves.tree, group, options);
          EXPECT_FALSE(status.ok());
          EXPECT_TRUE(GetErrorDetails(status).tree_unchanged) << status;
          EXPECT_TRUE(GetErrorDetails(status).paths_done.empty());
          ExpectUnchanged(leaves);
          ExpectNextCallSucceeds(leaves, group, options);
        }
      },
      Fake());
}

TEST_P(FailingRank, ADeadlineInDataEndsTheCallEverywhere) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
          Leaves leaves = MakeLeaves(rank);
          if (rank == GetParam()) Faults(group).stall_next_op = true;
          const absl::Status status = AllReduce(leaves.tree, group,
                                                {.bucketing = Bucketing::PerLeaf(),
                                                 .timeout = absl::Seconds(2),
                                                 .on_failure = on_failure});
          EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
          EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kDeadline) << status;
          if (on_failure == OnFailure::kRestore) {
            ExpectUnchanged(leaves);
          } else {
            ExpectAsTold(leaves, GetErrorDetails(status));
          }
          Leaves again = MakeLeaves(rank);
          ExpectNextCallSucceeds(again, group);
        }
      },
      Fake());
}

TEST_P(FailingRank, AnInterruptInDataEndsTheCallEverywhere) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        Leaves leaves = MakeLeaves(rank);
        if (rank == GetParam()) Faults(group).stall_next_op = true;
        AllReduceOptions options = {.on_failure = OnFailure::kRestore};
        const absl::Time press = absl::Now() + absl::Milliseconds(300);
        if (rank == GetParam()) options.interrupt = [press] { return absl::Now() > press; };
        const absl::Status status = AllReduce(leaves.tree, group, options);
        EXPECT_FALSE(status.ok());
        if (rank == GetParam()) {
          EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
          EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kInterrupted) << status;
        }
        ExpectUnchanged(leaves);
        ExpectNextCallSucceeds(leaves, group);
      },
      Fake());
}

TEST_P(FailingRank, AnAsynchronousCallTellsEachWaiter) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        Leaves leaves = MakeLeaves(rank);
        if (rank == GetParam()) Faults(group).fail_next_op = true;
        absl::StatusOr<TreeWork> work = AllReduceAsync(
            leaves.tree, group, {.bucketing = Bucketing::PerLeaf()});
        ASSERT_TRUE(work.ok()) << work.status();
        const absl::Status status = work->Wait();
        EXPECT_FALSE(status.ok());
        EXPECT_EQ(work->Wait(), status);
        EXPECT_TRUE(work->IsDone());
        const ErrorDetails details = GetErrorDetails(status);
        ExpectAsTold(leaves, details);
        Leaves again = MakeLeaves(rank);
        ExpectNextCallSucceeds(again, group);
      },
      Fake());
}

TEST(AllReduceFailureTest, ACancelledCallEndsOnAllRanksAndLeavesTheGroupUsable) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        Leaves leaves = MakeLeaves(rank);
        if (rank == 0) Faults(group).stall_next_op = true;
        absl::StatusOr<TreeWork> work =
            AllReduceAsync(leaves.tree, group, {.on_failure = OnFailure::kRestore});
        ASSERT_TRUE(work.ok()) << work.status();
        if (rank == 1) {
          absl::SleepFor(absl::Milliseconds(200));
          work->Cancel();
        }
        EXPECT_FALSE(work->Wait().ok());
        ExpectUnchanged(leaves);
        ExpectNextCallSucceeds(leaves, group);
      },
      Fake());
}

}  // namespace
}  // namespace leafpack
