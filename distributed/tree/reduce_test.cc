// Reduce and ReduceScatter on ranks as threads: every dtype and op, layouts, and what is refused.
#include "distributed/tree/reduce.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

using ::leafpack::testing::AllDtypes;
using ::leafpack::testing::AllOps;
using ::leafpack::testing::BitEqual;
using ::leafpack::testing::Expected;
using ::leafpack::testing::FakeFaults;
using ::leafpack::testing::MakeLeaf;
using ::leafpack::testing::WithGroup;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct NamedBucketing {
  const char* name;
  Bucketing bucketing;
};

const NamedBucketing kBucketings[] = {
    {"Auto", Bucketing::Auto()},
    {"PerLeaf", Bucketing::PerLeaf()},
    {"MaxBytes", Bucketing::MaxBytes(100'000)},
};

ReduceOp OpOfRank(ReduceOpKind kind, int rank) {
  return kind == ReduceOpKind::kPremulSum ? ReduceOp::PremulSum(rank + 1) : ReduceOp{kind};
}

struct Leaf {
  std::string path;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
};

// The leaves of a tree, `salt` for another one.
std::vector<Leaf> MatrixLeaves(ReduceOpKind op, bool large, int salt = 0) {
  const std::vector<std::vector<int64_t>> shapes = {
      {3}, {2, 5}, {}, {0, 4}, {large ? 7'000 : 7}, {large ? 13'000 + salt : 11}};
  std::vector<Leaf> leaves;
  for (const at::ScalarType dtype : AllDtypes()) {
    if (!CheckOpAllowed(op, dtype).ok()) continue;
    for (size_t i = static_cast<size_t>(salt % 2); i < shapes.size(); ++i) {
      leaves.push_back({absl::StrCat(c10::toString(dtype), i, "x", salt), dtype, shapes[i]});
    }
  }
  return leaves;
}

TensorDict MakeTree(const std::vector<Leaf>& leaves, int rank) {
  TensorDict tree;
  for (const Leaf& leaf : leaves) {
    EXPECT_TRUE(tree.Set({"tree", leaf.path}, MakeLeaf(leaf.path, leaf.dtype, leaf.sizes, rank)).ok());
  }
  return tree;
}

void ExpectReduced(const TensorDict& tree, const std::vector<Leaf>& leaves, int ranks,
                   ReduceOpKind op) {
  for (const Leaf& leaf : leaves) {
    EXPECT_TRUE(BitEqual(tree.Get({"tree", leaf.path}).value(),
                         Expected(leaf.path, leaf.dtype, leaf.sizes, ranks, op)))
        << ReduceOpName(op) << " of " << leaf.path;
  }
}

void ExpectOwn(const TensorDict& tree, const std::vector<Leaf>& leaves, int rank) {
  for (const Leaf& leaf : leaves) {
    EXPECT_TRUE(BitEqual(tree.Get({"tree", leaf.path}).value(),
                         MakeLeaf(leaf.path, leaf.dtype, leaf.sizes, rank)))
        << leaf.path << " was written";
  }
}

class ReduceMatrix : public ::testing::TestWithParam<std::tuple<int, NamedBucketing, bool>> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks, ReduceMatrix,
    ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(kBucketings),
                       ::testing::Bool()),
    [](const auto& param) {
      return absl::StrCat(std::get<0>(param.param), "ranks", std::get<1>(param.param).name,
                          std::get<2>(param.param) ? "Messages" : "Frame");
    });

TEST_P(ReduceMatrix, EveryDtypeAndOpToTheRootAlone) {
  const auto [ranks, bucketing, large] = GetParam();
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    int root = 0;
    for (const ReduceOpKind op : AllOps()) {
      root = (root + 1) % ranks;
      const std::vector<Leaf> leaves = MatrixLeaves(op, large);
      const TensorDict tree = MakeTree(leaves, rank);
      LEAFPACK_ASSERT_OK(Reduce(tree, GroupRank(root), group,
                                {.op = OpOfRank(op, rank), .bucketing = bucketing.bucketing}));
      if (rank == root) {
        ExpectReduced(tree, leaves, ranks, op);
      } else {
        ExpectOwn(tree, leaves, rank);
      }
    }
  });
}

TEST_P(ReduceMatrix, EveryDtypeAndOpScattered) {
  const auto [ranks, bucketing, large] = GetParam();
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    for (const ReduceOpKind op : AllOps()) {
      std::vector<std::vector<Leaf>> leaves;
      std::vector<TensorDict> trees;
      for (int to = 0; to < ranks; ++to) {
        leaves.push_back(MatrixLeaves(op, large, to));
        trees.push_back(MakeTree(leaves.back(), rank));
      }
      LEAFPACK_ASSERT_OK(ReduceScatter(
          trees, group, {.op = OpOfRank(op, rank), .bucketing = bucketing.bucketing}));
      for (int to = 0; to < ranks; ++to) {
        const auto i = static_cast<size_t>(to);
        if (to == rank) {
          ExpectReduced(trees[i], leaves[i], ranks, op);
        } else {
          ExpectOwn(trees[i], leaves[i], rank);
        }
      }
    }
  });
}

class ReduceRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ReduceRanks, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

// Leaves of many rounds beside small ones, strided on some ranks, and little room for packed bytes.
std::vector<Leaf> LargeLeaves(int salt) {
  std::vector<Leaf> leaves = {{"big", at::kFloat, {1'200'007 + salt}},
                              {"half", at::kHalf, {1'500'001}},
                              {"table", at::kFloat, {1000, 900}},
                              {"tail", at::kDouble, {5}}};
  for (int i = 0; i < 40; ++i) {
    leaves.push_back({absl::StrCat("small", i), at::kFloat, {1000 + 7 * i}});
  }
  return leaves;
}

TensorDict MakeLargeTree(const std::vector<Leaf>& leaves, int rank, bool strided) {
  TensorDict tree;
  for (const Leaf& leaf : leaves) {
    at::Tensor values = MakeLeaf(leaf.path, leaf.dtype, leaf.sizes, rank);
    if (strided) {
      at::Tensor twice = at::zeros({values.numel(), 2}, values.options());
      at::Tensor column = twice.select(1, 0);
      column.copy_(values.reshape({-1}));
      values = column.view(leaf.sizes);
    }
    EXPECT_TRUE(tree.Set({"tree", leaf.path}, values).ok());
  }
  return tree;
}

TEST_P(ReduceRanks, LargeTreesInEveryMode) {
  const int ranks = GetParam();
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    int round = 0;
    for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
      for (const int64_t in_flight : {int64_t{1}, int64_t{3} << 20, int64_t{64} << 20}) {
        const int root = ++round % ranks;
        const bool strided = round % 2 == 1 && rank % 2 == 0;
        const ReduceOptions options = {.op = ReduceOp::kAvg,
                                       .on_failure = on_failure,
                                       .max_in_flight_bytes = in_flight};
        const std::vector<Leaf> leaves = LargeLeaves(0);
        const TensorDict tree = MakeLargeTree(leaves, rank, strided);
        LEAFPACK_ASSERT_OK(Reduce(tree, GroupRank(root), group, options));
        if (rank == root) {
          ExpectReduced(tree, leaves, ranks, ReduceOpKind::kAvg);
        } else {
          ExpectOwn(tree, leaves, rank);
        }
        std::vector<std::vector<Leaf>> parts;
        std::vector<TensorDict> trees;
        for (int to = 0; to < ranks; ++to) {
          parts.push_back(to == 1 ? std::vector<Leaf>{{"only", at::kLong, {3}}} : LargeLeaves(to));
          trees.push_back(MakeLargeTree(parts.back(), rank, strided));
        }
        ReduceOptions sum = options;
        sum.op = ReduceOp::kSum;
        LEAFPACK_ASSERT_OK(ReduceScatter(trees, group, sum));
        for (int to = 0; to < ranks; ++to) {
          const auto i = static_cast<size_t>(to);
          if (to == rank) {
            ExpectReduced(trees[i], parts[i], ranks, ReduceOpKind::kSum);
          } else {
            ExpectOwn(trees[i], parts[i], rank);
          }
        }
      }
    }
  });
}

// Between the elements of strided leaves nothing is touched, and a shared region is reduced once.
TEST_P(ReduceRanks, ALeafKeepsToItself) {
  const int ranks = GetParam();
  for (const int64_t numel : {10, 60'000}) {
    WithGroup(ranks, [&](const Group& group) {
      const int rank = group.rank().value();
      at::Tensor pairs = at::ones({numel, 2});
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("column", pairs.select(1, 0)));
      at::Tensor shared = at::ones({numel});
      LEAFPACK_ASSERT_OK(tree.Set("a", shared));
      LEAFPACK_ASSERT_OK(tree.Set("b", shared));
      LEAFPACK_ASSERT_OK(Reduce(tree, GroupRank(0), group));
      const double want = rank == 0 ? ranks : 1;
      EXPECT_EQ(pairs.select(1, 0).sum().item<double>(), want * static_cast<double>(numel));
      EXPECT_EQ(pairs.select(1, 1).sum().item<double>(), static_cast<double>(numel));
      EXPECT_EQ(shared.sum().item<double>(), want * static_cast<double>(numel));
    });
  }
}

TEST_P(ReduceRanks, AsynchronousCallsInFlightTogether) {
  const int ranks = GetParam();
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    constexpr int kCalls = 6;
    std::vector<at::Tensor> leaves;
    std::vector<TreeWork> works;
    const auto add = [&](TensorDict& tree, const char* name) {
      leaves.push_back(at::ones({works.size() % 2 == 0 ? 200'000 : 50}));
      EXPECT_TRUE(tree.Set(name, leaves.back()).ok());
    };
    for (int i = 0; i < kCalls; ++i) {
      TensorDict tree;
      absl::StatusOr<TreeWork> work = absl::UnknownError("");
      if (i % 3 == 0) {
        add(tree, "x");
        work = ReduceAsync(tree, GroupRank(i % ranks), group);
      } else if (i % 3 == 1) {
        add(tree, "x");
        work = AllReduceAsync(tree, group);
      } else {
        std::vector<TensorDict> trees(static_cast<size_t>(ranks));
        for (TensorDict& part : trees) add(part, "x");
        work = ReduceScatterAsync(trees, group);
      }
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    for (size_t i = works.size(); i-- > 0;) LEAFPACK_ASSERT_OK(works[i].Wait());
    size_t at = 0;
    const auto expect = [&](bool reduced) {
      const at::Tensor& leaf = leaves[at++];
      EXPECT_EQ(leaf.sum().item<double>(),
                (reduced ? ranks : 1) * static_cast<double>(leaf.numel()))
          << "leaf " << at - 1;
    };
    for (int i = 0; i < kCalls; ++i) {
      if (i % 3 == 2) {
        for (int to = 0; to < ranks; ++to) expect(to == rank);
      } else {
        expect(i % 3 == 1 || rank == i % ranks);
      }
    }
  });
}

// A rank sends each byte of its input once at most, and for the root what it reduced once more.
TEST_P(ReduceRanks, NoMoreBytesAreSentThanMustBe) {
  const int ranks = GetParam();
  testing::RegisterFakeBackend();
  WithGroup(
      ranks,
      [&](const Group& group) {
        const int rank = group.rank().value();
        constexpr int64_t kNumel = 1'200'000, kBytes = kNumel * 4;
        std::atomic<int64_t>& sent = testing::Faults(group).exchanged_bytes;
        TensorDict tree;
        LEAFPACK_ASSERT_OK(tree.Set("x", at::ones({kNumel})));
        LEAFPACK_ASSERT_OK(Reduce(tree, GroupRank(0), group));
        const int64_t others = kBytes / ranks * (ranks - 1), slack = 64;
        const int64_t reduced = sent.exchange(0);
        if (rank == 0) {
          EXPECT_LE(reduced, ranks == 2 ? 0 : others + slack);
        } else {
          EXPECT_LE(reduced, kBytes + slack);
          EXPECT_GE(reduced, others);
        }
        std::vector<TensorDict> trees(static_cast<size_t>(ranks));
        for (TensorDict& part : trees) {
          LEAFPACK_ASSERT_OK(part.Set("x", at::ones({kNumel / ranks})));
        }
        LEAFPACK_ASSERT_OK(ReduceScatter(trees, group));
        EXPECT_EQ(sent, kNumel / ranks * 4 * (ranks - 1));
      },
      {.backend = "fake", .timeout = testing::kPatience});
}

TEST(ReduceTest, TheRootIsAGroupRankOrAGlobalRank) {
  testing::RegisterFakeBackend();
  std::vector<Group> groups =
      testing::MakeGroups(2, testing::kPatience, {GlobalRank(7), GlobalRank(3)}, "gloo");
  testing::OnRanks(groups, [](int rank, Group& group) {
    TensorDict tree;
    at::Tensor x = at::ones({100'000});
    LEAFPACK_ASSERT_OK(tree.Set("x", x));
    LEAFPACK_ASSERT_OK(Reduce(tree, GlobalRank(3), group));
    EXPECT_EQ(x[0].item<double>(), rank == 1 ? 2 : 1);
    LEAFPACK_ASSERT_OK(Reduce(tree, GroupRank(0), group));
    EXPECT_EQ(x[0].item<double>(), rank == 0 ? 3 : 2);
    // The same rank by either name.
    LEAFPACK_ASSERT_OK(rank == 0 ? Reduce(tree, GlobalRank(7), group)
                                 : Reduce(tree, GroupRank(0), group));
    EXPECT_EQ(Reduce(tree, GlobalRank(0), group).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Reduce(tree, GroupRank(2), group).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Reduce(tree, GroupRank(-1), group).code(), absl::StatusCode::kInvalidArgument);
  });
}

TEST(ReduceTest, DisagreementsAreErrorsAndNothingHasChanged) {
  for (const int64_t numel : {5, 50'000}) {
    WithGroup(3, [&](const Group& group) {
      const int rank = group.rank().value();
      TensorDict tree, longer;
      at::Tensor x = at::ones({numel}), y = at::ones({numel + 1});
      LEAFPACK_ASSERT_OK(tree.Set("x", x));
      LEAFPACK_ASSERT_OK(longer.Set("x", y));
      const auto expect = [](const absl::Status& status, const char* text) {
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(text));
      };
      expect(Reduce(tree, GroupRank(rank == 1 ? 1 : 0), group), "root");
      expect(Reduce(tree, GroupRank(0), group, {.op = rank == 2 ? ReduceOp::kMax : ReduceOp::kSum}),
             "op");
      expect(Reduce(tree, GroupRank(0), group, {.max_in_flight_bytes = 1000 + rank}),
             "max_in_flight_bytes");
      expect(rank == 0 ? AllReduce(tree, group) : Reduce(tree, GroupRank(0), group), "all_reduce");
      expect(Reduce(rank == 0 ? longer : tree, GroupRank(0), group), "x");
      const std::vector<TensorDict> trees = {tree, rank == 2 ? TensorDict() : longer, TensorDict()};
      expect(ReduceScatter(trees, group), "[1].x");
      EXPECT_EQ(x.sum().item<double>(), static_cast<double>(numel));
      EXPECT_EQ(y.sum().item<double>(), static_cast<double>(numel + 1));
      LEAFPACK_ASSERT_OK(Reduce(tree, GroupRank(0), group));
      EXPECT_EQ(x[0].item<double>(), rank == 0 ? 3 : 1);
    });
  }
}

TEST(ReduceTest, WhatARankFindsWrongIsToldToTheOthers) {
  WithGroup(2, [&](const Group& group) {
    const int rank = group.rank().value();
    const auto expect = [&](const absl::Status& status, absl::StatusCode code, const char* text) {
      EXPECT_EQ(status.code(), rank == 0 ? code : absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    };
    TensorDict good, expanded, undefined;
    LEAFPACK_ASSERT_OK(good.Set("x", at::ones({4})));
    LEAFPACK_ASSERT_OK(expanded.Set("x", at::ones({1}).expand({4})));
    const auto invalid = absl::StatusCode::kInvalidArgument;
    expect(Reduce(rank == 0 ? expanded : good, GroupRank(0), group), invalid, "x");
    expect(Reduce(good, GroupRank(rank == 0 ? 5 : 0), group), invalid, "5");
    const std::vector<TensorDict> one = {good};
    TensorDict other;
    LEAFPACK_ASSERT_OK(other.Set("x", at::ones({4})));
    const std::vector<TensorDict> two = {good, other}, same = {good, good};
    expect(ReduceScatter(rank == 0 ? one : two, group), invalid, "one tree for each of the 2 ranks");
    expect(ReduceScatter(rank == 0 ? same : two, group), invalid, "must not share memory");
    // A leaf with a grad_fn is no good where it would be written only.
    TensorDict recorded;
    LEAFPACK_ASSERT_OK(recorded.Set("x", at::ones({4}).requires_grad_().mul(2)));
    expect(Reduce(rank == 0 ? recorded : good, GroupRank(0), group), invalid, "grad_fn");
    LEAFPACK_ASSERT_OK(Reduce(rank == 0 ? recorded : good, GroupRank(1), group));
    EXPECT_EQ(good.Get("x").value()[0].item<double>(), rank == 1 ? 3 : 1);
  });
}

TEST(ReduceTest, BadOptionsAreRefused) {
  WithGroup(2, [](const Group& group) {
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("a", at::ones({4})));
    const std::vector<ReduceOptions> bad = {
        {.bucketing = Bucketing::MaxBytes(0)},
        {.timeout = absl::ZeroDuration()},
        {.name = std::string(257, 'n')},
        {.max_in_flight_bytes = 0},
    };
    for (const ReduceOptions& options : bad) {
      EXPECT_EQ(Reduce(tree, GroupRank(0), group, options).code(),
                absl::StatusCode::kInvalidArgument);
    }
    TensorDict bits;
    LEAFPACK_ASSERT_OK(bits.Set("mask", at::ones({4})));
    const absl::Status status = Reduce(bits, GroupRank(0), group, {.op = ReduceOp::kBand});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(GetErrorDetails(status).path, "mask");
  });
}

TEST(ReduceTest, VersionCountersAreBumpedWhereLeavesAreWritten) {
  for (const int64_t numel : {4, 60'000}) {
    WithGroup(2, [&](const Group& group) {
      const int rank = group.rank().value();
      std::vector<TensorDict> trees(2);
      std::vector<at::Tensor> leaves = {at::ones({numel}), at::ones({numel})};
      for (size_t i = 0; i < 2; ++i) LEAFPACK_ASSERT_OK(trees[i].Set("x", leaves[i]));
      const int64_t before[] = {leaves[0]._version(), leaves[1]._version()};
      LEAFPACK_ASSERT_OK(Reduce(trees[0], GroupRank(1), group));
      EXPECT_EQ(leaves[0]._version(), before[0] + (rank == 1 ? 1 : 0));
      LEAFPACK_ASSERT_OK(ReduceScatter(trees, group));
      EXPECT_EQ(leaves[1]._version(), before[1] + (rank == 1 ? 1 : 0));
    });
  }
}

// An operation that fails, or never ends, on one rank: what takes no result is as it was, with restore
// everything is. A rank that was through before the failure is told by its next call; then calls succeed.
TEST_P(ReduceRanks, AFailureInDataIsTold) {
  const int ranks = GetParam();
  if (ranks == 1) GTEST_SKIP() << "alone there is no data phase";
  testing::RegisterFakeBackend();
  for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
    WithGroup(
        ranks,
        [&](const Group& group) {
          const int rank = group.rank().value();
          for (int round = 0; round < 2 * ranks; ++round) {
            const bool scatter = round % 2 == 1;
            const int faulty = round / 2;
            std::vector<TensorDict> trees(static_cast<size_t>(scatter ? ranks : 1));
            std::vector<at::Tensor> leaves;
            for (TensorDict& tree : trees) {
              leaves.push_back(at::ones({150'000}));
              LEAFPACK_ASSERT_OK(tree.Set("x", leaves.back()));
            }
            const auto call = [&](absl::Duration timeout) {
              const ReduceOptions options = {.timeout = timeout, .on_failure = on_failure};
              return scatter ? ReduceScatter(trees, group, options)
                             : Reduce(trees[0], GroupRank(0), group, options);
            };
            FakeFaults& faults = testing::Faults(group);
            if (rank == faulty) (round % 4 < 2 ? faults.fail_next_op : faults.stall_next_op) = true;
            const absl::Status status = call(round % 4 < 2 ? testing::kPatience : absl::Seconds(2));
            const bool restore = on_failure == OnFailure::kRestore;
            EXPECT_FALSE(status.ok() && (rank == faulty || restore));
            for (size_t i = 0; i < leaves.size(); ++i) {
              const bool written = scatter ? static_cast<int>(i) == rank : rank == 0;
              if (written && !restore && (status.ok() || !GetErrorDetails(status).tree_unchanged)) {
                leaves[i].fill_(1);
              }
              EXPECT_EQ(leaves[i].sum().item<double>(), 150'000) << status;
            }
            absl::Status next = call(testing::kPatience);
            if (absl::IsFailedPrecondition(next)) next = call(testing::kPatience);
            LEAFPACK_ASSERT_OK(next);
            for (size_t i = 0; i < leaves.size(); ++i) {
              const bool written = scatter ? static_cast<int>(i) == rank : rank == 0;
              EXPECT_EQ(leaves[i].sum().item<double>(), written ? 150'000.0 * ranks : 150'000.0);
            }
          }
        },
        {.backend = "fake", .timeout = testing::kPatience});
  }
}

TEST(ReduceTest, FiltersChooseLeaves) {
  WithGroup(2, [](const Group& group) {
    const int rank = group.rank().value();
    std::vector<TensorDict> trees(2);
    for (TensorDict& tree : trees) {
      LEAFPACK_ASSERT_OK(tree.Set("count", at::ones({3}, at::kLong)));
      LEAFPACK_ASSERT_OK(tree.Set("x", at::ones({30'000})));
    }
    const ReduceOptions options = {.op = ReduceOp::kAvg, .leaves = LeafFilter::Floating()};
    LEAFPACK_ASSERT_OK(Reduce(trees[0], GroupRank(0), group, options));
    LEAFPACK_ASSERT_OK(ReduceScatter(trees, group, {.leaves = LeafFilter::Floating()}));
    EXPECT_EQ(trees[static_cast<size_t>(rank)].Get("x").value()[7].item<double>(), 2);
    EXPECT_EQ(trees[static_cast<size_t>(rank)].Get("count").value()[0].item<int64_t>(), 1);
  });
}

}  // namespace
}  // namespace leafpack
