// All-reduce of trees over ranks as threads: values, layouts, bucketings, options.
#include "distributed/tree/all_reduce.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack {
namespace {

using ::leafpack::testing::AllDtypes;
using ::leafpack::testing::AllOps;
using ::leafpack::testing::BitEqual;
using ::leafpack::testing::Expected;
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

class AllReduceMatrix : public ::testing::TestWithParam<std::tuple<int, NamedBucketing, bool>> {};

// Every dtype with every op, as a tree that rides with its digest and as one that has messages.
TEST_P(AllReduceMatrix, EveryDtypeAndOp) {
  const auto [ranks, bucketing, large] = GetParam();
  const std::vector<std::vector<int64_t>> shapes = {
      {3}, {2, 5}, {}, {0, 4}, {large ? 40'000 : 7}, {large ? 70'000 : 11}};
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    for (const ReduceOpKind op : AllOps()) {
      TensorDict tree;
      std::vector<std::pair<std::string, at::ScalarType>> leaves;
      for (const at::ScalarType dtype : AllDtypes()) {
        if (!CheckOpAllowed(op, dtype).ok()) continue;
        for (size_t i = 0; i < shapes.size(); ++i) {
          const std::string path = absl::StrCat(c10::toString(dtype), i);
          LEAFPACK_ASSERT_OK(tree.Set({"tree", path}, MakeLeaf(path, dtype, shapes[i], rank)));
        }
      }
      LEAFPACK_ASSERT_OK(AllReduce(tree, group,
                          {.op = OpOfRank(op, rank), .bucketing = bucketing.bucketing}));
      for (const at::ScalarType dtype : AllDtypes()) {
        if (!CheckOpAllowed(op, dtype).ok()) continue;
        for (size_t i = 0; i < shapes.size(); ++i) {
          const std::string path = absl::StrCat(c10::toString(dtype), i);
          const at::Tensor got = tree.Get({"tree", path}).value();
          EXPECT_TRUE(BitEqual(got, Expected(path, dtype, shapes[i], ranks, op)))
              << ReduceOpName(op) << " of " << path;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, AllReduceMatrix,
    ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(kBucketings),
                       ::testing::Bool()),
    [](const auto& param) {
      return absl::StrCat(std::get<0>(param.param), "ranks", std::get<1>(param.param).name,
                          std::get<2>(param.param) ? "Messages" : "Frame");
    });

// What no host backend can do is refused for the whole tree, by path, on every rank.
TEST(AllReduceTest, WhatAnOpDoesNotAllowIsRefusedBeforeAnythingMoves) {
  WithGroup(2, [](const Group& group) {
    for (const ReduceOpKind op : AllOps()) {
      for (const at::ScalarType dtype : AllDtypes()) {
        if (CheckOpAllowed(op, dtype).ok()) continue;
        const at::Tensor good = at::ones({3}, at::TensorOptions().dtype(at::kInt));
        const at::Tensor bad = MakeLeaf("x", dtype, {3}, group.rank().value());
        const at::Tensor before = bad.clone();
        TensorDict tree;
        LEAFPACK_ASSERT_OK(tree.Set("a", good));
        LEAFPACK_ASSERT_OK(tree.Set({"b", "bad"}, bad));
        const absl::Status status = AllReduce(tree, group, {.op = ReduceOp{op}});
        ASSERT_FALSE(status.ok());
        const ErrorDetails details = GetErrorDetails(status);
        EXPECT_EQ(details.kind, ErrorKind::kUnsupported) << status;
        EXPECT_TRUE(details.path == "b.bad" || details.path == "a") << status;
        EXPECT_TRUE(details.tree_unchanged);
        EXPECT_TRUE(BitEqual(bad, before));
        EXPECT_TRUE(at::equal(good, at::ones({3}, good.options())));
      }
    }
  });
}

class AllReduceLayouts : public ::testing::TestWithParam<std::tuple<int, bool>> {};

// Views of many kinds get the sum, and the memory between their elements stays as it was.
TEST_P(AllReduceLayouts, ALeafKeepsToItself) {
  const auto [ranks, large] = GetParam();
  const int64_t n = large ? 300 : 6;
  WithGroup(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    for (const NamedBucketing& bucketing : kBucketings) {
      const auto base = [&](int64_t numel) {
        return at::arange(numel, at::TensorOptions().dtype(at::kFloat)).add_(rank + 1);
      };
      const auto sum = [&](const at::Tensor& local) {  // of arange + rank + 1, minus the own part
        return local.mul(ranks).sub((rank + 1.0) * ranks).add(ranks * (ranks + 1) / 2.0);
      };
      const at::Tensor strided = base(2 * n * n);
      const at::Tensor left_right = base(n * n).view({n, n});
      const at::Tensor permuted = base(n * n).view({n, n}).t();
      const at::Tensor channels_last =
          base(2 * 3 * n * n).view({2, 3, n, n}).contiguous(at::MemoryFormat::ChannelsLast);
      const at::Tensor size_one = base(n).view({n, 1}).as_strided({n, 1}, {1, 77});
      const at::Tensor scalar = base(1).view(at::IntArrayRef());
      const at::Tensor tied = base(n);
      const at::Tensor neighbours = base(3 * n);

      struct Leaf {
        NestedKey path;
        at::Tensor leaf;
        at::Tensor expected;
      };
      std::vector<Leaf> leaves;
      const auto add = [&](NestedKey path, const at::Tensor& leaf) {
        leaves.push_back({std::move(path), leaf, sum(leaf)});
      };
      add({"strided"}, strided.slice(0, 0, 2 * n * n, 2));
      add({"m", "left"}, left_right.slice(1, 0, n / 2));
      add({"m", "right"}, left_right.slice(1, n / 2 + 1, n));
      add({"permuted"}, permuted);
      add({"channels.last"}, channels_last);
      add({"size_one"}, size_one);
      add({"scalar", 0}, scalar);
      add({"tied", "a"}, tied);
      add({"tied", "b"}, tied.view({n, 1}));
      for (int64_t i = 0; i < 3; ++i) {
        add({"neighbours", i}, neighbours.slice(0, i * n, (i + 1) * n));
      }
      const at::Tensor strided_gaps = strided.slice(0, 1, 2 * n * n, 2).clone();
      const at::Tensor middle = left_right.slice(1, n / 2, n / 2 + 1).clone();

      TensorDict tree;
      for (const Leaf& leaf : leaves) LEAFPACK_ASSERT_OK(tree.Set(leaf.path, leaf.leaf));
      LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.bucketing = bucketing.bucketing}));
      for (const Leaf& leaf : leaves) {
        EXPECT_TRUE(at::equal(leaf.leaf, leaf.expected))
            << bucketing.name << " " << leaf.path << ": the first element is "
            << leaf.leaf.flatten()[0].item<float>() << ", expected "
            << leaf.expected.flatten()[0].item<float>();
      }
      EXPECT_TRUE(at::equal(strided.slice(0, 1, 2 * n * n, 2), strided_gaps)) << bucketing.name;
      EXPECT_TRUE(at::equal(left_right.slice(1, n / 2, n / 2 + 1), middle)) << bucketing.name;
    }
  });
}

// Ranks may hold the same leaf in different memory order: wire order is logical order then.
TEST_P(AllReduceLayouts, MemoryOrderMayDifferBetweenRanks) {
  const auto [ranks, large] = GetParam();
  const int64_t n = large ? 300 : 6;
  WithGroup(ranks, [&](const Group& group) {
    at::Tensor leaf = at::arange(2 * n * n, at::TensorOptions().dtype(at::kFloat)).view({2 * n, n});
    const at::Tensor expected = leaf.mul(ranks);
    if (group.rank().value() % 2 == 1) leaf = leaf.t().contiguous().t();
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("leaf", leaf));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_TRUE(at::equal(leaf, expected));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllReduceLayouts,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Bool()),
                         [](const auto& param) {
                           return absl::StrCat(std::get<0>(param.param), "ranks",
                                               std::get<1>(param.param) ? "Messages" : "Frame");
                         });

TEST(AllReduceTest, OrderOfInsertionDoesNotMatter) {
  WithGroup(3, [](const Group& group) {
    std::vector<std::string> names = {"a", "b", "c", "d"};
    for (int turn = 0; turn < group.rank().value(); ++turn) {
      std::rotate(names.begin(), names.begin() + 1, names.end());
    }
    TensorDict tree;
    for (const std::string& name : names) {
      LEAFPACK_ASSERT_OK(tree.Set({"x", name}, MakeLeaf(name, at::kFloat, {5}, group.rank().value())));
    }
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    for (const std::string& name : names) {
      EXPECT_TRUE(BitEqual(tree.Get({"x", name}).value(),
                           Expected(name, at::kFloat, {5}, 3, ReduceOpKind::kSum)));
    }
  });
}

TEST(AllReduceTest, AnEmptyTreeIsACallLikeAnyOther) {
  WithGroup(2, [](const Group& group) {
    LEAFPACK_ASSERT_OK(AllReduce(TensorDict(), group));
    TensorDict tree;
    if (group.rank().value() == 1) LEAFPACK_ASSERT_OK(tree.Set("only here", at::ones({2})));
    const absl::Status status = AllReduce(tree, group);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kLayoutMismatch);
    EXPECT_THAT(std::string(status.message()), HasSubstr("only here"));
    LEAFPACK_ASSERT_OK(AllReduce(TensorDict(), group));
  });
}

// One disagreement after the other on one group: each is an error that names it, and the group goes on.
TEST(AllReduceTest, DisagreementsAreErrorsAndTheGroupIsUsableAtOnce) {
  struct Case {
    const char* name;
    std::function<void(int rank, TensorDict& tree, AllReduceOptions& options)> build;
    const char* text;  // that the error has
  };
  const auto set = [](TensorDict& tree, NestedKey key, at::Tensor leaf) {
    LEAFPACK_ASSERT_OK(tree.Set(std::move(key), std::move(leaf)));
  };
  const std::vector<Case> cases = {
      {"other key",
       [&](int rank, TensorDict& tree, AllReduceOptions&) {
         set(tree, {"w", rank == 0 ? "k8" : "k9"}, at::ones({3}));
       },
       "k8"},
      {"a key more",
       [&](int rank, TensorDict& tree, AllReduceOptions&) {
         set(tree, "a", at::ones({3}));
         if (rank == 0) set(tree, "extra", at::ones({3}));
       },
       "extra"},
      {"equal bytes, other shapes",
       [&](int rank, TensorDict& tree, AllReduceOptions&) {
         set(tree, "a", at::ones({rank == 0 ? 2 : 3}));
         set(tree, "b", at::ones({rank == 0 ? 3 : 2}));
       },
       "a"},
      {"one element more",
       [&](int rank, TensorDict& tree, AllReduceOptions&) {
         set(tree, "a", at::ones({rank == 0 ? 1024 : 1025}));
       },
       "1025"},
      {"one element more in a large leaf",
       [&](int rank, TensorDict& tree, AllReduceOptions&) {
         set(tree, "a", at::ones({rank == 0 ? 1 << 20 : (1 << 20) + 1}));
       },
       "1048577"},
      {"other dtype of the same size",
       [&](int rank, TensorDict& tree, AllReduceOptions&) {
         set(tree, "a", at::ones({4}, at::TensorOptions().dtype(rank == 0 ? at::kFloat : at::kInt)));
       },
       "int32"},
      {"other op",
       [&](int rank, TensorDict& tree, AllReduceOptions& options) {
         set(tree, "a", at::ones({4}));
         options.op = rank == 0 ? ReduceOp::kSum : ReduceOp::kMax;
       },
       "op"},
      {"other bucketing",
       [&](int rank, TensorDict& tree, AllReduceOptions& options) {
         set(tree, "a", at::ones({100'000}));
         options.bucketing = rank == 0 ? Bucketing::Auto() : Bucketing::MaxBytes(1 << 20);
       },
       "bucketing"},
      {"other name",
       [&](int rank, TensorDict& tree, AllReduceOptions& options) {
         set(tree, "a", at::ones({4}));
         options.name = rank == 0 ? "actor" : "critic";
       },
       "critic"},
      {"tied on one rank only",
       [&](int rank, TensorDict& tree, AllReduceOptions&) {
         const at::Tensor a = at::ones({4});
         set(tree, "a", a);
         set(tree, "b", rank == 0 ? a : at::ones({4}));
       },
       "b"},
  };
  for (const int ranks : {2, 3}) {
    WithGroup(ranks, [&](const Group& group) {
      const int rank = group.rank().value();
      for (const Case& c : cases) {
        SCOPED_TRACE(c.name);
        TensorDict tree;
        AllReduceOptions options;
        c.build(rank, tree, options);
        const FlatTree before = Flatten(tree);
        const absl::Status status = AllReduce(tree, group, options);
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kLayoutMismatch) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
        EXPECT_FALSE(GetErrorDetails(status).ranks.empty());
        for (const at::Tensor& leaf : before.leaves) {
          EXPECT_TRUE(at::equal(leaf, at::ones(leaf.sizes(), leaf.options())));
        }
        TensorDict good;
        LEAFPACK_ASSERT_OK(good.Set("x", at::full({2}, rank + 1.0)));
        LEAFPACK_ASSERT_OK(AllReduce(good, group));
        EXPECT_EQ(good.Get("x").value().sum().item<double>(), ranks * (ranks + 1.0));
      }
    });
  }
}

// A rank whose own tree is no good raises its own error; the others learn who refused and why.
TEST(AllReduceTest, RefusalsAreToldToTheOtherRanks) {
  struct Case {
    const char* name;
    std::function<at::Tensor()> leaf;
    absl::StatusCode code;
    const char* text;
  };
  const std::vector<Case> cases = {
      {"expanded", [] { return at::ones({1}).expand({4}); }, absl::StatusCode::kInvalidArgument,
       "overlap"},
      {"undefined", [] { return at::Tensor(); }, absl::StatusCode::kInvalidArgument, "undefined"},
      {"meta", [] { return at::empty({4}, at::TensorOptions().device(at::kMeta)); },
       absl::StatusCode::kInvalidArgument, "meta"},
      {"grad_fn", [] { return at::ones({4}).set_requires_grad(true).mul(2); },
       absl::StatusCode::kInvalidArgument, "grad_fn"},
  };
  for (const Case& c : cases) {
    for (const int refusing : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat(c.name, " on rank ", refusing));
      WithGroup(3, [&](const Group& group) {
        const int rank = group.rank().value();
        TensorDict tree;
        LEAFPACK_ASSERT_OK(tree.Set("a", at::ones({4})));
        LEAFPACK_ASSERT_OK(tree.Set({"b", "leaf"}, rank == refusing ? c.leaf() : at::ones({4})));
        const absl::Status status = AllReduce(tree, group);
        ASSERT_FALSE(status.ok());
        EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
        EXPECT_THAT(std::string(status.message()), HasSubstr("b.leaf"));
        if (rank == refusing) {
          EXPECT_EQ(status.code(), c.code) << status;
        } else {
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
          EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kPeerRefused);
          EXPECT_THAT(GetErrorDetails(status).ranks, ElementsAre(GlobalRank(refusing)));
        }
        EXPECT_TRUE(at::equal(tree.Get("a").value(), at::ones({4})));
        TensorDict good;
        LEAFPACK_ASSERT_OK(good.Set("x", at::ones({2})));
        LEAFPACK_ASSERT_OK(AllReduce(good, group));
        EXPECT_EQ(good.Get("x").value().sum().item<double>(), 6.0);
      });
    }
  }
}

TEST(AllReduceTest, ArgumentsThatAreNoGoodAreRefused) {
  WithGroup(2, [](const Group& group) {
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("a", at::ones({4})));
    const std::vector<AllReduceOptions> bad = {
        {.bucketing = Bucketing::MaxBytes(0)},
        {.bucketing = Bucketing::MaxBytes(-5)},
        {.timeout = absl::ZeroDuration()},
        {.timeout = absl::Seconds(-1)},
        {.name = std::string(257, 'n')},
        {.max_in_flight_bytes = 0},
    };
    for (const AllReduceOptions& options : bad) {
      const absl::Status status = AllReduce(tree, group, options);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    }
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(tree.Get("a").value().sum().item<double>(), 8.0);
  });
}

TEST(AllReduceTest, VersionCountersAreBumpedAndNoGradientIsRecorded) {
  for (const int64_t numel : {4, 100'000}) {
    WithGroup(2, [&](const Group& group) {
      at::Tensor weight = at::ones({numel}).set_requires_grad(true);
      const at::Tensor plain = at::ones({numel});
      const auto weight_version = weight._version();
      const auto plain_version = plain._version();
      const at::Tensor loss = weight.mul(weight).sum();  // saves the old value of weight
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("weight", weight));
      LEAFPACK_ASSERT_OK(tree.Set("plain", plain));
      LEAFPACK_ASSERT_OK(AllReduce(tree, group));
      EXPECT_GT(weight._version(), weight_version);
      EXPECT_GT(plain._version(), plain_version);
      EXPECT_TRUE(weight.is_leaf());
      EXPECT_TRUE(weight.requires_grad());
      EXPECT_EQ(weight.detach().sum().item<double>(), 2.0 * static_cast<double>(numel));
      EXPECT_ANY_THROW(loss.backward());
    });
  }
}

TEST(AllReduceTest, ALeafWithAGradFnIsTakenWithGradModeOff) {
  WithGroup(2, [](const Group& group) {
    const at::Tensor computed = at::ones({4}).set_requires_grad(true).mul(2);
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("a", computed));
    at::NoGradGuard no_grad;
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(computed.sum().item<double>(), 16.0);
  });
}

TEST(AllReduceTest, FiltersChooseLeaves) {
  for (const int64_t numel : {3, 100'000}) {
    WithGroup(2, [&](const Group& group) {
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("count", at::ones({numel}, at::TensorOptions().dtype(at::kLong))));
      LEAFPACK_ASSERT_OK(tree.Set("mean", at::ones({numel}).mul(group.rank().value())));
      LEAFPACK_ASSERT_OK(tree.Set("undefined", at::Tensor()));
      LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.op = ReduceOp::kAvg, .leaves = LeafFilter::Floating()}));
      EXPECT_EQ(tree.Get("mean").value().mean().item<double>(), 0.5);
      EXPECT_EQ(tree.Get("count").value().sum().item<int64_t>(), numel);
      LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.leaves = LeafFilter::Where([](const NestedKey& path,
                                                                       const at::Tensor&) {
                                          return path == NestedKey("count");
                                        })}));
      EXPECT_EQ(tree.Get("mean").value().mean().item<double>(), 0.5);
      EXPECT_EQ(tree.Get("count").value().sum().item<int64_t>(), 2 * numel);
    });
  }
}

// The cap bounds what is packed at once; the result does not depend on it.
TEST(AllReduceTest, PackedBytesInFlightAreBounded) {
  WithGroup(2, [](const Group& group) {
    TensorDict tree;
    for (int i = 0; i < 200; ++i) {
      const std::string name = absl::StrCat("leaf", i);
      LEAFPACK_ASSERT_OK(tree.Set(name, MakeLeaf(name, at::kFloat, {64, 30}, group.rank().value()).t()));
    }
    LEAFPACK_ASSERT_OK(AllReduce(tree, group,
                        {.bucketing = Bucketing::MaxBytes(20'000), .max_in_flight_bytes = 50'000}));
    for (int i = 0; i < 200; ++i) {
      const std::string name = absl::StrCat("leaf", i);
      EXPECT_TRUE(BitEqual(tree.Get(name).value().t(),
                           Expected(name, at::kFloat, {64, 30}, 2, ReduceOpKind::kSum)));
    }
  });
}

TEST(AllReduceTest, StatsSayWhereTheTimeWent) {
  WithGroup(2, [](const Group& group) {
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("a", at::ones({100})));
    AllReduceStats stats;
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.stats = &stats}));
    EXPECT_EQ(stats.buckets, 0);
    EXPECT_EQ(stats.leaves, 1);
    EXPECT_EQ(stats.bytes, 400);
    LEAFPACK_ASSERT_OK(tree.Set("b", at::ones({100'000}, at::TensorOptions().dtype(at::kDouble))));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.stats = &stats}));
    EXPECT_EQ(stats.buckets, 2);
    EXPECT_EQ(stats.bytes, 800'400);
    EXPECT_GT(stats.total, 0);
    EXPECT_GE(stats.total, stats.communicate);
  });
}

TEST(AllReduceTest, TwoGroupsOverTheSameRanksFromTwoThreads) {
  testing::WithGroups(3, 2, [](const std::vector<Group>& groups) {
    const auto many = [](const Group& group, int64_t numel) {
      for (int i = 0; i < 30; ++i) {
        TensorDict tree;
        const std::string name = absl::StrCat("x", i);
        LEAFPACK_ASSERT_OK(tree.Set(name, MakeLeaf(name, at::kFloat, {numel}, group.rank().value())));
        LEAFPACK_ASSERT_OK(AllReduce(tree, group));
        EXPECT_TRUE(BitEqual(tree.Get(name).value(),
                             Expected(name, at::kFloat, {numel}, 3, ReduceOpKind::kSum)));
      }
    };
    // Ranks take the groups in different orders: nothing of one group waits for the other.
    std::thread other([&] { many(groups[1], 50'000); });
    many(groups[0], 60'000);
    other.join();
    // And one thread with both at once.
    TensorDict small;
    TensorDict large;
    LEAFPACK_ASSERT_OK(small.Set("s", at::ones({4})));
    LEAFPACK_ASSERT_OK(large.Set("l", at::ones({100'000})));
    absl::StatusOr<TreeWork> first = AllReduceAsync(large, groups[0]);
    absl::StatusOr<TreeWork> second = AllReduceAsync(small, groups[1]);
    LEAFPACK_ASSERT_OK(first.status());
    LEAFPACK_ASSERT_OK(second.status());
    LEAFPACK_ASSERT_OK(second->Wait());
    LEAFPACK_ASSERT_OK(first->Wait());
    EXPECT_EQ(large.Get("l").value().sum().item<double>(), 300'000.0);
    EXPECT_EQ(small.Get("s").value().sum().item<double>(), 12.0);
  });
}

// torch's default group is often destroyed and made again over one store: keys of the first are stale.
TEST(AllReduceTest, AGroupMadeAgainOverTheSameStoreMeetsItsOwnKind) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  const auto run = [&](int rank) {
    for (int life = 0; life < 3; ++life) {
      absl::StatusOr<Group> group =
          Group::Create(store, "again", GroupRank(rank), 2, {}, GroupOptions{});
      LEAFPACK_ASSERT_OK(group.status());
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("x", MakeLeaf("x", at::kFloat, {50'000}, rank)));
      LEAFPACK_ASSERT_OK(AllReduce(tree, *group, {.timeout = absl::Seconds(60)}));
      EXPECT_TRUE(BitEqual(tree.Get("x").value(),
                           Expected("x", at::kFloat, {50'000}, 2, ReduceOpKind::kSum)));
      LEAFPACK_ASSERT_OK(group->Shutdown(absl::Seconds(10)));
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

// A deadline that passes before the other rank comes: named, nothing changed, group usable.
TEST(AllReduceTest, ALateRankIsNamedAndTold) {
  for (const int late : {0, 1}) {
    for (const int64_t numel : {10, 100'000}) {
      absl::Notification given_up;
      WithGroup(2, [&](const Group& group) {
        const int rank = group.rank().value();
        TensorDict warm;
        LEAFPACK_ASSERT_OK(warm.Set("x", at::ones({2})));
        LEAFPACK_ASSERT_OK(AllReduce(warm, group));  // the channel is open
        TensorDict tree;
        const at::Tensor x = at::ones({numel});
        LEAFPACK_ASSERT_OK(tree.Set("x", x));
        if (rank == late) {
          ASSERT_TRUE(given_up.WaitForNotificationWithTimeout(absl::Seconds(60)));
        }
        const absl::Status status =
            AllReduce(tree, group, {.timeout = absl::Milliseconds(rank == late ? 30'000 : 200)});
        if (rank != late) given_up.Notify();
        if (rank == late) {
          EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
        } else {
          EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        }
        EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kDeadline) << status;
        EXPECT_THAT(GetErrorDetails(status).ranks,
                    ElementsAre(GlobalRank(rank == late ? 1 - late : late)));
        EXPECT_EQ(x.sum().item<double>(), static_cast<double>(numel));
        LEAFPACK_ASSERT_OK(AllReduce(tree, group));
        EXPECT_EQ(x.sum().item<double>(), 2.0 * static_cast<double>(numel));
      });
    }
  }
}

TEST(AllReduceTest, ACheckForInterruptsThatThrowsGivesTheCallUp) {
  absl::Notification given_up;
  WithGroup(2, [&](const Group& group) {
    TensorDict tree;
    const at::Tensor x = at::ones({100'000});
    LEAFPACK_ASSERT_OK(tree.Set("x", x));
    AllReduceOptions options;
    if (group.rank().value() == 0) {
      options.interrupt = []() -> bool { throw std::runtime_error("thrown by the check"); };
    } else {
      ASSERT_TRUE(given_up.WaitForNotificationWithTimeout(absl::Seconds(60)));
    }
    const absl::Status status = AllReduce(tree, group, options);
    if (group.rank().value() == 0) given_up.Notify();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_EQ(GetErrorDetails(status).kind,
              group.rank().value() == 0 ? ErrorKind::kInterrupted : ErrorKind::kDeadline)
        << status;
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(x.sum().item<double>(), 200'000);
  });
}

TEST(AllReduceTest, AGroupThatWasShutDownIsSaidByTheCall) {
  for (const int ranks : {1, 2}) {
    WithGroup(ranks, [&](const Group& group) {
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("x", at::ones({2})));
      LEAFPACK_ASSERT_OK(AllReduce(tree, group));
      Group handle = group;
      LEAFPACK_ASSERT_OK(handle.Shutdown(absl::Seconds(10)));
      const absl::Status status = AllReduce(tree, group, {.name = "late"});
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_EQ(status.message(), absl::StrCat("all_reduce 'late' on rank ", group.rank().value(),
                                               ": the group was shut down"));
    });
  }
}

}  // namespace
}  // namespace leafpack
