#include "tensordict/ops/lazy_stack.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tensordict/ops/cast.h"
#include "tensordict/ops/combine.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

using testing::ElementsAre;

// Two trees that differ in a shape and in keys.
std::vector<TensorDict> Two() {
  return {*TensorDict::Make(
              {{"a", at::ones({4, 2})}, {"n", {{"b", at::ones({4})}}}, {"x", at::ones({4})}}, {4}),
          *TensorDict::Make({{"a", at::zeros({4, 3})}, {"n", {{"b", at::zeros({4})}}}, {"x", 1}},
                            {4})};
}

TEST(LazyStackTest, KeepsTheTreesAsTheyAre) {
  const std::vector<TensorDict> trees = Two();
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack stack, LazyStack::Make(trees, 1));
  EXPECT_EQ(stack.size(), 2u);
  EXPECT_THAT(stack.batch_size(), ElementsAre(4, 2));
  EXPECT_TRUE(stack.tree(1).IsSame(trees[1]));
  std::vector<std::string> keys;
  for (const NestedKey& key : stack.CommonKeys({.nested = true})) keys.push_back(key.ToString());
  EXPECT_THAT(keys, ElementsAre("a", "n", "n.b"));

  LEAFPACK_ASSIGN_OR_FAIL(const at::Tensor b, stack.Get({"n", "b"}));
  EXPECT_EQ(b.sizes(), at::IntArrayRef({4, 2}));
  EXPECT_EQ(b.select(1, 0).sum().item<double>(), 4);
  ExpectError(stack.Get("a"), "a: tree 0 has the shape [4, 2], tree 1 [4, 3]");
  LEAFPACK_ASSIGN_OR_FAIL(const std::vector<at::Tensor> a, stack.GetList("a"));
  EXPECT_TRUE(a[1].is_same(*trees[1].Get("a")));
  ExpectError(stack.Get("x"), "tree 1: x is a value");
  ExpectError(stack.Get("q"), "tree 0: there is no q", absl::StatusCode::kNotFound);
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack n, stack.GetDict("n"));
  EXPECT_THAT(n.batch_size(), ElementsAre(4, 2));
  EXPECT_TRUE(n.tree(0).IsSame(*trees[0].GetDict("n")));
}

TEST(LazyStackTest, SetIsAllOrNothing) {
  const std::vector<TensorDict> trees = Two();
  LEAFPACK_ASSIGN_OR_FAIL(LazyStack stack, LazyStack::Make(trees, -1));
  const at::Tensor leaf = Counted({4, 2, 5});
  ASSERT_TRUE(stack.Set({"n", "new", "q"}, leaf).ok());
  EXPECT_TRUE(trees[1].Get({"n", "new", "q"})->equal(leaf.select(1, 1)));
  EXPECT_TRUE(stack.Get({"n", "new", "q"})->equal(leaf));
  ExpectError(stack.Set("q", Counted({2, 4})), "batch size [4, 2]");
  ExpectError(stack.Set({"x", "y"}, leaf), "tree 0: ");
  EXPECT_TRUE(trees[0].Get("x").ok());
  TensorDict second = trees[1];
  second.Lock();
  ExpectError(stack.Set("q", leaf), "tree 1: cannot set q: the tree is locked",
              absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(trees[0].Contains("q"));
}

TEST(LazyStackTest, PartsMapsAndDenseTrees) {
  const std::vector<TensorDict> trees = Two();
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack stack, LazyStack::Make({trees[0], trees[1], trees[0]}));
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack part, stack.Part(Slice(0, std::nullopt, 2)));
  ASSERT_EQ(part.size(), 2u);
  EXPECT_TRUE(part.tree(1).IsSame(trees[0]));
  ExpectError(stack.Part(Slice(3)), "no tree");
  ExpectError(stack.Part(Slice(0, 1, 0)), "step 0");
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict dense, part.Dense());
  EXPECT_TRUE(*Equal(dense, *Stack({trees[0], trees[0]})));
  ExpectError(stack.Dense(), "stack: ");
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack doubles, stack.Map([](const TensorDict& tree) {
    return To(tree, {.dtype = at::kDouble});
  }));
  EXPECT_EQ(doubles.tree(1).Get("a")->scalar_type(), at::kDouble);
}

TEST(LazyStackTest, AsATree) {
  const std::vector<TensorDict> trees = Two();
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack stack, LazyStack::Make(trees));
  const TensorDict tree = stack.AsTree();
  EXPECT_THAT(PathsIn(tree), ElementsAre("[0]", "[0].a", "[0].n", "[0].n.b", "[0].x", "[1]",
                                         "[1].a", "[1].n", "[1].n.b", "[1].x"));
  EXPECT_EQ(tree.num_leaves(), 6u);
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack back, LazyStack::FromTree(tree));
  EXPECT_TRUE(back.tree(1).IsSame(trees[1]));
  TensorDict other = tree;
  ASSERT_TRUE(other.Erase(NestedKey{0}).ok());
  ExpectError(LazyStack::FromTree(other), "[1]: the node at position 0");
}

TEST(LazyStackTest, Errors) {
  ExpectError(LazyStack::Make({}), "no tree");
  ExpectError(LazyStack::Make({TensorDict({2}), TensorDict({3})}),
              "tree 0 has the batch size [2], tree 1 [3]");
  ExpectError(LazyStack::Make({TensorDict({2})}, 2), "dimension 2");
  ExpectError(LazyStack::Make({TensorDict({2})}, -3), "dimension -3");
}

}  // namespace
}  // namespace leafpack
