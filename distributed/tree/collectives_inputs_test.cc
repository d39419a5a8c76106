// Trees that change between calls, and trees to be written that must be refused.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/collectives_testutil.h"
#include "distributed/tree/reduce.h"

namespace leafpack {
namespace {

using testing::ExpectEqual;
using testing::ExpectUsable;
using testing::Values;
using testing::WithGroup;
using testing::WithGroups;

constexpr int64_t kSmall = 8;
constexpr int64_t kLarge = 300'000;

TensorDict OneLeaf(const at::Tensor& leaf) {
  TensorDict tree;
  EXPECT_TRUE(tree.Set("x", leaf).ok());
  return tree;
}

// What a rank without a tree gets from `tree` of rank 0.
TensorDict Received(const TensorDict& tree, const Group& group) {
  const bool is_root = group.rank().value() == 0;
  const auto result =
      Broadcast(is_root ? std::optional<TreeArg>(tree) : std::nullopt, GroupRank(0), group);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result->Dict();
}

TEST(CollectivesInputsTest, BatchSizesAndNamesAreThoseOfTheCall) {
  WithGroup(2, [](const Group& group) {
    TensorDict tree = OneLeaf(Values(at::kFloat, {4, 3, 2}, 1));
    TensorDict node;
    ASSERT_TRUE(node.Set("y", Values(at::kFloat, {4, 3, 5}, 2)).ok());
    ASSERT_TRUE(tree.Set("node", node).ok());
    EXPECT_EQ(Received(tree, group).batch_size(), at::IntArrayRef({}));
    ASSERT_TRUE(tree.SetBatchSize({4}).ok());
    EXPECT_EQ(Received(tree, group).batch_size(), at::IntArrayRef({4}));
    ASSERT_TRUE(tree.SetBatchSize({4, 3}).ok());
    EXPECT_EQ(Received(tree, group).batch_size(), at::IntArrayRef({4, 3}));
    ASSERT_TRUE(tree.SetNames({"time", "env"}).ok());
    EXPECT_EQ(Received(tree, group).names(), (std::vector<std::string>{"time", "env"}));
    ASSERT_TRUE(tree.SetNames({}).ok());
    EXPECT_TRUE(Received(tree, group).names().empty());
  });
}

// The root's own place lies across what it sends, itself and to others: all get what was there before.
TEST(CollectivesInputsTest, AScatterIntoTheMemoryOfItsSources) {
  for (const int64_t n : {kSmall, kLarge}) {
    for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
      WithGroup(2, [&](const Group& group) {
        const int rank = group.rank().value();
        const auto two = [](const at::Tensor& a, const at::Tensor& b) {
          TensorDict tree = OneLeaf(a);
          EXPECT_TRUE(tree.Set("y", b).ok());
          return tree;
        };
        const at::Tensor values = Values(at::kFloat, {2 * n}, 3);
        const at::Tensor rows = Values(at::kFloat, {2, n}, 4);
        const at::Tensor memory = values.clone(), pair = rows.clone();
        std::vector<TreeArg> trees;
        std::optional<TreeArg> own;
        if (rank == 0) {
          // Shifted by half.
          trees = {two(memory.narrow(0, 0, n), pair[0]), two(memory.narrow(0, n, n), pair[1])};
          own = two(memory.narrow(0, n / 2, n), pair[1]);
        }
        auto got = Scatter(own, trees, GroupRank(0), group, {.on_failure = on_failure});
        ASSERT_TRUE(got.ok()) << got.status();
        const TensorDict tree = *got->Dict();
        EXPECT_TRUE(at::equal(*tree.Get("x"), values.narrow(0, rank * n, n)));
        EXPECT_TRUE(at::equal(*tree.Get("y"), rows[rank]));
        // Two leaves of the root change places.
        if (rank == 0) {
          pair.copy_(rows);
          trees = {two(pair[0], pair[1]), two(pair[1], pair[0])};
          own = two(pair[1], pair[0]);
        }
        got = Scatter(own, trees, GroupRank(0), group, {.on_failure = on_failure});
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_TRUE(at::equal(*got->Dict()->Get("x"), rows[rank]));
        EXPECT_TRUE(at::equal(*got->Dict()->Get("y"), rows[1 - rank]));
      });
    }
  }
}

void ExpectRefused(const std::function<TensorDict(const Group&, int64_t)>& make_out,
                   const std::function<TensorDict(const TensorDict&, const Group&, int64_t)>& make_in,
                   std::string_view text) {
  for (const int64_t elements : {kSmall, kLarge}) {
    WithGroup(2, [&](const Group& group) {
      const TensorDict out = make_out(group, elements);
      const TensorDict tree = make_in(out, group, elements);
      const auto result = AllGatherJoined(tree, Joining::kStack, out, group);
      EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
      EXPECT_TRUE(absl::StrContains(result.status().message(), text)) << result.status();
      ExpectUsable(group);
    });
  }
}

TensorDict Fresh(const TensorDict&, const Group& group, int64_t elements) {
  return OneLeaf(Values(at::kFloat, {elements}, group.rank().value()));
}

TEST(CollectivesInputsTest, AJoinedTreeOnAnotherDeviceIsRefused) {
  ExpectRefused(
      [](const Group&, int64_t n) {
        return OneLeaf(at::empty({2, n}, at::TensorOptions(at::kMeta).dtype(at::kFloat)));
      },
      Fresh, "meta");
}

TEST(CollectivesInputsTest, ASparseJoinedTreeIsRefused) {
  ExpectRefused([](const Group&, int64_t n) { return OneLeaf(at::zeros({2, n}).to_sparse()); }, Fresh,
                "sparse");
}

TEST(CollectivesInputsTest, AJoinedTreeOverWhatAnotherRankSendsIsRefused) {
  const auto make_out = [](const Group&, int64_t n) { return OneLeaf(at::zeros({2, n})); };
  // The place of the other rank, and one that lies across both.
  ExpectRefused(
      make_out,
      [](const TensorDict& out, const Group& group, int64_t) {
        return OneLeaf(out.Get("x")->select(0, 1 - group.rank().value()));
      },
      "memory");
  ExpectRefused(
      make_out,
      [](const TensorDict& out, const Group&, int64_t n) {
        return OneLeaf(out.Get("x")->view({2 * n}).narrow(0, n / 2, n));
      },
      "memory");
}

TEST(CollectivesInputsTest, ATreeMayLieInItsOwnPlaceOfTheJoinedOne) {
  for (const int64_t elements : {kSmall, kLarge}) {
    WithGroup(2, [&](const Group& group) {
      const int rank = group.rank().value();
      const TensorDict out = OneLeaf(at::zeros({2, elements}));
      const at::Tensor own = out.Get("x")->select(0, rank);
      own.copy_(Values(at::kFloat, {elements}, rank));
      const auto result = AllGatherJoined(OneLeaf(own), Joining::kStack, out, group);
      ASSERT_TRUE(result.ok()) << result.status();
      for (int r = 0; r < 2; ++r) {
        EXPECT_TRUE(at::equal(out.Get("x")->select(0, r), Values(at::kFloat, {elements}, r)));
      }
    });
  }
}

// How the tree of rank 1 may differ from {"a": float [n], "b": float [n + 1]}.
enum class Odd { kNot, kKey, kExtraKey, kShapes, kOneMore, kDtype };

TensorDict Tree(int rank, int64_t n, Odd odd) {
  if (rank != 1) odd = Odd::kNot;
  TensorDict tree;
  const auto set = [&](std::string_view key, at::ScalarType dtype, int64_t size) {
    EXPECT_TRUE(tree.Set(std::string(key), Values(dtype, {size}, rank)).ok());
  };
  set(odd == Odd::kKey ? "c" : "b", odd == Odd::kDtype ? at::kInt : at::kFloat,
      odd == Odd::kShapes    ? n
      : odd == Odd::kOneMore ? n + 2
                             : n + 1);
  set("a", at::kFloat, odd == Odd::kShapes ? n + 1 : n);
  if (odd == Odd::kExtraKey) set("d", at::kFloat, 1);
  return tree;
}

using Collective = std::function<absl::Status(const TensorDict&, const Group&)>;

// All that need trees of one layout.
std::vector<std::pair<std::string, Collective>> NeedOneLayout() {
  const auto root = GroupRank(0);
  return {
      {"broadcast",
       [=](const TensorDict& tree, const Group& group) {
         return Broadcast(tree, root, group).status();
       }},
      {"scatter",
       [=](const TensorDict& tree, const Group& group) {
         if (group.rank() != root) return Scatter(tree, {}, root, group).status();
         return Scatter(std::nullopt, {tree, tree}, root, group).status();
       }},
      {"all_gather joined",
       [](const TensorDict& tree, const Group& group) {
         return AllGatherJoined(tree, Joining::kConcat, std::nullopt, group).status();
       }},
      {"gather_and_stack",
       [=](const TensorDict& tree, const Group& group) {
         return GatherAndStack(tree, root, group).status();
       }},
      {"reduce",
       [=](const TensorDict& tree, const Group& group) { return Reduce(tree, root, group); }},
      {"reduce_scatter",
       [](const TensorDict& tree, const Group& group) {
         TensorDict other;
         EXPECT_TRUE(other.Set("x", Values(at::kFloat, {3}, 0)).ok());
         return ReduceScatter(std::vector<TensorDict>{tree, other}, group);
       }},
  };
}

TEST(CollectivesInputsTest, TreesThatDifferAreErrorsOnAllRanksAndStayAsTheyAre) {
  for (const int64_t n : {kSmall, kLarge}) {
    WithGroup(2, [&](const Group& group) {
      const int rank = group.rank().value();
      for (const auto& [name, collective] : NeedOneLayout()) {
        SCOPED_TRACE(name);
        for (const Odd odd : {Odd::kKey, Odd::kExtraKey, Odd::kShapes, Odd::kOneMore, Odd::kDtype}) {
          SCOPED_TRACE(static_cast<int>(odd));
          const TensorDict tree = Tree(rank, n, odd);
          const absl::Status status = collective(tree, group);
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
          const ErrorDetails details = GetErrorDetails(status);
          EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch) << status;
          EXPECT_TRUE(details.tree_unchanged);
          EXPECT_FALSE(details.path.empty()) << status;
          ExpectEqual(tree, Tree(rank, n, odd));
        }
        const absl::Status status = collective(Tree(rank, n, Odd::kNot), group);
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
}

TEST(CollectivesInputsTest, TwoGroupsInOppositeOrders) {
  WithGroups(2, 2, [](const std::vector<Group>& groups) {
    const int rank = groups[0].rank().value();
    for (int round = 0; round < 3; ++round) {
      std::vector<TensorDict> trees;
      std::vector<std::optional<TreeWork>> works(2);
      for (int g = 0; g < 2; ++g) trees.push_back(Tree(rank + 2 * g, kLarge, Odd::kNot));
      for (const int g : {rank, 1 - rank}) {
        auto work = BroadcastAsync(trees[static_cast<size_t>(g)], GroupRank(0),
                                   groups[static_cast<size_t>(g)]);
        ASSERT_TRUE(work.ok()) << work.status();
        works[static_cast<size_t>(g)] = *std::move(work);
      }
      for (const int g : {1 - rank, rank}) {
        const absl::Status status = works[static_cast<size_t>(g)]->Wait();
        ASSERT_TRUE(status.ok()) << status;
        ExpectEqual(trees[static_cast<size_t>(g)], Tree(2 * g, kLarge, Odd::kNot));
      }
    }
  });
}

TEST(CollectivesInputsTest, AsynchronousCallsInAnotherOrderAreErrors) {
  WithGroup(2, [](const Group& group) {
    const int rank = group.rank().value();
    const TensorDict one = Tree(rank, kLarge, Odd::kNot);
    const TensorDict two = Tree(rank, kSmall, Odd::kNot);
    std::vector<TreeWork> works;
    for (int i = 0; i < 2; ++i) {
      auto work = i == rank ? BroadcastAsync(one, GroupRank(0), group, {.name = "one"})
                            : AllGatherAsync(two, group, {.name = "two"});
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    for (const TreeWork& work : works) {
      const absl::Status status = work.Wait();
      EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kLayoutMismatch) << status;
    }
    ExpectEqual(one, Tree(rank, kLarge, Odd::kNot));
    ExpectUsable(group);
  });
}

}  // namespace
}  // namespace leafpack
