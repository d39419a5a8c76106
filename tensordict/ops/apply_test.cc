// Apply, copies and conversions, comparisons.
#include "tensordict/ops/apply.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

using testing::ElementsAre;

const c10::Device kMeta(c10::DeviceType::Meta);

TensorDict Sample() {
  return *TensorDict::Make({{"a", {{"b", at::ones({4})}, {"e", {}}}},
                            {"c", at::ones({4, 2})},
                            {"s", "x"},
                            {"u", at::Tensor()}},
                           {4});
}

TEST(ApplyTest, MakesANewTree) {
  const TensorDict tree = Sample();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict doubled,
                          Apply(tree, [](const at::Tensor& x) { return x.mul(2); }));
  EXPECT_EQ(doubled.Get("c")->sum().item<double>(), 16);
  EXPECT_EQ(tree.Get("c")->sum().item<double>(), 8);
  EXPECT_THAT(PathsIn(doubled), ElementsAre("a", "a.b", "a.e", "c", "s", "u"));
  EXPECT_EQ(doubled.GetDict("a")->batch_size(), at::IntArrayRef({4}));
  std::vector<std::string> paths;
  ASSERT_TRUE(NamedApply(tree, [&](const NestedKey& path, const at::Tensor& x) {
                paths.push_back(path.ToString());
                return x;
              }).ok());
  EXPECT_THAT(paths, ElementsAre("a.b", "c"));
}

TEST(ApplyTest, DropsLeaves) {
  const TensorDict tree = *TensorDict::Make(
      {{"a", {{"b", at::ones({1})}}}, {"e", {}}, {"w", at::ones({2})}});
  const auto keep_large = [](const at::Tensor& x) -> std::optional<at::Tensor> {
    if (x.numel() == 1) return std::nullopt;
    return x;
  };
  const auto paths = [&](EmptyNodes empty) {
    return PathsIn(*Apply(tree, keep_large, {.empty_nodes = empty}));
  };
  EXPECT_THAT(paths(EmptyNodes::kKeep), ElementsAre("a", "e", "w"));
  EXPECT_THAT(paths(EmptyNodes::kDrop), ElementsAre("w"));
  EXPECT_THAT(paths(EmptyNodes::kKeepIfEmptyBefore), ElementsAre("e", "w"));
}

TEST(ApplyTest, BatchSizeOfTheResult) {
  const TensorDict tree = Sample();
  const auto sum = [](const at::Tensor& x) { return x.sum(0); };
  ExpectError(Apply(tree, sum),
              "apply: a.b: the shape [] of the result does not begin with the batch size [4]");
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict summed,
                          Apply(tree, sum, {.batch_size = std::vector<int64_t>()}));
  EXPECT_EQ(summed.batch_size(), at::IntArrayRef({}));
  EXPECT_EQ(summed.GetDict("a")->batch_size(), at::IntArrayRef({}));
}

TEST(ApplyTest, SeveralTrees) {
  const TensorDict tree = Sample();
  const TensorDict trees[] = {tree, tree, tree};
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict sum,
                          Apply(trees, [](absl::Span<const at::Tensor> x) {
                            return x[0].add(x[1]).add(x[2]);
                          }));
  EXPECT_EQ(sum.Get("c")->sum().item<double>(), 24);
  const TensorDict other[] = {tree, *Exclude(tree, {{"a", "b"}})};
  ExpectError(Apply(other, [](absl::Span<const at::Tensor> x) { return x[0]; }),
              "a.b: tree 0 has it, tree 1 has not");
}

TEST(ApplyTest, WhatIsThrownNamesThePath) {
  const TensorDict tree = Sample();
  ExpectError(Apply(tree, [](const at::Tensor& x) { return x.view({4, 1}); }), "apply: c: ");
  ExpectError(Apply(tree,
                    [](const at::Tensor&) -> std::optional<at::Tensor> {
                      throw std::runtime_error("mine");
                    }),
              "apply: a.b: mine");
}

TEST(ApplyTest, InPlaceIsAllOrNothing) {
  TensorDict tree = Sample();
  const at::Tensor b = *tree.Get({"a", "b"});
  ExpectError(ApplyInPlace(tree, [](const at::Tensor& x) { return x.view({4, 1}); }), "c");
  EXPECT_TRUE(tree.Get({"a", "b"})->is_same(b));
  ASSERT_TRUE(ApplyInPlace(tree, [](const at::Tensor& x) { return x.add(1); }).ok());
  EXPECT_FALSE(tree.Get({"a", "b"})->is_same(b));
  EXPECT_EQ(tree.Get({"a", "b"})->sum().item<double>(), 8);
  tree.Lock();
  ASSERT_TRUE(ApplyInPlace(tree, [](const at::Tensor& x) -> std::optional<at::Tensor> {
                x.zero_();
                return std::nullopt;
              }).ok());
  EXPECT_EQ(tree.Get({"a", "b"})->sum().item<double>(), 0);
  ExpectError(ApplyInPlace(tree, [](const at::Tensor& x) { return x.add(1); }), "locked",
              absl::StatusCode::kFailedPrecondition);
}

// What a function does to the tree that it is applied to is not seen by the walk.
TEST(ApplyTest, AFunctionMayChangeTheTree) {
  const auto many = [] {
    TensorDict tree;
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(tree.Set({"in", absl::StrCat("k", i)}, at::full({2}, i)).ok());
    }
    return tree;
  };
  TensorDict tree = many();
  int calls = 0;
  const auto change = [&](const at::Tensor& leaf) -> std::optional<at::Tensor> {
    ++calls;
    EXPECT_TRUE(tree.Set("in", TensorDict()).ok());  // frees the node that is being walked
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(tree.Set(absl::StrCat("new", calls, ".", i), at::zeros({1})).ok());
    }
    return leaf.add(1);
  };
  LEAFPACK_ASSIGN_OR_FAIL(TensorDict made, Apply(tree, change));
  EXPECT_EQ(calls, 100);
  EXPECT_EQ(PathsIn(made).size(), 101u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(made.Get({"in", absl::StrCat("k", i)})->sum().item<int64_t>(), 2 * (i + 1));
  }
  tree = many();
  const TensorDict trees[] = {tree, many()};
  LEAFPACK_ASSIGN_OR_FAIL(
      made, Apply(trees, [&](absl::Span<const at::Tensor> leaves) { return change(leaves[1]); }));
  EXPECT_EQ(made.Get({"in", "k7"})->sum().item<int64_t>(), 2 * 8);
  // In place there is nothing to put the results into.
  tree = many();
  ExpectError(ApplyInPlace(tree, change), "changed the structure",
              absl::StatusCode::kFailedPrecondition);
  tree = many();
  ExpectError(ApplyInPlace(tree,
                           [&](const at::Tensor& leaf) -> std::optional<at::Tensor> {
                             if (tree.Contains({"in", "k99"})) {
                               EXPECT_TRUE(tree.Erase({"in", "k99"}).ok());
                             }
                             return leaf.add(1);
                           }),
              "k99", absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(tree.Get({"in", "k98"})->sum().item<int64_t>(), 2 * 98);
}

TEST(ApplyTest, DeepTreesAreRefused) {
  TensorDict root;
  TensorDict at = root;
  for (int i = 0; i < 100000; ++i) {
    ASSERT_TRUE(at.Set("k", TensorDict()).ok());
    at = *at.GetDict("k");
  }
  ExpectError(Apply(root, [](const at::Tensor& x) { return x; }), "512");
  ExpectError(Clone(root), "512");
}

TEST(CastTest, ToSharesWhatIsAsAskedFor) {
  const TensorDict tree = *TensorDict::Make(
      {{"f", at::ones({2})}, {"i", at::ones({2}, at::kLong)}, {"s", 1}, {"u", at::Tensor()}});
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict floats, To(tree, {.dtype = at::kFloat}));
  EXPECT_TRUE(floats.Get("f")->is_same(*tree.Get("f")));
  EXPECT_EQ(floats.Get("i")->scalar_type(), at::kFloat);
  EXPECT_EQ(floats.device(), std::nullopt);
  LEAFPACK_ASSIGN_OR_FAIL(TensorDict meta, To(tree, {.device = kMeta}));
  EXPECT_TRUE(meta.Get("i")->is_meta());
  EXPECT_EQ(meta.device(), kMeta);
  ASSERT_TRUE(meta.Set({"n", "x"}, at::ones({1})).ok());
  EXPECT_TRUE(meta.Get({"n", "x"})->is_meta());
}

TEST(CastTest, CloneContiguousDetach) {
  TensorDict tree = Sample();
  ASSERT_TRUE(tree.SetNames({"time"}).ok());
  tree.Lock();
  LEAFPACK_ASSIGN_OR_FAIL(TensorDict nodes, Clone(tree, /*recurse=*/false));
  EXPECT_TRUE(nodes.Get("c")->is_same(*tree.Get("c")));
  EXPECT_FALSE(nodes.GetDict("a")->IsSame(*tree.GetDict("a")));
  EXPECT_TRUE(nodes.Set("new", 1).ok());
  EXPECT_THAT(nodes.names(), ElementsAre("time"));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict copy, Clone(tree));
  copy.Get("c")->zero_();
  EXPECT_EQ(tree.Get("c")->sum().item<double>(), 8);

  const TensorDict turned = *TensorDict::Make({{"t", at::ones({2, 3}).t()}, {"c", at::ones({2})}});
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict contiguous, Contiguous(turned));
  EXPECT_TRUE(contiguous.Get("t")->is_contiguous());
  EXPECT_TRUE(contiguous.Get("c")->is_same(*turned.Get("c")));

  ASSERT_TRUE(RequiresGradInPlace(tree).ok());
  EXPECT_TRUE(tree.Get("c")->requires_grad());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict cloned, Clone(tree));
  cloned.Get("c")->sum().backward();  // autograd passes through
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict grads, Grads(tree));
  EXPECT_EQ(grads.Get("c")->sum().item<double>(), 8);
  EXPECT_TRUE(grads.Get("c")->is_same(tree.Get("c")->grad()));
  EXPECT_FALSE(grads.Get({"a", "b"})->defined());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict detached, Detach(tree));
  EXPECT_FALSE(detached.Get("c")->requires_grad());
  EXPECT_EQ(detached.Get("c")->data_ptr(), tree.Get("c")->data_ptr());
  ASSERT_TRUE(ZeroInPlace(detached).ok());
  EXPECT_EQ(tree.Get("c")->sum().item<double>(), 0);
  ASSERT_TRUE(ZeroInPlace(TensorDict()).ok());
  ExpectError(RequiresGradInPlace(*TensorDict::Make({{"i", at::ones({1}, at::kLong)}})),
              "requires_grad: i: ");
}

TEST(CompareTest, EqualAndClose) {
  const TensorDict tree = Sample();
  LEAFPACK_ASSIGN_OR_FAIL(TensorDict other, Clone(tree));
  EXPECT_TRUE(*Equal(tree, other));
  other.Get("c")->add_(1e-7);
  EXPECT_FALSE(*Equal(tree, other));
  EXPECT_TRUE(*AllClose(tree, other));
  EXPECT_FALSE(*AllClose(tree, other, {.relative = 0, .absolute = 1e-8}));
  const auto differs = [&](const NestedKey& key, TreeValue value) {
    TensorDict changed = *Clone(tree);
    EXPECT_TRUE(SetValue(changed, key, std::move(value)).ok());
    EXPECT_FALSE(*Equal(tree, changed)) << key;
    EXPECT_FALSE(*AllClose(tree, changed)) << key;
  };
  differs("s", "y");
  differs("z", 1);
  differs("u", at::ones({4}));
  differs("c", at::ones({4, 2}, at::kDouble));
  differs("c", at::ones({4, 2, 1}));
  differs({"a", "b"}, TensorDict({4}));
  differs({"a", "b"}, at::zeros({4}));
  EXPECT_FALSE(*Equal(TensorDict({1}), TensorDict({2})));
  const TensorDict nan =
      *TensorDict::Make({{"n", at::full({1}, std::numeric_limits<double>::quiet_NaN())}});
  EXPECT_FALSE(*Equal(nan, nan));
  EXPECT_FALSE(*AllClose(nan, nan));
  EXPECT_TRUE(*AllClose(nan, nan, {.equal_nan = true}));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict flags, ElementsEqual(tree, other));
  EXPECT_EQ(flags.Get("c")->scalar_type(), at::kBool);
  EXPECT_FALSE(flags.Get("c")->any().item<bool>());
  EXPECT_TRUE(flags.Get({"a", "b"})->all().item<bool>());
}

TEST(CompareTest, Measures) {
  const at::Tensor x = at::ones({4});
  const TensorDict tree = *TensorDict::Make(
      {{"a", x}, {"b", x}, {"c", x.slice(0, 0, 2)}, {"d", x.detach()}, {"s", 1}});
  EXPECT_EQ(Numel(tree), 14);
  EXPECT_EQ(Bytes(tree), 56);
  EXPECT_EQ(Bytes(tree, /*duplicates=*/false), 24);
  EXPECT_EQ(BatchNumel(tree), 1);
  EXPECT_EQ(BatchNumel(TensorDict({2, 3})), 6);
  EXPECT_EQ(BatchNumel(TensorDict({0, 3})), 0);
  EXPECT_FALSE(IsEmpty(tree));
  EXPECT_TRUE(IsEmpty(*TensorDict::Make({{"n", {}}})));
  EXPECT_EQ(*LayoutDigest(Sample()), *LayoutDigest(Sample()));
  EXPECT_NE(*LayoutDigest(Sample()), *LayoutDigest(*Exclude(Sample(), {"c"})));
  ExpectError(LayoutDigest(tree), "overlap");
}

}  // namespace
}  // namespace leafpack
