// Sparse COO leaves in every collective: each rank has elements of its own, as many as it likes.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/core/testing/fake_backend.h"
#include "distributed/core/testing/ranks.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/reduce.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

using ::leafpack::testing::BitEqual;
using ::leafpack::testing::WithGroup;
using ::testing::HasSubstr;

// `seed` + 1 elements of [200, 3], one block of 3 numbers each; the first stands there twice.
at::Tensor Sparse(int seed) {
  std::vector<int64_t> rows = {seed};
  for (int k = 0; k <= seed; ++k) rows.push_back(10 * k + seed);
  const auto count = static_cast<int64_t>(rows.size());
  const at::Tensor values = at::arange(3 * count, at::kFloat).view({count, 3}).add(100 * seed);
  return at::sparse_coo_tensor(at::tensor(rows).unsqueeze(0), values, {200, 3});
}

// Two sparse leaves, one of them under two paths, beside dense ones of `elements`.
TensorDict MakeTree(int seed, int64_t elements = 5) {
  TensorDict tree;
  const at::Tensor leaf = Sparse(seed);
  EXPECT_TRUE(tree.Set({"s", "a"}, leaf).ok());
  EXPECT_TRUE(tree.Set({"s", "again"}, leaf).ok());
  EXPECT_TRUE(tree.Set("t", Sparse(seed + 1).coalesce()).ok());
  EXPECT_TRUE(tree.Set("x", at::full({elements}, seed, at::kFloat)).ok());
  return tree;
}

void ExpectLeaf(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_TRUE(got.is_sparse()) << what;
  EXPECT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_EQ(got.is_coalesced(), want.is_coalesced()) << what;
  ASSERT_EQ(got._nnz(), want._nnz()) << what;
  EXPECT_TRUE(at::equal(got._indices(), want._indices())) << what;
  EXPECT_TRUE(BitEqual(got._values(), want._values())) << what;
}

void ExpectTree(const TensorDict& tree, int seed, int64_t elements = 5) {
  const TensorDict want = MakeTree(seed, elements);
  ExpectLeaf(tree.Get({"s", "a"}).value(), want.Get({"s", "a"}).value(), "s.a");
  ExpectLeaf(tree.Get("t").value(), want.Get("t").value(), "t");
  EXPECT_TRUE(tree.Get({"s", "again"}).value().is_same(tree.Get({"s", "a"}).value()));
  EXPECT_TRUE(at::equal(tree.Get("x").value(), want.Get("x").value()));
}

TensorDict Dict(const ReceivedTree& tree) {
  absl::StatusOr<TensorDict> dict = tree.ToTensorDict();
  EXPECT_TRUE(dict.ok()) << dict.status();
  return *dict;
}

struct Case {
  int ranks;
  OnFailure on_failure;
  std::string backend;
};

class CollectivesSparseTest : public ::testing::TestWithParam<Case> {
 protected:
  static CallOptions Options() { return {.on_failure = GetParam().on_failure}; }
  static void Run(const std::function<void(const Group&)>& body) {
    testing::RegisterFakeBackend();
    WithGroup(GetParam().ranks, body,
              {.backend = GetParam().backend, .timeout = testing::kPatience});
  }
};

TEST_P(CollectivesSparseTest, Broadcast) {
  Run([](const Group& group) {
    const int rank = group.rank().value();
    for (int root = 0; root < group.size(); ++root) {
      // In place, then without a tree, then some with and some without; over plans that are there already.
      for (const int64_t elements : {5, 400'000}) {
        for (int round = 0; round < 3; ++round) {
          const TensorDict tree = MakeTree(rank + round, elements);
          const at::Tensor object = tree.Get({"s", "a"}).value();
          const bool has_tree = rank == root || round == 0 || (round == 2 && rank % 2 == 0);
          const auto got = Broadcast(has_tree ? std::optional<TreeArg>(tree) : std::nullopt,
                                     GroupRank(root), group, Options());
          ASSERT_TRUE(got.ok()) << got.status();
          ExpectTree(Dict(got->trees[0]), root + round, elements);
          if (has_tree) {
            ExpectTree(tree, root + round, elements);
            EXPECT_TRUE(tree.Get({"s", "a"}).value().is_same(object)) << "another tensor object";
          }
        }
      }
    }
  });
}

TEST_P(CollectivesSparseTest, Gathers) {
  Run([](const Group& group) {
    const int rank = group.rank().value();
    for (int round = 0; round < 2; ++round) {
      const TensorDict tree = MakeTree(rank + round);
      const auto all = AllGather(tree, group, Options());
      ASSERT_TRUE(all.ok()) << all.status();
      ASSERT_EQ(all->trees.size(), static_cast<size_t>(group.size()));
      for (int r = 0; r < group.size(); ++r) {
        ExpectTree(Dict(all->trees[static_cast<size_t>(r)]), r + round);
      }
      const int root = group.size() - 1;
      const auto some = Gather(tree, GroupRank(root), group, Options());
      ASSERT_TRUE(some.ok()) << some.status();
      ASSERT_EQ(some->trees.size(), static_cast<size_t>(rank == root ? group.size() : 0));
      for (size_t r = 0; r < some->trees.size(); ++r) {
        ExpectTree(Dict(some->trees[r]), static_cast<int>(r) + round);
      }
      // What is given stays, and the copy shares nothing with it.
      all->trees[static_cast<size_t>(rank)].flat.leaves[0]._values().zero_();
      ExpectTree(tree, rank + round);
    }
  });
}

// Layouts differ: one rank alone has sparse leaves.
TEST_P(CollectivesSparseTest, OneRankAloneHasThem) {
  Run([](const Group& group) {
    const int rank = group.rank().value();
    for (int odd = 0; odd < group.size(); ++odd) {
      TensorDict plain;
      ASSERT_TRUE(plain.Set("y", at::full({2}, rank, at::kInt)).ok());
      const auto all = AllGather(rank == odd ? MakeTree(3) : plain, group, Options());
      ASSERT_TRUE(all.ok()) << all.status();
      for (int r = 0; r < group.size(); ++r) {
        const TensorDict got = Dict(all->trees[static_cast<size_t>(r)]);
        if (r == odd) {
          ExpectTree(got, 3);
        } else {
          EXPECT_TRUE(at::equal(got.Get("y").value(), at::full({2}, r, at::kInt)));
        }
      }
    }
  });
}

TEST_P(CollectivesSparseTest, ScatterAndAllToAll) {
  Run([](const Group& group) {
    const int rank = group.rank().value();
    std::vector<TreeArg> trees;
    for (int to = 0; to < group.size(); ++to) trees.emplace_back(MakeTree(2 * rank + to));
    for (const bool in_place : {false, true}) {
      const TensorDict own = MakeTree(7);
      const auto got = Scatter(in_place ? std::optional<TreeArg>(own) : std::nullopt,
                               rank == 0 ? trees : std::vector<TreeArg>(), GroupRank(0), group,
                               Options());
      ASSERT_TRUE(got.ok()) << got.status();
      ExpectTree(Dict(got->trees[0]), rank);
      ExpectTree(own, in_place ? rank : 7);
    }
    const auto all = AllToAll(trees, group, Options());
    ASSERT_TRUE(all.ok()) << all.status();
    for (int from = 0; from < group.size(); ++from) {
      ExpectTree(Dict(all->trees[static_cast<size_t>(from)]), 2 * from + rank);
    }
  });
}

// The bits of an all-reduce; what gets no result is not touched.
TEST_P(CollectivesSparseTest, ReduceAndReduceScatter) {
  Run([](const Group& group) {
    const int rank = group.rank().value();
    for (const ReduceOpKind kind :
         {ReduceOpKind::kSum, ReduceOpKind::kAvg, ReduceOpKind::kPremulSum}) {
      // The fake backend's all-reduce, which gives the reference, does not do it.
      if (kind == ReduceOpKind::kPremulSum && GetParam().backend == "fake") continue;
      ReduceOptions options;
      options.op = kind == ReduceOpKind::kPremulSum ? ReduceOp::PremulSum(rank + 1) : ReduceOp{kind};
      options.on_failure = GetParam().on_failure;
      const auto reference = [&](int seed) {
        const TensorDict tree = MakeTree(seed, 50'000);
        AllReduceOptions all;
        all.op = options.op;
        EXPECT_TRUE(AllReduce(tree, group, all).ok());
        return tree;
      };
      const auto expect = [&](const TensorDict& tree, const TensorDict& want) {
        ExpectLeaf(tree.Get({"s", "a"}).value(), want.Get({"s", "a"}).value(), "s.a");
        ExpectLeaf(tree.Get("t").value(), want.Get("t").value(), "t");
        EXPECT_TRUE(BitEqual(tree.Get("x").value(), want.Get("x").value()));
      };
      for (int root = 0; root < group.size(); ++root) {
        const TensorDict want = reference(rank);
        const TensorDict tree = MakeTree(rank, 50'000);
        const absl::Status status = Reduce(tree, GroupRank(root), group, options);
        ASSERT_TRUE(status.ok()) << status;
        if (rank == root) {
          expect(tree, want);
        } else {
          ExpectTree(tree, rank, 50'000);
        }
      }
      std::vector<TensorDict> trees, wants;
      for (int i = 0; i < group.size(); ++i) {
        trees.push_back(MakeTree(rank + 2 * i, 50'000));
        wants.push_back(reference(rank + 2 * i));
      }
      const absl::Status status = ReduceScatter(trees, group, options);
      ASSERT_TRUE(status.ok()) << status;
      for (int i = 0; i < group.size(); ++i) {
        const auto index = static_cast<size_t>(i);
        if (i == rank) {
          expect(trees[index], wants[index]);
        } else {
          ExpectTree(trees[index], rank + 2 * i, 50'000);
        }
      }
    }
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* backend : {"gloo", "fake"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      cases.push_back({ranks, ranks % 2 == 0 ? OnFailure::kRestore : OnFailure::kReport, backend});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesSparseTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& tested) {
                           return absl::StrCat(tested.param.backend, tested.param.ranks);
                         });

// What cannot take them refuses before anything moves, on every rank alike.
TEST(CollectivesSparseRefusedTest, JoinedTreesAndOtherOps) {
  WithGroup(3, [](const Group& group) {
    const int rank = group.rank().value();
    const TensorDict tree = MakeTree(rank);
    const auto expect = [&](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_EQ(GetErrorDetails(status).path, "s.a") << status;
      EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kUnsupported) << status;
      EXPECT_TRUE(GetErrorDetails(status).tree_unchanged) << status;
    };
    for (const Joining joining : {Joining::kStack, Joining::kConcat}) {
      expect(AllGatherJoined(tree, joining, std::nullopt, group).status());
    }
    expect(GatherAndStack(tree, GroupRank(1), group).status());
    for (const ReduceOpKind kind : {ReduceOpKind::kMax, ReduceOpKind::kMin, ReduceOpKind::kProduct}) {
      ReduceOptions options;
      options.op = ReduceOp{kind};
      expect(Reduce(tree, GroupRank(2), group, options));
      AllReduceOptions all;
      all.op = ReduceOp{kind};
      expect(AllReduce(tree, group, all));
    }
    ExpectTree(tree, rank);
    EXPECT_TRUE(AllGather(tree, group).ok());
  });
}

// An index out of range, which torch takes unchecked, is found by the rank that has it.
TEST(CollectivesSparseRefusedTest, IndicesOutOfRange) {
  WithGroup(2, [](const Group& group) {
    const int rank = group.rank().value();
    for (const int64_t index : {int64_t{-1}, int64_t{200}}) {
      const at::Tensor bad = at::_sparse_coo_tensor_unsafe(
          at::tensor({index}).unsqueeze(0), at::ones({1, 3}), {200, 3});
      TensorDict tree = MakeTree(rank);
      if (rank == 1) {
        ASSERT_TRUE(tree.Set("t", bad).ok());
      }
      const absl::Status status = AllGather(tree, group).status();
      EXPECT_EQ(status.code(), rank == 1 ? absl::StatusCode::kInvalidArgument
                                         : absl::StatusCode::kFailedPrecondition)
          << status;
      EXPECT_EQ(GetErrorDetails(status).path, rank == 1 ? "t" : "");
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("index ", index, " in dimension 0 of size 200")));
    }
    EXPECT_TRUE(AllGather(MakeTree(rank), group).ok());
  });
}

// A tree to be written whose leaf is dense, or sparse in other dimensions, is no match; nothing moves.
TEST(CollectivesSparseRefusedTest, ABroadcastIntoAnotherKindOfLeaf) {
  WithGroup(3, [](const Group& group) {
    const int rank = group.rank().value();
    for (const at::Tensor& other : {at::zeros({200, 3}), at::zeros({200, 3}).to_sparse()}) {
      TensorDict tree = MakeTree(rank);
      if (rank == 2) {
        ASSERT_TRUE(tree.Set("t", other).ok());
      }
      const absl::Status status = Broadcast(TreeArg(tree), GroupRank(0), group).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_EQ(GetErrorDetails(status).path, "t") << status;
      if (rank == 1) ExpectTree(tree, rank);
    }
  });
}

TEST(CollectivesSparseFailureTest, AFailureInDataIsTold) {
  testing::RegisterFakeBackend();
  for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
    WithGroup(
        2,
        [&](const Group& group) {
          const int rank = group.rank().value();
          const auto broadcast = [&](const TensorDict& tree) {
            return Broadcast(TreeArg(tree), GroupRank(0), group, {.on_failure = on_failure}).status();
          };
          for (int round = 0; round < 4; ++round) {
            const TensorDict tree = MakeTree(rank);
            if (rank == round % 2) testing::Faults(group).fail_next_op = true;
            const absl::Status status = broadcast(tree);
            // Without a completion round the root may have sent all before the other failed.
            EXPECT_FALSE(status.ok() && (on_failure == OnFailure::kRestore || rank == round % 2));
            EXPECT_TRUE(GetErrorDetails(status).tree_unchanged) << status;
            ExpectTree(tree, rank);
            absl::Status next = broadcast(tree);
            if (!next.ok()) {
              // Then it refuses its next call, so that its user is told.
              EXPECT_EQ(on_failure, OnFailure::kReport) << next;
              EXPECT_EQ(GetErrorDetails(next).kind, ErrorKind::kPeerRefused) << next;
              EXPECT_THAT(std::string(next.message()), HasSubstr("failed on rank")) << next;
              next = broadcast(tree);
            }
            EXPECT_TRUE(next.ok()) << next;
            ExpectTree(tree, 0);
          }
        },
        {.backend = "fake", .timeout = testing::kPatience});
  }
}

}  // namespace
}  // namespace leafpack
