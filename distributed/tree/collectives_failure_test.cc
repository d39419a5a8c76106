// What the collectives that move trees say when ranks disagree, a rank refuses, is late or fails: one
// error everywhere, nothing changed, and a group that goes on.
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/core/testing/ranks.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/collectives_testutil.h"

namespace leafpack {
namespace {

using testing::ExpectError;
using testing::ExpectTree;
using testing::ExpectUsable;
using testing::Faults;
using testing::MakeTree;
using testing::Size;
using testing::Values;
using testing::WithGroup;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Ranks, the odd one, and whether the trees ride in the control channel.
using Setting = std::tuple<int, int, Size>;
class DisagreementTest : public ::testing::TestWithParam<Setting> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  int odd() const { return std::get<1>(GetParam()); }
  Size size() const { return std::get<2>(GetParam()); }
  std::string odd_name() const { return absl::StrCat("rank ", odd()); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, DisagreementTest,
                         ::testing::Values(Setting{2, 1, Size::kSmall}, Setting{2, 0, Size::kLarge},
                                           Setting{3, 2, Size::kLarge}, Setting{4, 1, Size::kSmall},
                                           Setting{4, 3, Size::kLarge}),
                         [](const auto& setting) {
                           return absl::StrCat(std::get<0>(setting.param), "Ranks",
                                               std::get<1>(setting.param), "Odd",
                                               std::get<2>(setting.param) == Size::kSmall ? "Small"
                                                                                       : "Large");
                         });

TEST_P(DisagreementTest, BroadcastIntoATreeOfAnotherLayout) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const int root = odd() == 0 ? 1 : 0;
    const int variant = rank == odd() ? 1 : 0;
    for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
      const TensorDict tree = MakeTree(rank, size(), variant);
      const auto result =
          Broadcast(tree, GroupRank(root), group, {.on_failure = on_failure});
      ExpectError(result.status(), kFailed, ErrorKind::kLayoutMismatch,
                  {"layer.weight", odd_name(), absl::StrCat("rank ", root), "[3, 4]", "[4, 4]"});
      const ErrorDetails details = GetErrorDetails(result.status());
      EXPECT_EQ(details.path, "layer.weight");
      EXPECT_EQ(details.ranks, std::vector<GlobalRank>{GlobalRank(odd())});
      EXPECT_TRUE(details.tree_unchanged);
      ExpectTree(tree, rank, size(), variant);
      ExpectUsable(group);
    }
  });
}

TEST_P(DisagreementTest, ScatterIntoATreeOfAnotherLayout) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const int root = odd() == 0 ? 1 : 0;
    const int variant = rank == odd() ? 2 : 0;
    const TensorDict tree = MakeTree(rank, size(), variant);
    std::vector<TreeArg> trees;
    if (rank == root) {
      trees.assign(static_cast<size_t>(ranks()), MakeTree(9, size()));
    }
    const auto result = Scatter(tree, trees, GroupRank(root), group);
    ExpectError(result.status(), kFailed, ErrorKind::kLayoutMismatch,
                {"layer.weight", odd_name()});
    ExpectTree(tree, rank, size(), variant);
    ExpectUsable(group);
  });
}

TEST_P(DisagreementTest, JoinedTreesOfOtherLayouts) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const TensorDict tree = MakeTree(rank, size(), rank == odd() ? 1 : 0);
    const auto all = AllGatherJoined(tree, Joining::kStack, std::nullopt, group);
    ExpectError(all.status(), kFailed, ErrorKind::kLayoutMismatch, {"layer.weight", odd_name()});
    const auto one = GatherAndStack(tree, GroupRank(0), group);
    ExpectError(one.status(), kFailed, ErrorKind::kLayoutMismatch, {"layer.weight", odd_name()});
    ExpectUsable(group);
  });
}

TEST_P(DisagreementTest, OtherArguments) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const bool is_odd = rank == odd();
    const TensorDict tree = MakeTree(rank, size());
    auto result = Broadcast(tree, GroupRank(is_odd ? 1 : 0), group);
    ExpectError(result.status(), kFailed, ErrorKind::kLayoutMismatch, {"root", odd_name()});
    result = AllGather(tree, group, {.name = is_odd ? "second" : "first"});
    ExpectError(result.status(), kFailed, ErrorKind::kLayoutMismatch,
                {"first", "second", odd_name()});
    result = is_odd ? AllGather(tree, group) : Gather(tree, GroupRank(0), group);
    ExpectError(result.status(), kFailed, ErrorKind::kLayoutMismatch,
                {"all_gather", "gather", odd_name()});
    result = AllGatherJoined(tree, is_odd ? Joining::kStack : Joining::kConcat, std::nullopt, group);
    EXPECT_FALSE(result.ok());
    // One rank is a call behind.
    if (!is_odd) result = AllGather(tree, group, {.name = "a"});
    result = AllGather(tree, group, {.name = "b"});
    if (is_odd) {
      ExpectError(result.status(), kFailed, ErrorKind::kLayoutMismatch, {"a", "b"});
      result = AllGather(tree, group, {.name = "b"});
    }
    EXPECT_TRUE(result.ok()) << result.status();
    ExpectTree(tree, rank, size());
    ExpectUsable(group);
  });
}

TEST_P(DisagreementTest, ARankThatRefusesTellsTheOthers) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const bool is_odd = rank == odd();
    const auto expect = [&](const absl::Status& status, absl::StatusCode code,
                            const std::vector<std::string_view>& texts) {
      if (is_odd) {
        ExpectError(status, code, GetErrorDetails(status).kind, texts);
      } else {
        std::vector<std::string_view> told = texts;
        const std::string name = odd_name();
        told.push_back(name);
        ExpectError(status, kFailed, ErrorKind::kPeerRefused, told);
      }
    };
    const TensorDict tree = MakeTree(rank, size());
    // A leaf that overlaps itself.
    TensorDict bad = MakeTree(rank, size());
    ASSERT_TRUE(bad.Set("wide", at::full({1, 3}, 1.0).expand({2, 3})).ok());
    expect(AllGather(is_odd ? bad : tree, group).status(), kInvalid, {"wide"});
    // A sparse one.
    bad = MakeTree(rank, size());
    ASSERT_TRUE(bad.Set("sparse", at::full({3}, 1.0).to_sparse()).ok());
    expect(AllGatherJoined(is_odd ? bad : tree, Joining::kStack, std::nullopt, group).status(),
           absl::StatusCode::kUnimplemented, {"sparse"});
    // A root that is no member, as either type.
    const Root none = odd() % 2 == 0 ? Root(GroupRank(7)) : Root(GlobalRank(7));
    expect(Gather(tree, is_odd ? none : Root(GroupRank(0)), group).status(), kInvalid,
           {"7", absl::StrCat(ranks())});
    // The root of a broadcast without a tree; a scatter with too few; trees from another rank.
    expect(Broadcast(is_odd ? std::nullopt : std::optional<TreeArg>(tree), GroupRank(odd()), group)
               .status(),
           kInvalid, {"must give a tree"});
    expect(Scatter(tree, {}, GroupRank(odd()), group).status(), kInvalid,
           {absl::StrCat(ranks()), "got 0"});
    expect(AllToAll(std::vector<TreeArg>(static_cast<size_t>(is_odd ? 7 : ranks()), tree), group)
               .status(),
           kInvalid, {absl::StrCat(ranks()), "got 7"});
    // A tree to be written that has a history.
    const TensorDict with_grad = MakeTree(rank, size());
    ASSERT_TRUE(with_grad.GetDict({"layer"})
                    ->Set("bias", Values(at::kDouble, {5}, 1).requires_grad_().mul(2))
                    .ok());
    const int root = odd() == 0 ? 1 : 0;
    expect(Broadcast(is_odd ? with_grad : tree, GroupRank(root), group).status(), kInvalid,
           {"layer.bias"});
    // A tree to be joined into that does not fit.
    const TensorDict out = MakeTree(0, size());
    expect(AllGatherJoined(tree, Joining::kStack,
                           is_odd ? std::optional<TreeArg>(out) : std::nullopt, group)
               .status(),
           kInvalid, {"in the tree to be written; it must be"});
    expect(AllGather(tree, group, {.timeout = absl::Seconds(is_odd ? -1 : 60)}).status(), kInvalid,
           {"timeout"});
    ExpectTree(tree, rank, size());
    ExpectUsable(group);
  });
}

TEST_P(DisagreementTest, ARankThatDoesNotCallIsNamedAtTheDeadline) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    ExpectUsable(group);
    const TensorDict tree = MakeTree(rank, size());
    if (rank == odd()) {
      absl::SleepFor(absl::Seconds(2));
      const auto late = AllGather(tree, group);
      EXPECT_EQ(late.status().code(), absl::StatusCode::kCancelled) << late.status();
    } else {
      const auto result = AllGather(tree, group, {.timeout = absl::Milliseconds(500)});
      EXPECT_TRUE(absl::IsDeadlineExceeded(result.status()) || absl::IsCancelled(result.status()))
          << result.status();
      if (absl::IsDeadlineExceeded(result.status())) {
        EXPECT_EQ(GetErrorDetails(result.status()).ranks,
                  std::vector<GlobalRank>{GlobalRank(odd())})
            << result.status();
      }
    }
    ExpectUsable(group);
  });
}

TEST_P(DisagreementTest, AnInterruptGivesTheCallUp) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const TensorDict tree = MakeTree(rank, size());
    if (rank == odd()) {
      const auto result =
          Broadcast(tree, GroupRank(0), group, {.interrupt = [] { return true; }});
      // The others may have come before it looked.
      EXPECT_TRUE(result.ok() || absl::IsCancelled(result.status())) << result.status();
    } else {
      absl::SleepFor(absl::Milliseconds(300));
      const auto result = Broadcast(tree, GroupRank(0), group);
      EXPECT_TRUE(result.ok() || absl::IsCancelled(result.status())) << result.status();
      if (!result.ok()) ExpectTree(tree, rank, size());
    }
    ExpectUsable(group);
  });
}

TEST(SubGroupTest, RootsAreGroupRanksOrGlobalRanks) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<Group> group =
          Group::Create(store, "sub", GroupRank(rank), 2, {GlobalRank(3), GlobalRank(5)}, {});
      ASSERT_TRUE(group.ok()) << group.status();
      TensorDict tree = MakeTree(rank, Size::kSmall);
      auto result = Broadcast(tree, GlobalRank(5), *group);
      ASSERT_TRUE(result.ok()) << result.status();
      ExpectTree(tree, 1, Size::kSmall);
      tree = MakeTree(rank, Size::kSmall);
      result = Broadcast(tree, GroupRank(0), *group);
      ASSERT_TRUE(result.ok()) << result.status();
      ExpectTree(tree, 0, Size::kSmall);
      // Group rank 1 and global rank 5 are the same root.
      result = rank == 0 ? Gather(tree, GroupRank(1), *group) : Gather(tree, GlobalRank(5), *group);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->trees.size(), rank == 1 ? 2u : 0u);
      result = Broadcast(tree, GlobalRank(1), *group);
      ExpectError(result.status(), kInvalid, ErrorKind::kOther, {"rank 1 is not a member", "2"});
      ExpectUsable(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Failures in data, with a backend that fails to order ----

constexpr int kRanks = 3;

GroupOptions Fake() {
  testing::RegisterFakeBackend();
  return {.backend = "fake", .timeout = testing::kPatience};
}

// A rank that had got through the failed call refuses its next one, so that its user is told; then calls
// succeed again.
void ExpectNextBroadcast(const Group& group) {
  const TensorDict tree = MakeTree(group.rank().value(), Size::kLarge);
  absl::StatusOr<TreeResult> next = Broadcast(tree, GroupRank(1), group);
  if (!next.ok()) {
    ExpectError(next.status(), kFailed, ErrorKind::kPeerRefused, {"failed on rank"});
    next = Broadcast(tree, GroupRank(1), group);
  }
  ASSERT_TRUE(next.ok()) << next.status();
  ExpectTree(tree, 1, Size::kLarge);
}

class FailingRank : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rank, FailingRank, ::testing::Values(0, 1, 2));

TEST_P(FailingRank, AnErrorInDataIsToldAndTheNextCallSucceeds) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
          for (const int variant : {0, 3}) {  // trees that are described first, too
            const TensorDict tree = MakeTree(rank, Size::kLarge, variant == 0 ? 0 : rank);
            if (rank == GetParam()) Faults(group).fail_next_op = true;
            const absl::Status status =
                variant == 0
                    ? Broadcast(tree, GroupRank(0), group, {.on_failure = on_failure}).status()
                    : AllGather(tree, group).status();
            const bool restore = variant == 0 && on_failure == OnFailure::kRestore;
            // Without a completion round a rank may have got all that it was sent.
            EXPECT_FALSE(status.ok() && (restore || rank == GetParam())) << status;
            const ErrorDetails details = GetErrorDetails(status);
            EXPECT_TRUE(!(rank == 0 || restore) || details.tree_unchanged) << status;
            if (status.ok()) {
              ExpectTree(tree, variant == 0 ? 0 : rank, Size::kLarge, variant == 0 ? 0 : rank);
            } else if (details.tree_unchanged) {
              ExpectTree(tree, rank, Size::kLarge, variant == 0 ? 0 : rank);
            }
            ExpectNextBroadcast(group);
          }
        }
      },
      Fake());
}

TEST_P(FailingRank, ADeadlineInDataEndsTheCallEverywhere) {
  WithGroup(
      kRanks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        const TensorDict tree = MakeTree(rank, Size::kLarge);
        if (rank == GetParam()) Faults(group).stall_next_op = true;
        const absl::Status status =
            AllGather(tree, group, {.timeout = absl::Seconds(2)}).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_TRUE(GetErrorDetails(status).tree_unchanged);
        ExpectTree(tree, rank, Size::kLarge);
        ExpectNextBroadcast(group);
      },
      Fake());
}

}  // namespace
}  // namespace leafpack
