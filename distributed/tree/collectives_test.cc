// What the collectives that move trees give: values, layouts, nodes, in place and new.
#include "distributed/tree/collectives.h"

#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/collectives_testutil.h"

namespace leafpack {
namespace {

using testing::ExpectEqual;
using testing::ExpectTree;
using testing::MakeTree;
using testing::Size;
using testing::Values;
using testing::WithGroup;

// Ranks, and whether the trees ride in the control channel.
class CollectivesTest : public ::testing::TestWithParam<std::tuple<int, Size>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  Size size() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(
    Ranks, CollectivesTest,
    ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(Size::kSmall, Size::kLarge)),
    [](const auto& setting) {
      return absl::StrCat(std::get<0>(setting.param),
                          std::get<1>(setting.param) == Size::kSmall ? "Small" : "Large");
    });

#define ASSERT_OK_AND(result) ASSERT_TRUE((result).ok()) << (result).status()

TEST_P(CollectivesTest, BroadcastWritesInPlace) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const int root = ranks() - 1;
    for (int round = 0; round < 3; ++round) {  // with and without plans at hand
      const TensorDict tree = MakeTree(rank + 10 * round, size());
      const FlatTree before = Flatten(tree);
      const auto result = Broadcast(tree, GroupRank(root), group);
      ASSERT_OK_AND(result);
      ExpectTree(tree, root + 10 * round, size());
      EXPECT_TRUE(result->Dict()->IsSame(tree));
      const FlatTree after = Flatten(tree);
      for (size_t i = 0; i < after.size(); ++i) {
        EXPECT_TRUE(after.leaves[i].is_same(before.leaves[i]));
      }
    }
  });
}

TEST_P(CollectivesTest, BroadcastMakesTreesWhereThereIsNone) {
  WithGroup(ranks(), [&](const Group& group) {
    const bool is_root = group.rank().value() == 0;
    TensorDict tree = MakeTree(5, size());
    ASSERT_TRUE(tree.Set({"hollow", "inner"}, TensorDict()).ok());
    const auto result =
        Broadcast(is_root ? std::optional<TreeArg>(tree) : std::nullopt, GlobalRank(0), group);
    ASSERT_OK_AND(result);
    const absl::StatusOr<TensorDict> got = result->Dict();
    ASSERT_OK_AND(got);
    ExpectTree(*got, 5, size());
    EXPECT_TRUE(got->Contains({"hollow", "inner"}));
    EXPECT_EQ(got->IsSame(tree), is_root);
    // Tied leaves stay tied.
    EXPECT_EQ(got->Get({"tied", "a"})->data_ptr(), got->Get({"tied", "b"})->data_ptr());
  });
}

TEST_P(CollectivesTest, BroadcastIntoSomeTreesOnly) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const TensorDict tree = MakeTree(rank, size());
    const auto result =
        Broadcast(rank == 2 ? std::nullopt : std::optional<TreeArg>(tree), GroupRank(0), group);
    ASSERT_OK_AND(result);
    ExpectTree(*result->Dict(), 0, size());
    if (rank != 2) ExpectTree(tree, 0, size());
  });
}

TEST_P(CollectivesTest, AllGatherOfEqualTrees) {
  WithGroup(ranks(), [&](const Group& group) {
    const TensorDict tree = MakeTree(group.rank().value(), size());
    for (int round = 0; round < 2; ++round) {
      const auto result = AllGather(tree, group);
      ASSERT_OK_AND(result);
      const auto trees = result->Dicts();
      ASSERT_OK_AND(trees);
      ASSERT_EQ(trees->size(), static_cast<size_t>(ranks()));
      for (int r = 0; r < ranks(); ++r) ExpectTree((*trees)[static_cast<size_t>(r)], r, size());
    }
    ExpectTree(tree, group.rank().value(), size());
  });
}

TEST_P(CollectivesTest, AllGatherOfTreesThatDiffer) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    // Rank 1 has nothing at all; the others have trees of other shapes, small and large.
    const auto size_of = [&](int r) { return r == 3 ? Size::kSmall : size(); };
    const TensorDict tree = rank == 1 ? TensorDict() : MakeTree(rank, size_of(rank), rank);
    const auto result = AllGather(tree, group);
    ASSERT_OK_AND(result);
    const auto trees = result->Dicts();
    ASSERT_OK_AND(trees);
    ASSERT_EQ(trees->size(), static_cast<size_t>(ranks()));
    for (int r = 0; r < ranks(); ++r) {
      if (r == 1) {
        EXPECT_EQ((*trees)[1].num_leaves(), 0u);
      } else {
        ExpectTree((*trees)[static_cast<size_t>(r)], r, size_of(r), r);
      }
    }
  });
}

// What is no tensor travels with new trees, must be equal where a tree is written, and stays.
TEST_P(CollectivesTest, ValuesThatAreNoTensors) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const auto make = [&](int step) {
      TensorDict tree = MakeTree(rank, size());
      EXPECT_TRUE(tree.Set({"meta", "step"}, NonTensor(step)).ok());
      EXPECT_TRUE(tree.Set({"meta", "name"}, NonTensor("net")).ok());
      return tree;
    };
    auto result = Broadcast(rank == 0 ? std::optional<TreeArg>(make(7)) : std::nullopt,
                            GroupRank(0), group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(result->Dict()->GetNonTensor({"meta", "step"})->AsInt(), 7);
    result = AllGather(make(rank), group);
    ASSERT_OK_AND(result);
    for (int r = 0; r < ranks(); ++r) {
      const absl::StatusOr<TensorDict> tree = result->trees[static_cast<size_t>(r)].ToTensorDict();
      ASSERT_OK_AND(tree);
      EXPECT_EQ(tree->GetNonTensor({"meta", "step"})->AsInt(), r);
      EXPECT_TRUE(at::equal(*tree->Get({"layer", "weight"}),
                            *MakeTree(r, size()).Get({"layer", "weight"})));
    }
    result = AllGatherJoined(make(3), Joining::kStack, std::nullopt, group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(*result->Dict()->GetNonTensor({"meta", "name"}), NonTensor("net"));
    const TensorDict mine = make(5);
    result = Broadcast(mine, GroupRank(0), group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(mine.GetNonTensor({"meta", "step"})->AsInt(), 5);
    const TensorDict other = make(rank == 0 ? 5 : 6);
    result = Broadcast(other, GroupRank(0), group);
    EXPECT_EQ(result.ok(), ranks() == 1) << result.status();
    if (!result.ok()) {
      testing::ExpectError(result.status(), absl::StatusCode::kFailedPrecondition,
                           ErrorKind::kLayoutMismatch, {"meta.step", "5", "6"});
    }
  });
}

TEST_P(CollectivesTest, NamesOfBatchDimensions) {
  WithGroup(ranks(), [&](const Group& group) {
    TensorDict tree({2});
    ASSERT_TRUE(tree.Set("x", Values(at::kFloat, {2, 3}, group.rank().value())).ok());
    ASSERT_TRUE(tree.SetNames({"batch"}).ok());
    auto result = AllGather(tree, group);
    ASSERT_OK_AND(result);
    for (const ReceivedTree& each : result->trees) {
      EXPECT_EQ(each.ToTensorDict()->names(), std::vector<std::string>{"batch"});
    }
    result = AllGatherJoined(tree, Joining::kStack, std::nullopt, group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(result->Dict()->names(), (std::vector<std::string>{"", "batch"}));
    EXPECT_EQ(result->Dict()->batch_size(), at::IntArrayRef({ranks(), 2}));
    result = AllGatherJoined(tree, Joining::kConcat, std::nullopt, group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(result->Dict()->names(), std::vector<std::string>{"batch"});
  });
}

TEST_P(CollectivesTest, EmptyTreesEverywhere) {
  WithGroup(ranks(), [&](const Group& group) {
    const TensorDict tree;
    const auto all = AllGather(tree, group);
    ASSERT_OK_AND(all);
    EXPECT_EQ(all->trees.size(), static_cast<size_t>(ranks()));
    const auto one = Broadcast(tree, GroupRank(0), group);
    ASSERT_OK_AND(one);
    EXPECT_EQ(one->Dict()->num_leaves(), 0u);
  });
}

void ExpectJoined(const TensorDict& joined, Joining joining, int ranks, Size size) {
  std::vector<FlatTree> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(Flatten(MakeTree(r, size)));
  const FlatTree got = Flatten(joined);
  ASSERT_EQ(got.paths->paths(), parts[0].paths->paths());
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<at::Tensor> leaves;
    for (const FlatTree& part : parts) leaves.push_back(part.leaves[i]);
    if (!leaves[0].defined()) {
      EXPECT_FALSE(got.leaves[i].defined());
      continue;
    }
    const at::Tensor want = joining == Joining::kStack ? at::stack(leaves) : at::cat(leaves);
    EXPECT_TRUE(at::equal(got.leaves[i], want)) << (*got.paths)[i];
  }
}

// 0-dim leaves and tied ones that are transposed cannot be concatenated.
TensorDict ForConcat(int seed, Size size) {
  TensorDict tree = MakeTree(seed, size);
  EXPECT_TRUE(tree.Erase({"list", 0}).ok());
  EXPECT_TRUE(tree.Erase({"tied"}).ok());
  return tree;
}

TEST_P(CollectivesTest, AllGatherStacked) {
  WithGroup(ranks(), [&](const Group& group) {
    const TensorDict tree = MakeTree(group.rank().value(), size());
    auto result = AllGatherJoined(tree, Joining::kStack, std::nullopt, group);
    ASSERT_OK_AND(result);
    const absl::StatusOr<TensorDict> made = result->Dict();
    ASSERT_OK_AND(made);
    ExpectJoined(*made, Joining::kStack, ranks(), size());
    EXPECT_EQ(made->batch_size(), at::IntArrayRef({ranks()}));
    // Again, into what was made.
    Flatten(*made).leaves[0].zero_();
    result = AllGatherJoined(tree, Joining::kStack, *made, group);
    ASSERT_OK_AND(result);
    EXPECT_TRUE(result->Dict()->IsSame(*made));
    ExpectJoined(*made, Joining::kStack, ranks(), size());
  });
}

TEST_P(CollectivesTest, AllGatherConcatenated) {
  WithGroup(ranks(), [&](const Group& group) {
    const TensorDict tree = ForConcat(group.rank().value(), size());
    const auto result = AllGatherJoined(tree, Joining::kConcat, std::nullopt, group);
    ASSERT_OK_AND(result);
    const FlatTree got = Flatten(*result->Dict());
    for (size_t i = 0; i < got.size(); ++i) {
      std::vector<at::Tensor> leaves;
      for (int r = 0; r < ranks(); ++r) leaves.push_back(Flatten(ForConcat(r, size())).leaves[i]);
      if (!leaves[0].defined()) continue;
      EXPECT_TRUE(at::equal(got.leaves[i], at::cat(leaves))) << (*got.paths)[i];
    }
  });
}

TEST_P(CollectivesTest, GatherGivesTheRootAllTrees) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const int root = ranks() / 2;
    for (const bool differ : {false, true}) {
      const TensorDict tree = MakeTree(rank, size(), differ ? rank : 0);
      const auto result = Gather(tree, GroupRank(root), group);
      ASSERT_OK_AND(result);
      if (rank != root) {
        EXPECT_TRUE(result->trees.empty());
        continue;
      }
      const auto trees = result->Dicts();
      ASSERT_OK_AND(trees);
      ASSERT_EQ(trees->size(), static_cast<size_t>(ranks()));
      for (int r = 0; r < ranks(); ++r) {
        ExpectTree((*trees)[static_cast<size_t>(r)], r, size(), differ ? r : 0);
      }
    }
  });
}

TEST_P(CollectivesTest, GatherAndStackGivesTheRootOneTree) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const int root = ranks() - 1;
    const auto result = GatherAndStack(MakeTree(rank, size()), GroupRank(root), group);
    ASSERT_OK_AND(result);
    ASSERT_EQ(result->trees.size(), rank == root ? 1u : 0u);
    if (rank == root) ExpectJoined(*result->Dict(), Joining::kStack, ranks(), size());
  });
}

TEST_P(CollectivesTest, ScatterInPlaceAndNew) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const int root = ranks() - 1;
    for (const bool differ : {false, true}) {
      for (const bool in_place : {false, true}) {
        std::vector<TreeArg> trees;
        if (rank == root) {
          for (int r = 0; r < ranks(); ++r) {
            trees.emplace_back(MakeTree(20 + r, size(), differ ? r : 0));
          }
        }
        const TensorDict mine = MakeTree(rank, size(), differ ? rank : 0);
        const auto result = Scatter(in_place ? std::optional<TreeArg>(mine) : std::nullopt, trees,
                                    GroupRank(root), group);
        ASSERT_OK_AND(result);
        const absl::StatusOr<TensorDict> got = result->Dict();
        ASSERT_OK_AND(got);
        EXPECT_EQ(got->IsSame(mine), in_place);
        ExpectTree(*got, 20 + rank, size(), differ ? rank : 0);
        if (!in_place) ExpectTree(mine, rank, size(), differ ? rank : 0);
      }
    }
  });
}

TEST_P(CollectivesTest, AllToAll) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    for (const bool differ : {false, true}) {
      std::vector<TreeArg> trees;
      for (int to = 0; to < ranks(); ++to) {
        // Rank 0 sends nothing to rank 1.
        const bool nothing = differ && rank == 0 && to == 1;
        trees.emplace_back(nothing ? TensorDict()
                                   : MakeTree(10 * rank + to, size(), differ ? to : 0));
      }
      const auto result = AllToAll(trees, group);
      ASSERT_OK_AND(result);
      const auto got = result->Dicts();
      ASSERT_OK_AND(got);
      ASSERT_EQ(got->size(), static_cast<size_t>(ranks()));
      for (int from = 0; from < ranks(); ++from) {
        const TensorDict& tree = (*got)[static_cast<size_t>(from)];
        if (differ && from == 0 && rank == 1) {
          EXPECT_EQ(tree.num_leaves(), 0u);
        } else {
          ExpectTree(tree, 10 * from + rank, size(), differ ? rank : 0);
        }
      }
    }
  });
}

TEST_P(CollectivesTest, Bytes) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const auto text = [&](int r) {
      if (r == 1) return std::string();
      return std::string(static_cast<size_t>(size() == Size::kSmall ? 100 : 300'000) + 17 *
                             static_cast<size_t>(r),
                         static_cast<char>('a' + r));
    };
    auto result = BroadcastBytes(rank == 0 ? text(0) : "ignored", GroupRank(0), group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(result->bytes, std::vector<std::string>{text(0)});
    result = AllGatherBytes(text(rank), group);
    ASSERT_OK_AND(result);
    std::vector<std::string> all;
    for (int r = 0; r < ranks(); ++r) all.push_back(text(r));
    EXPECT_EQ(result->bytes, all);
    result = GatherBytes(text(rank), GroupRank(0), group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(result->bytes, rank == 0 ? all : std::vector<std::string>());
    result = ScatterBytes(rank == 0 ? all : std::vector<std::string>(), GroupRank(0), group);
    ASSERT_OK_AND(result);
    EXPECT_EQ(result->bytes, std::vector<std::string>{text(rank)});
  });
}

TEST_P(CollectivesTest, Async) {
  WithGroup(ranks(), [&](const Group& group) {
    const int rank = group.rank().value();
    const TensorDict tree = MakeTree(rank, size());
    const auto broadcast = BroadcastAsync(tree, GroupRank(0), group);
    ASSERT_OK_AND(broadcast);
    // Trees that differ: what the ranks find out beside the agreement must not change the order.
    const auto gather = AllGatherAsync(MakeTree(rank, size(), rank), group);
    ASSERT_OK_AND(gather);
    const auto scatter = ScatterAsync(
        std::nullopt,
        rank == 0 ? std::vector<TreeArg>(static_cast<size_t>(ranks()), MakeTree(9, size()))
                  : std::vector<TreeArg>(),
        GroupRank(0), group);
    ASSERT_OK_AND(scatter);
    const absl::Status last = scatter->Wait();
    ASSERT_TRUE(last.ok()) << last;
    ASSERT_TRUE(broadcast->Wait().ok());
    ASSERT_TRUE(gather->Wait().ok());
    ExpectTree(tree, 0, size());
    EXPECT_TRUE(broadcast->result().Dict()->IsSame(tree));
    const auto trees = gather->result().Dicts();
    ASSERT_OK_AND(trees);
    for (int r = 0; r < ranks(); ++r) ExpectTree((*trees)[static_cast<size_t>(r)], r, size(), r);
    ExpectTree(*scatter->result().Dict(), 9, size());
  });
}

}  // namespace
}  // namespace leafpack
