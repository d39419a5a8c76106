#include "tensordict/ops/index.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

// Batch [4, 3]; a leaf of just that, one with a further dimension, and a node with a longer batch.
TensorDict Sample() {
  TensorDict deep({4, 3, 2});
  EXPECT_TRUE(deep.Set("d", Counted({4, 3, 2, 5})).ok());
  TensorDict tree = *TensorDict::Make(
      {{"a", {{"b", Counted({4, 3})}}}, {"c", Counted({4, 3, 2})}, {"deep", deep}, {"s", "x"}},
      {4, 3});
  EXPECT_TRUE(tree.SetNames({"time", "env"}).ok());
  return tree;
}

at::Tensor Longs(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

// The result has this batch size, and its leaves are what torch makes of each leaf.
void ExpectIndexed(const std::vector<IndexItem>& index, at::IntArrayRef batch,
                   const std::vector<std::string>& names,
                   const std::function<at::Tensor(const at::Tensor&)>& torch) {
  const TensorDict tree = Sample();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict result, Index(tree, index));
  EXPECT_EQ(result.batch_size(), batch);
  EXPECT_EQ(result.GetDict("a")->batch_size(), batch);
  std::vector<int64_t> longer = batch.vec();
  longer.push_back(2);
  EXPECT_EQ(result.GetDict("deep")->batch_size(), at::IntArrayRef(longer));
  EXPECT_EQ(result.names(), names);
  EXPECT_EQ(*result.GetNonTensor("s"), NonTensor("x"));
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    EXPECT_TRUE(result.Get(path)->equal(torch(leaf))) << path;
  });
}

TEST(IndexTest, Positions) {
  const auto first = [](const at::Tensor& x) { return x.select(0, 1); };
  ExpectIndexed({1}, {3}, {"env"}, first);
  ExpectIndexed({-3}, {3}, {"env"}, first);
  ExpectIndexed({1, 2}, {}, {}, [](const at::Tensor& x) { return x.select(0, 1).select(0, 2); });
  ExpectIndexed({at::full({}, 1, at::kLong)}, {3}, {"env"}, first);
}

TEST(IndexTest, SlicesAreViews) {
  ExpectIndexed({Slice(1, 3)}, {2, 3}, {"time", "env"},
                [](const at::Tensor& x) { return x.slice(0, 1, 3); });
  ExpectIndexed({Slice(-100, 100, 3)}, {2, 3}, {"time", "env"},
                [](const at::Tensor& x) { return x.slice(0, 0, 4, 3); });
  ExpectIndexed({Slice(), Slice(-1)}, {4, 1}, {"time", "env"},
                [](const at::Tensor& x) { return x.slice(1, 2, 3); });
  ExpectIndexed({Slice(3, 1)}, {0, 3}, {"time", "env"},
                [](const at::Tensor& x) { return x.slice(0, 3, 3); });
  ExpectIndexed({Slice(0, 4, int64_t{1} << 62)}, {1, 3}, {"time", "env"},
                [](const at::Tensor& x) { return x.slice(0, 0, 1); });
  const TensorDict tree = Sample();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict part, Index(tree, {Slice(1, 3), 0}));
  part.Get("c")->fill_(-1);
  EXPECT_EQ((*tree.Get("c"))[1][0][1].item<double>(), -1);
  EXPECT_EQ((*tree.Get("c"))[0][0][1].item<double>(), 1);
}

TEST(IndexTest, EllipsisAndNewAxis) {
  ExpectIndexed({}, {4, 3}, {"time", "env"}, [](const at::Tensor& x) { return x; });
  ExpectIndexed({Ellipsis()}, {4, 3}, {"time", "env"}, [](const at::Tensor& x) { return x; });
  ExpectIndexed({Ellipsis(), 0}, {4}, {"time"},
                [](const at::Tensor& x) { return x.select(1, 0); });
  ExpectIndexed({NewAxis()}, {1, 4, 3}, {"", "time", "env"},
                [](const at::Tensor& x) { return x.unsqueeze(0); });
  ExpectIndexed({0, 0, Ellipsis(), NewAxis()}, {1}, {""},
                [](const at::Tensor& x) { return x.select(0, 0).select(0, 0).unsqueeze(0); });
}

TEST(IndexTest, Tensors) {
  const at::Tensor two = Longs({2, 0});
  ExpectIndexed({two}, {2, 3}, {"time", "env"},
                [&](const at::Tensor& x) { return x.index_select(0, two); });
  ExpectIndexed({Slice(), two}, {4, 2}, {"time", "env"},
                [&](const at::Tensor& x) { return x.index_select(1, two); });
  ExpectIndexed({NewAxis(), two.to(at::kInt)}, {1, 2, 3}, {"", "time", "env"},
                [&](const at::Tensor& x) { return x.index_select(0, two).unsqueeze(0); });
  ExpectIndexed({two.view({2, 1})}, {2, 1, 3}, {"", "", "env"},
                [&](const at::Tensor& x) { return x.index_select(0, two).unsqueeze(1); });
  const auto diagonal = [](const at::Tensor& x) {
    return x.diagonal(0, 0, 1).movedim(-1, 0).slice(0, 0, 3);
  };
  ExpectIndexed({Longs({0, 1, 2}), Longs({0, 1, 2})}, {3}, {""}, diagonal);
  // Neighbours or not: with something between, their dimension comes first.
  ExpectIndexed({two, NewAxis(), Longs({1, 1})}, {2, 1}, {"", ""}, [&](const at::Tensor& x) {
    return x.index_select(0, two).select(1, 1).unsqueeze(1);
  });
  ExpectIndexed({Longs({})}, {0, 3}, {"time", "env"},
                [](const at::Tensor& x) { return x.slice(0, 0, 0); });
}

TEST(IndexTest, Masks) {
  const at::Tensor rows = Longs({0, 1, 0, 1}).to(at::kBool);
  ExpectIndexed({rows}, {2, 3}, {"time", "env"},
                [&](const at::Tensor& x) { return x.index_select(0, Longs({1, 3})); });
  ExpectIndexed({rows.to(at::kByte)}, {2, 3}, {"time", "env"},
                [&](const at::Tensor& x) { return x.index_select(0, Longs({1, 3})); });
  const at::Tensor all = Counted({4, 3}).ge(10);
  ExpectIndexed({all}, {2}, {""},
                [&](const at::Tensor& x) { return x.select(0, 3).slice(0, 1, 3); });
  ExpectIndexed({all.logical_and(all.logical_not())}, {0}, {""},
                [&](const at::Tensor& x) { return x.select(0, 3).slice(0, 0, 0); });
}

TEST(IndexTest, Errors) {
  const TensorDict tree = Sample();
  ExpectError(Index(tree, {0, 0, 0}), "takes 3 dimensions, but the batch size [4, 3] has 2");
  ExpectError(Index(tree, {4}), "position 4 is out of range for dimension 0 of size 4");
  ExpectError(Index(tree, {-5}), "position -5");
  ExpectError(Index(tree, {Ellipsis(), Ellipsis()}), "more than one ellipsis");
  ExpectError(Index(tree, {Slice(0, 2, 0)}), "step 0");
  ExpectError(Index(tree, {Slice(0, 2, -1)}), "step -1");
  ExpectError(Index(tree, {Longs({0, 4})}), "index");
  ExpectError(Index(tree, {Counted({2})}), "float32");
  ExpectError(Index(tree, {at::ones({3}, at::kBool)}), "mask of shape [3]");
  ExpectError(Index(tree, {at::ones({}, at::kBool)}), "mask without dimensions");
  ExpectError(Index(tree, {Longs({0, 1}), Longs({0, 1, 2})}), "do not broadcast");
  ExpectError(Index(tree, {at::Tensor()}), "undefined");
  ExpectError(Index(TensorDict(), {0}), "takes 1 dimensions");
}

TEST(SetIndexTest, WritesAtThesePositionsOnly) {
  TensorDict tree = Sample();
  tree.Lock();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict row, Index(Sample(), {3}));
  ASSERT_TRUE(SetIndex(tree, {0}, row).ok());
  EXPECT_TRUE((*tree.Get("c"))[0].equal((*tree.Get("c"))[3]));
  EXPECT_TRUE((*tree.Get("c"))[1].equal(Counted({4, 3, 2})[1]));
  // A shorter batch size broadcasts.
  ASSERT_TRUE(SetIndex(tree, {Slice(1, 3)}, row).ok());
  EXPECT_TRUE((*tree.Get({"deep", "d"}))[2].equal((*tree.Get({"deep", "d"}))[3]));
  // Masks, numbers, one key.
  ASSERT_TRUE(SetIndex(tree, {Counted({4, 3}).ge(11)}, 7.5).ok());
  EXPECT_EQ((*tree.Get({"a", "b"}))[3][2].item<double>(), 7.5);
  EXPECT_EQ((*tree.Get({"a", "b"}))[3][1].item<double>(), 10);
  // uint8 is a mask: no positions 0 and 1.
  ASSERT_TRUE(SetIndex(tree, {Counted({4, 3}).ge(11).to(at::kByte)}, 8).ok());
  EXPECT_EQ((*tree.Get({"a", "b"}))[3][2].item<double>(), 8);
  EXPECT_EQ((*tree.Get({"a", "b"}))[3][1].item<double>(), 10);
  EXPECT_NE((*tree.Get({"a", "b"}))[0][0].item<double>(), 8);
  ASSERT_TRUE(SetIndex(tree, {"a", "b"}, {Ellipsis(), 0}, at::zeros({4})).ok());
  EXPECT_EQ((*tree.Get({"a", "b"}))[3][0].item<double>(), 0);
  // Leaves that the value does not have stay.
  ASSERT_TRUE(
      SetIndex(tree, {0}, *TensorDict::Make({{"a", {{"b", at::ones({3})}}}}, {3})).ok());
  EXPECT_EQ((*tree.Get({"a", "b"}))[0].sum().item<double>(), 3);
}

TEST(SetIndexTest, ErrorsComeBeforeAnythingIsWritten) {
  TensorDict tree = Sample();
  const auto with = [](const NestedKey& key, TreeValue value) {
    TensorDict row = *Index(Sample(), {3});
    EXPECT_TRUE(SetValue(row, key, std::move(value)).ok());
    return row;
  };
  ExpectError(SetIndex(tree, {0}, with("z", at::ones({3}))), "z", absl::StatusCode::kNotFound);
  ExpectError(SetIndex(tree, {0}, with("c", at::ones({3, 1}))), "c: values of shape [3, 1]");
  ExpectError(SetIndex(tree, {0}, with("c", at::ones({3, 2}, at::kLong))), "c: values are int64");
  ExpectError(SetIndex(tree, {0}, with("s", "y")), "s: a value that is no tensor");
  ExpectError(SetIndex(tree, {0}, Sample()), "batch size [4, 3] do not fit the batch size [3]");
  EXPECT_TRUE(tree.Get("c")->equal(Counted({4, 3, 2})));
  EXPECT_TRUE(tree.Get({"a", "b"})->equal(Counted({4, 3})));
  ASSERT_TRUE(SetIndex(tree, {0}, with("c", at::ones({3, 2}, at::kLong)), Cast::kAllow).ok());
  EXPECT_EQ((*tree.Get("c"))[0].sum().item<double>(), 6);
}

}  // namespace
}  // namespace leafpack
