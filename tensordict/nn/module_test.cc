#include "tensordict/nn/module.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/consolidate.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

using testing::ElementsAre;

struct Inner : torch::nn::Module {
  Inner() {
    weight = register_parameter("weight", Counted({3, 2}));
    bias = register_parameter("bias", at::Tensor(), /*requires_grad=*/false);
    mean = register_buffer("mean", at::ones({2}));
  }
  at::Tensor weight, bias, mean;
};

struct Outer : torch::nn::Module {
  Outer() {
    a = register_module("a", std::make_shared<Inner>());
    tied = register_parameter("tied", a->weight);
    scale = register_parameter("scale", at::ones({}));
    frozen = register_parameter("frozen", at::ones({2}), /*requires_grad=*/false);
  }
  at::Tensor Forward() { return a->weight.mul(scale).sum(); }
  std::shared_ptr<Inner> a;
  at::Tensor tied, scale, frozen;
};

TEST(ModuleTest, TheTreeHoldsTheTensorsThemselves) {
  Outer module;
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict tree, FromModule(module));
  EXPECT_THAT(PathsIn(tree), ElementsAre("a", "a.mean", "a.weight", "frozen", "scale", "tied"));
  EXPECT_TRUE(tree.Get({"a", "weight"})->is_same(module.a->weight));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict parameters, FromModule(module, {.buffers = false}));
  EXPECT_FALSE(parameters.Contains({"a", "mean"}));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict buffers, FromModule(module, {.parameters = false}));
  EXPECT_THAT(PathsIn(buffers), ElementsAre("a", "a.mean"));
}

TEST(ModuleTest, LoadCopies) {
  Outer module;
  LEAFPACK_ASSIGN_OR_FAIL(TensorDict tree, Clone(*Detach(*FromModule(module))));
  tree.Get({"a", "mean"})->fill_(7);
  const at::Tensor weight = module.a->weight;
  ASSERT_TRUE(LoadIntoModule(tree, module).ok());
  EXPECT_EQ(module.a->mean.sum().item<double>(), 14);
  EXPECT_TRUE(module.a->weight.is_same(weight));
  EXPECT_TRUE(module.a->weight.requires_grad());
  EXPECT_NE(module.a->mean.data_ptr(), tree.Get({"a", "mean"})->data_ptr());

  // Errors before anything has changed.
  tree.Get({"a", "mean"})->fill_(8);
  TensorDict other = *Clone(tree, false);
  ASSERT_TRUE(other.Set("zz", 1).ok());
  ExpectError(LoadIntoModule(other, module), "zz: the tree has it, the module has not");
  other = *Exclude(tree, {"scale"});
  ExpectError(LoadIntoModule(other, module), "scale: the module has it",
              absl::StatusCode::kNotFound);
  other = *Clone(tree, false);
  ASSERT_TRUE(other.Set("scale", at::ones({1})).ok());
  ExpectError(LoadIntoModule(other, module), "scale: the leaf has the shape [1]");
  ASSERT_TRUE(other.Set("scale", at::ones({}, at::kDouble)).ok());
  ExpectError(LoadIntoModule(other, module), "scale: the leaf is float64");
  ASSERT_TRUE(other.Set("scale", "x").ok());
  ExpectError(LoadIntoModule(other, module), "scale: it is no tensor");
  EXPECT_EQ(module.a->mean.sum().item<double>(), 14);
  // Lenient.
  other = *Exclude(tree, {"scale"});
  ASSERT_TRUE(other.Set("zz", 1).ok());
  ASSERT_TRUE(LoadIntoModule(other, module, {.strict = false}).ok());
  EXPECT_EQ(module.a->mean.sum().item<double>(), 16);
}

TEST(ModuleTest, AssignSharesMemory) {
  Outer module;
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict tree, Consolidate(*FromModule(module)));
  const at::Tensor weight = module.a->weight;
  ASSERT_TRUE(LoadIntoModule(tree, module, {.assign = true}).ok());
  EXPECT_TRUE(module.a->weight.is_same(weight));
  EXPECT_EQ(weight.data_ptr(), tree.Get({"a", "weight"})->data_ptr());
  EXPECT_TRUE(weight.requires_grad());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict now, FromModule(module));
  EXPECT_TRUE(NeedsNoPacking(*Layout::Of(Flatten(now))));
}

TEST(ModuleTest, Gradients) {
  Outer module;
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict none, ModuleGrads(module));
  EXPECT_THAT(PathsIn(none), ElementsAre("a", "a.weight", "scale", "tied"));
  EXPECT_FALSE(none.Get("scale")->defined());
  module.Forward().backward();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict grads, ModuleGrads(module));
  EXPECT_TRUE(grads.Get("scale")->is_same(module.scale.grad()));
  EXPECT_EQ(grads.Get("scale")->item<double>(), 15);

  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict packed, ConsolidateGrads(module));
  EXPECT_EQ(packed.Get("scale")->item<double>(), 15);  // kept
  EXPECT_TRUE(ConsolidatedStorage(packed).has_value());
  EXPECT_TRUE(NeedsNoPacking(*Layout::Of(Flatten(packed))));
  module.Forward().backward();  // adds in place
  EXPECT_EQ(packed.Get("scale")->item<double>(), 30);
  EXPECT_EQ(packed.Get({"a", "weight"})->sum().item<double>(), 12);
  EXPECT_EQ(packed.Get("tied")->data_ptr(), (packed.Get({"a", "weight"})->data_ptr()));
  ASSERT_TRUE(ZeroInPlace(packed).ok());
  EXPECT_EQ(module.a->weight.grad().sum().item<double>(), 0);
}

}  // namespace
}  // namespace leafpack
