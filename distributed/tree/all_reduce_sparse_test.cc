// Sparse COO leaves in an all-reduce (others: collectives_sparse_test.cc): held against the dense leaves of the same values.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/core/testing/ranks.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/reduce.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

using ::leafpack::testing::BitEqual;
using ::leafpack::testing::Element;
using ::leafpack::testing::WithGroup;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

ReduceOp OpOfRank(ReduceOpKind kind, int rank) {
  return kind == ReduceOpKind::kPremulSum ? ReduceOp::PremulSum(rank + 1) : ReduceOp{kind};
}

// A leaf of `rows` x `columns` sparse positions, each a block of `block` elements (0: a number). Rank r
// has rows of its own, as many as r says, and each of them twice if `twice`.
at::Tensor MakeSparse(const std::string& name, at::ScalarType dtype, int64_t rows, int64_t columns,
                      int64_t block, int rank, bool twice) {
  std::vector<int64_t> row, column;
  for (int64_t j = 0; j < rows * columns; ++j) {
    // Rank 2 has none; the others have different ones.
    if (rank % 3 == 2 || Element(name, rank + 50, j) != 1) continue;
    for (int i = 0; i < (twice ? 2 : 1); ++i) {
      row.push_back(j / columns);
      column.push_back(j % columns);
    }
  }
  const auto count = static_cast<int64_t>(row.size());
  at::Tensor indices = at::empty({2, count}, at::kLong);
  for (int64_t k = 0; k < count; ++k) {
    // Out of order, so that they must be sorted.
    indices[0][count - 1 - k] = row[static_cast<size_t>(k)];
    indices[1][count - 1 - k] = column[static_cast<size_t>(k)];
  }
  std::vector<int64_t> sizes = {rows, columns}, value_sizes = {count};
  if (block > 0) {
    sizes.push_back(block);
    value_sizes.push_back(block);
  }
  return at::sparse_coo_tensor(indices, testing::MakeLeaf(name, dtype, value_sizes, rank), sizes);
}

class SparseRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SparseRanks, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

TEST_P(SparseRanks, GivesTheBitsOfTheDenseLeaf) {
  const int ranks = GetParam();
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    for (const ReduceOpKind op :
         {ReduceOpKind::kSum, ReduceOpKind::kAvg, ReduceOpKind::kPremulSum}) {
      for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
        TensorDict sparse, dense;
        std::vector<at::Tensor> objects;
        std::vector<std::string> names;
        for (const at::ScalarType dtype :
             {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
          for (const int64_t block : {0, 3}) {
            names.push_back(absl::StrCat(c10::toString(dtype), block));
            const at::Tensor leaf = MakeSparse(names.back(), dtype, 7, 11, block, rank, block == 3);
            objects.push_back(leaf);
            LEAFPACK_ASSERT_OK(sparse.Set({"s", names.back()}, leaf));
            LEAFPACK_ASSERT_OK(dense.Set(names.back(), leaf.to_dense()));
          }
        }
        LEAFPACK_ASSERT_OK(sparse.Set("x", at::ones({50'000})));
        const AllReduceOptions options = {.op = OpOfRank(op, rank), .on_failure = on_failure};
        LEAFPACK_ASSERT_OK(AllReduce(sparse, group, options));
        LEAFPACK_ASSERT_OK(AllReduce(dense, group, options));
        for (size_t i = 0; i < names.size(); ++i) {
          const at::Tensor leaf = sparse.Get({"s", names[i]}).value();
          EXPECT_TRUE(leaf.is_same(objects[i])) << "another tensor object";
          if (ranks > 1) {
            EXPECT_TRUE(leaf.is_coalesced());
          }
          EXPECT_TRUE(BitEqual(leaf.to_dense(), dense.Get(names[i]).value()))
              << ReduceOpName(op) << " of " << names[i];
        }
      }
    }
  });
}

// The indices are the union of the ranks', the values known in closed form.
TEST_P(SparseRanks, IndicesAreTheUnion) {
  const int ranks = GetParam();
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    const at::Tensor leaf = at::sparse_coo_tensor(
        at::tensor({int64_t{0}, int64_t{10} + rank}).unsqueeze(0), at::ones({2}), {1000});
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("s", leaf));
    LEAFPACK_ASSERT_OK(tree.Set("again", leaf));  // reduced once
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    ASSERT_EQ(leaf._nnz(), ranks == 1 ? 2 : ranks + 1);
    EXPECT_EQ(leaf._values()[0].item<double>(), ranks);
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(leaf._indices()[0][r + 1].item<int64_t>(), 10 + r);
      EXPECT_EQ(leaf._values()[r + 1].item<double>(), 1);
    }
    // The sum of the sums, over a plan that is here already.
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(leaf._values()[0].item<double>(), ranks * ranks);
  });
}

TEST_P(SparseRanks, LargeLeavesAndAsynchronousCalls) {
  const int ranks = GetParam();
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    constexpr int64_t kRows = 30'000;
    std::vector<at::Tensor> leaves;
    std::vector<TreeWork> works;
    for (int i = 0; i < 3; ++i) {
      // Rank r has every (r + 1)th row.
      std::vector<int64_t> rows;
      for (int64_t row = 0; row < kRows; row += rank + 1) rows.push_back(row);
      const auto count = static_cast<int64_t>(rows.size());
      leaves.push_back(at::sparse_coo_tensor(at::tensor(rows).unsqueeze(0),
                                             at::ones({count, 16}), {kRows, 16}));
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("embedding", leaves.back()));
      LEAFPACK_ASSERT_OK(tree.Set("x", at::ones({100'000})));
      absl::StatusOr<TreeWork> work = AllReduceAsync(tree, group);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    for (TreeWork& work : works) LEAFPACK_ASSERT_OK(work.Wait());
    double want = 0;
    for (int r = 0; r < ranks; ++r) want += 16.0 * static_cast<double>((kRows + r) / (r + 1));
    for (const at::Tensor& leaf : leaves) {
      EXPECT_EQ(leaf._values().sum().item<double>(), want);
      EXPECT_EQ(leaf._nnz(), kRows);
    }
  });
}

TEST(SparseTest, EmptyLeavesAndEmptyBlocks) {
  WithGroup(3, [](const Group& group) {
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("none", at::sparse_coo_tensor({5, 2}, at::kFloat)));
    LEAFPACK_ASSERT_OK(tree.Set(
        "hollow", at::sparse_coo_tensor(at::tensor({int64_t{group.rank().value()}}).unsqueeze(0),
                                        at::zeros({1, 0}), {3, 0})));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(tree.Get("none").value()._nnz(), 0);
    EXPECT_EQ(tree.Get("hollow").value()._nnz(), 3);
  });
}

TEST(SparseTest, RanksMustAgreeOnAllButTheElements) {
  WithGroup(2, [](const Group& group) {
    const int rank = group.rank().value();
    const auto call = [&](const at::Tensor& first, const at::Tensor& second) {
      TensorDict tree;
      EXPECT_TRUE(tree.Set("s", rank == 0 ? first : second).ok());
      const absl::Status status = AllReduce(tree, group);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_EQ(GetErrorDetails(status).path, "s");
    };
    const auto sparse = [](c10::IntArrayRef sizes, at::ScalarType dtype) {
      return at::sparse_coo_tensor(sizes, dtype);
    };
    call(sparse({4, 3}, at::kFloat), at::zeros({4, 3}));
    call(sparse({4, 3}, at::kFloat), sparse({4, 4}, at::kFloat));
    call(sparse({4, 3}, at::kFloat), sparse({4, 3}, at::kDouble));
    call(sparse({4, 3}, at::kFloat), at::zeros({4, 3}).to_sparse(1));
  });
}

TEST(SparseTest, WhatCannotBeReducedIsRefusedByPath) {
  WithGroup(2, [](const Group& group) {
    const int rank = group.rank().value();
    const at::Tensor leaf = at::ones({3}).to_sparse();
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("s", leaf));
    std::vector<TensorDict> trees(2);
    LEAFPACK_ASSERT_OK(trees[1].Set("s", leaf));
    const auto expect = [](const absl::Status& status, const char* path) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_EQ(GetErrorDetails(status).path, path) << status;
      EXPECT_EQ(static_cast<int>(GetErrorDetails(status).kind),
                static_cast<int>(ErrorKind::kUnsupported));
    };
    expect(AllReduce(tree, group, {.op = ReduceOp::kMax}), "s");
    expect(Reduce(tree, GroupRank(0), group, {.op = ReduceOp::kMin}), "s");
    expect(ReduceScatter(trees, group, {.op = ReduceOp::kProduct}), "[1].s");
    // An index that is out of range, which torch takes unchecked.
    TensorDict wrong;
    LEAFPACK_ASSERT_OK(wrong.Set("s", at::_sparse_coo_tensor_unsafe(
                                          at::tensor({int64_t{7}}).unsqueeze(0), at::ones({1}), {3})));
    const absl::Status status = AllReduce(rank == 0 ? wrong : tree, group);
    EXPECT_EQ(status.code(), rank == 0 ? absl::StatusCode::kInvalidArgument
                                       : absl::StatusCode::kFailedPrecondition)
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("index 7 in dimension 0 of size 3"));
    EXPECT_EQ(leaf._values().sum().item<double>(), 3);
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(leaf._values().sum().item<double>(), 6);
  });
}

TEST(SparseTest, GradientsMayBeDetachedAndVersionsAreBumped) {
  WithGroup(2, [](const Group& group) {
    const at::Tensor leaf = at::ones({3}).to_sparse().detach();
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("s", leaf));
    const auto before = leaf._version();
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(leaf._version(), before + 1);
    EXPECT_EQ(leaf._values().sum().item<double>(), 6);
  });
}

// An operation that fails, the first of the sparse leaf or a later one, leaves what the error says.
TEST(SparseTest, AFailureInDataIsTold) {
  testing::RegisterFakeBackend();
  for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
    WithGroup(
        2,
        [&](const Group& group) {
          for (int round = 0; round < 4; ++round) {
            const at::Tensor s = at::ones({3}).to_sparse(), x = at::ones({50'000});
            TensorDict tree;
            LEAFPACK_ASSERT_OK(tree.Set("s", s));
            LEAFPACK_ASSERT_OK(tree.Set("x", x));
            if (group.rank().value() == round % 2) testing::Faults(group).fail_next_op = true;
            const absl::Status status = AllReduce(tree, group, {.on_failure = on_failure});
            EXPECT_FALSE(status.ok());
            EXPECT_TRUE(GetErrorDetails(status).tree_unchanged) << status;
            EXPECT_EQ(s._values().sum().item<double>(), 3);
            EXPECT_EQ(x.sum().item<double>(), 50'000);
            LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.on_failure = on_failure}));
            EXPECT_EQ(s._values().sum().item<double>(), 6);
            EXPECT_EQ(x.sum().item<double>(), 100'000);
          }
        },
        {.backend = "fake", .timeout = testing::kPatience});
  }
}

}  // namespace
}  // namespace leafpack
