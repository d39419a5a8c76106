#include "tensordict/ops/shape.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensordict/ops/combine.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

using testing::ElementsAre;

// Batch [4, 1, 3].
TensorDict Sample() {
  TensorDict deep({4, 1, 3, 2});
  EXPECT_TRUE(deep.Set("d", Counted({4, 1, 3, 2, 5})).ok());
  TensorDict tree = *TensorDict::Make({{"a", {{"b", Counted({4, 1, 3})}}},
                                       {"c", Counted({4, 1, 3, 2})},
                                       {"deep", deep},
                                       {"s", "x"},
                                       {"u", at::Tensor()}},
                                      {4, 1, 3});
  EXPECT_TRUE(tree.SetNames({"time", "one", "env"}).ok());
  return tree;
}

void ExpectShaped(const absl::StatusOr<TensorDict>& result, std::vector<int64_t> batch,
                  const std::vector<std::string>& names,
                  const std::function<at::Tensor(const at::Tensor&)>& torch) {
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->batch_size(), at::IntArrayRef(batch));
  EXPECT_EQ(result->GetDict("a")->batch_size(), at::IntArrayRef(batch));
  batch.push_back(2);
  EXPECT_EQ(result->GetDict("deep")->batch_size(), at::IntArrayRef(batch));
  EXPECT_EQ(result->names(), names);
  EXPECT_EQ(*result->GetNonTensor("s"), NonTensor("x"));
  EXPECT_FALSE(result->Get("u")->defined());
  Sample().Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    if (!leaf.defined()) return;
    EXPECT_TRUE(result->Get(path)->equal(torch(leaf))) << path;
  });
}

// Sizes behind the first three dimensions.
std::vector<int64_t> With(std::vector<int64_t> head, const at::Tensor& leaf) {
  head.insert(head.end(), leaf.sizes().begin() + 3, leaf.sizes().end());
  return head;
}

TEST(ShapeTest, ViewAndReshape) {
  const TensorDict tree = Sample();
  const auto flat = [](const at::Tensor& x) { return x.view(With({12}, x)); };
  ExpectShaped(View(tree, {-1}), {12}, {""}, flat);
  ExpectShaped(Reshape(tree, {12}), {12}, {""}, flat);
  ExpectShaped(View(tree, {2, -1, 2}), {2, 3, 2}, {"", "", ""},
               [](const at::Tensor& x) { return x.view(With({2, 3, 2}, x)); });
  ExpectShaped(View(tree, {4, 1, 3}), {4, 1, 3}, {"time", "one", "env"},
               [](const at::Tensor& x) { return x; });
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict view, View(tree, {12}));
  view.Get("c")->fill_(-1);
  EXPECT_EQ(tree.Get("c")->sum().item<double>(), -24);
  ExpectError(View(tree, {5}), "sizes [5] do not hold 12");
  ExpectError(View(tree, {-1, 5}), "sizes [-1, 5] do not hold 12");
  ExpectError(View(tree, {-1, -1}), "not valid");
  ExpectError(View(tree, {-2}), "not valid");
  ExpectError(View(tree, {int64_t{1} << 62, 4}), "overflows");
  // A leaf that cannot be viewed.
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict turned, Transpose(tree, 0, 2));
  ExpectError(View(turned, {12}), "view: a.b: ");
  EXPECT_TRUE(Reshape(turned, {12}).ok());
  // Nothing to divide.
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict empty, View(TensorDict({0, 3}), {-1, 3}));
  EXPECT_EQ(empty.batch_size(), at::IntArrayRef({0, 3}));
  ExpectError(View(TensorDict({0, 3}), {-1, 0}), "do not hold 0");
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict scalar, View(TensorDict({1, 1}), {}));
  EXPECT_EQ(scalar.batch_size(), at::IntArrayRef({}));
}

TEST(ShapeTest, PermuteAndTranspose) {
  const TensorDict tree = Sample();
  ExpectShaped(Permute(tree, {2, 0, -2}), {3, 4, 1}, {"env", "time", "one"},
               [](const at::Tensor& x) { return x.movedim(2, 0); });
  ExpectShaped(Transpose(tree, 0, -1), {3, 1, 4}, {"env", "one", "time"},
               [](const at::Tensor& x) { return x.transpose(0, 2); });
  ExpectError(Permute(tree, {0, 1}), "2 dimensions are given, there are 3");
  ExpectError(Permute(tree, {0, 0, 1}), "dimension 0 is given twice");
  ExpectError(Permute(tree, {0, 1, 3}), "dimension 3 is out of range");
  ExpectError(Transpose(tree, 0, -4), "dimension -4");
}

TEST(ShapeTest, SqueezeUnsqueezeExpand) {
  const TensorDict tree = Sample();
  const auto squeezed = [](const at::Tensor& x) { return x.squeeze(1); };
  ExpectShaped(Squeeze(tree), {4, 3}, {"time", "env"}, squeezed);
  ExpectShaped(Squeeze(tree, -2), {4, 3}, {"time", "env"}, squeezed);
  ExpectShaped(Squeeze(tree, 0), {4, 1, 3}, {"time", "one", "env"},
               [](const at::Tensor& x) { return x; });
  ExpectError(Squeeze(tree, 3), "dimension 3");
  ExpectShaped(Unsqueeze(tree, 1), {4, 1, 1, 3}, {"time", "", "one", "env"},
               [](const at::Tensor& x) { return x.unsqueeze(1); });
  ExpectShaped(Unsqueeze(tree, -1), {4, 1, 3, 1}, {"time", "one", "env", ""},
               [](const at::Tensor& x) { return x.unsqueeze(3); });
  ExpectError(Unsqueeze(tree, 4), "dimension 4");
  ExpectShaped(Expand(tree, {2, -1, 6, 3}), {2, 4, 6, 3}, {"", "time", "one", "env"},
               [](const at::Tensor& x) { return x.expand(With({2, 4, 6, 3}, x)); });
  ExpectError(Expand(tree, {4, 3}), "[4, 1, 3] cannot be expanded to [4, 3]");
  ExpectError(Expand(tree, {4, 2, 6}), "cannot be expanded");
  ExpectError(Expand(tree, {-1, 4, 2, 3}), "cannot be expanded");
}

TEST(ShapeTest, FlattenAndUnflatten) {
  const TensorDict tree = Sample();
  ExpectShaped(FlattenDims(tree, 1), {4, 3}, {"time", ""},
               [](const at::Tensor& x) { return x.view(With({4, 3}, x)); });
  ExpectShaped(FlattenDims(tree, 0, 1), {4, 3}, {"", "env"},
               [](const at::Tensor& x) { return x.view(With({4, 3}, x)); });
  ExpectError(FlattenDims(tree, 2, 1), "comes after");
  ExpectError(FlattenDims(TensorDict(), 0), "out of range");
  ExpectShaped(UnflattenDim(tree, 0, {2, -1}), {2, 2, 1, 3}, {"", "", "one", "env"},
               [](const at::Tensor& x) { return x.view(With({2, 2, 1, 3}, x)); });
  ExpectError(UnflattenDim(tree, 0, {3, -1}), "do not hold 4");
  ExpectError(UnflattenDim(tree, 1, {}), "no sizes");
}

TEST(ShapeTest, SplitChunkUnbind) {
  const TensorDict tree = Sample();
  const auto sizes = [](const absl::StatusOr<std::vector<TensorDict>>& parts, size_t dim) {
    EXPECT_TRUE(parts.ok()) << parts.status();
    std::vector<int64_t> result;
    for (const TensorDict& part : *parts) result.push_back(part.batch_size()[dim]);
    return result;
  };
  EXPECT_THAT(sizes(Split(tree, 3), 0), ElementsAre(3, 1));
  EXPECT_THAT(sizes(Split(tree, {1, 0, 2}, -1), 2), ElementsAre(1, 0, 2));
  EXPECT_THAT(sizes(Chunk(tree, 3), 0), ElementsAre(2, 2));
  EXPECT_THAT(sizes(Split(TensorDict({0}), 3), 0), ElementsAre(0));
  EXPECT_THAT(sizes(Chunk(TensorDict({0}), 2), 0), ElementsAre(0, 0));
  ExpectShaped((*Split(tree, 3))[1], {1, 1, 3}, {"time", "one", "env"},
               [](const at::Tensor& x) { return x.slice(0, 3, 4); });
  LEAFPACK_ASSIGN_OR_FAIL(const std::vector<TensorDict> rows, Unbind(tree, -1));
  ASSERT_EQ(rows.size(), 3u);
  ExpectShaped(rows[2], {4, 1}, {"time", "one"},
               [](const at::Tensor& x) { return x.select(2, 2); });
  rows[2].Get("c")->fill_(-1);  // views
  EXPECT_EQ(tree.Get("c")->select(2, 2).sum().item<double>(), -8);
  ExpectError(Split(tree, 0), "not positive");
  ExpectError(Split(tree, {1, 1}, 0), "do not make up the 4");
  ExpectError(Split(tree, {5, -1}, 0), "do not make up the 4");
  ExpectError(Chunk(tree, 0), "0 chunks");
  ExpectError(Unbind(TensorDict(), 0), "out of range");
}

TEST(CombineTest, StackAndCatUndoUnbindAndSplit) {
  const TensorDict tree = Sample();
  for (const int64_t dim : {0, 1, 2, -1}) {
    LEAFPACK_ASSIGN_OR_FAIL(const std::vector<TensorDict> rows, Unbind(tree, dim));
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict stacked, Stack(rows, dim));
    EXPECT_TRUE(*Equal(stacked, tree));
    LEAFPACK_ASSIGN_OR_FAIL(const std::vector<TensorDict> parts, Split(tree, 2, dim));
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict joined, Cat(parts, dim));
    EXPECT_TRUE(*Equal(joined, tree));
    EXPECT_EQ(joined.names(), tree.names());
  }
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict stacked, Stack({tree, tree}, 1));
  EXPECT_THAT(stacked.names(), ElementsAre("time", "", "one", "env"));
}

TEST(CombineTest, ErrorsNameThePath) {
  const at::Tensor x = at::ones({2, 3});
  const auto stack = [](const TensorDict& a, const TensorDict& b) { return Stack({a, b}); };
  const TensorDict plain = *TensorDict::Make({{"a", {{"b", x}}}});
  ExpectError(Stack({}), "no tree");
  ExpectError(stack(plain, *TensorDict::Make({{"a", {{"c", x}}}})),
              "a.b: tree 0 has it, tree 1 has not");
  ExpectError(stack(plain, *TensorDict::Make({{"a", {{"b", x}, {"c", x}}}})),
              "a.c: tree 1 has it, tree 0 has not");
  ExpectError(stack(plain, *TensorDict::Make({{"a", {}}})), "a.b: tree 0 has it");
  ExpectError(stack(plain, *TensorDict::Make({{"a", {{"b", at::ones({3})}}}})), "stack: a.b: ");
  ExpectError(stack(plain, *TensorDict::Make({{"a", {{"b", at::Tensor()}}}})),
              "a.b: tree 0 has a tensor there, tree 1 has an undefined tensor");
  ExpectError(stack(plain, *TensorDict::Make({{"a", x}})),
              "a: tree 0 has a node there, tree 1 has a tensor");
  ExpectError(stack(*TensorDict::Make({{"s", 1}}), *TensorDict::Make({{"s", 2}})),
              "s: tree 0 has the value 1, tree 1 2");
  ExpectError(stack(*TensorDict::Make({{"a", x}}, {2}), *TensorDict::Make({{"a", x}}, {2, 3})),
              "tree 0 has the batch size [2], tree 1 [2, 3]");
  ExpectError(Stack({plain}, 1), "dimension 1 is out of range");
  ExpectError(Cat({plain}, 0), "dimension 0 is out of range");
  ExpectError(Cat({*TensorDict::Make({{"a", x}}, {2, 3}),
                   *TensorDict::Make({{"a", at::ones({2, 4})}}, {2, 4})},
                  0),
              "[2, 4]");
}

}  // namespace
}  // namespace leafpack
