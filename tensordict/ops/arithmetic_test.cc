#include "tensordict/ops/arithmetic.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tensordict/ops/cast.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

TensorDict Of(double a, double b) {
  return *TensorDict::Make({{"n", {{"a", at::full({2, 3}, a)}}},
                            {"b", at::full({2}, b)},
                            {"s", "x"},
                            {"u", at::Tensor()}},
                           {2});
}

void ExpectValues(const absl::StatusOr<TensorDict>& tree, double a, double b) {
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_TRUE(*AllClose(*tree, Of(a, b))) << a << " " << b;
}

TEST(ArithmeticTest, TreesAndNumbers) {
  const TensorDict x = Of(3, 4);
  const TensorDict y = Of(2, 8);
  const std::vector<std::pair<BinaryOp, std::function<double(double, double)>>> ops = {
      {BinaryOp::kAdd, [](double a, double b) { return a + b; }},
      {BinaryOp::kSub, [](double a, double b) { return a - b; }},
      {BinaryOp::kMul, [](double a, double b) { return a * b; }},
      {BinaryOp::kDiv, [](double a, double b) { return a / b; }},
      {BinaryOp::kPow, [](double a, double b) { return std::pow(a, b); }},
      {BinaryOp::kMaximum, [](double a, double b) { return std::max(a, b); }},
      {BinaryOp::kMinimum, [](double a, double b) { return std::min(a, b); }},
  };
  for (const auto& [op, fn] : ops) {
    SCOPED_TRACE(std::string(BinaryOpName(op)));
    ExpectValues(Apply(op, x, y), fn(3, 2), fn(4, 8));
    ExpectValues(Apply(op, x, 2), fn(3, 2), fn(4, 2));
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict z, Clone(x));
    const at::Tensor leaf = *z.Get("b");
    ASSERT_TRUE(ApplyInPlace(op, z, y).ok());
    ExpectValues(z, fn(3, 2), fn(4, 8));
    EXPECT_TRUE(z.Get("b")->is_same(leaf));
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict w, Clone(x));
    ASSERT_TRUE(ApplyInPlace(op, w, 2.0).ok());
    ExpectValues(w, fn(3, 2), fn(4, 2));
  }
  ExpectValues(x, 3, 4);
  ExpectValues(Add(x, y, 0.5), 4, 8);
  ExpectValues(Sub(x, y, 0.5), 2, 0);
  ExpectValues(Lerp(x, y, 0.25), 2.75, 5);
  TensorDict z = *Clone(x);
  z.Lock();
  ASSERT_TRUE(AddInPlace(z, y, 2).ok());
  ExpectValues(z, 7, 20);
  ASSERT_TRUE(SubInPlace(z, y).ok());
  ExpectValues(z, 5, 12);
  ASSERT_TRUE(LerpInPlace(z, y, 0.5).ok());
  ExpectValues(z, 3.5, 10);
  ASSERT_TRUE(AddcmulInPlace(z, x, y, 2).ok());
  ExpectValues(z, 15.5, 74);
  ASSERT_TRUE(AddcdivInPlace(z, x, y, -2).ok());
  ExpectValues(z, 12.5, 73);
}

TEST(ArithmeticTest, Unary) {
  const TensorDict x = Of(0.25, 0.5);
  const std::vector<std::pair<UnaryOp, double (*)(double)>> ops = {
      {UnaryOp::kAbs, std::fabs},   {UnaryOp::kSqrt, std::sqrt},   {UnaryOp::kExp, std::exp},
      {UnaryOp::kExpm1, std::expm1}, {UnaryOp::kLog, std::log},    {UnaryOp::kLog10, std::log10},
      {UnaryOp::kLog1p, std::log1p}, {UnaryOp::kLog2, std::log2},  {UnaryOp::kSin, std::sin},
      {UnaryOp::kCos, std::cos},    {UnaryOp::kTan, std::tan},     {UnaryOp::kAsin, std::asin},
      {UnaryOp::kAcos, std::acos},  {UnaryOp::kAtan, std::atan},   {UnaryOp::kSinh, std::sinh},
      {UnaryOp::kCosh, std::cosh},  {UnaryOp::kTanh, std::tanh},   {UnaryOp::kErf, std::erf},
      {UnaryOp::kErfc, std::erfc},  {UnaryOp::kLgamma, std::lgamma}, {UnaryOp::kCeil, std::ceil},
      {UnaryOp::kFloor, std::floor}, {UnaryOp::kRound, std::nearbyint},
      {UnaryOp::kTrunc, std::trunc},
      {UnaryOp::kNeg, [](double v) { return -v; }},
      {UnaryOp::kSign, [](double) { return 1.0; }},
      {UnaryOp::kReciprocal, [](double v) { return 1 / v; }},
      {UnaryOp::kRsqrt, [](double v) { return 1 / std::sqrt(v); }},
      {UnaryOp::kFrac, [](double v) { return v; }},
      {UnaryOp::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }},
  };
  ASSERT_EQ(ops.size(), static_cast<size_t>(kNumUnaryOps));
  for (const auto& [op, fn] : ops) {
    SCOPED_TRACE(std::string(UnaryOpName(op)));
    ExpectValues(Apply(op, x), fn(0.25), fn(0.5));
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict z, Clone(x));
    ASSERT_TRUE(ApplyInPlace(op, z).ok());
    ExpectValues(z, fn(0.25), fn(0.5));
  }
}

TEST(ArithmeticTest, ErrorsNameThePath) {
  const TensorDict x = Of(1, 1);
  const auto with = [](const NestedKey& key, TreeValue value) {
    TensorDict tree = Of(1, 1);
    EXPECT_TRUE(SetValue(tree, key, std::move(value)).ok());
    return tree;
  };
  ExpectError(Add(x, with("z", at::ones({2}))), "add: z: tree 1 has it, tree 0 has not");
  ExpectError(AddInPlace(x, with({"n", "q"}, at::ones({2}))), "n.q");
  ExpectError(Add(x, with("u", at::ones({2}))), "u: tree 0 has an undefined tensor");
  ExpectError(Add(x, with("s", 3)), "s: tree 0 has the value \"x\", tree 1 3");
  ExpectError(Apply(BinaryOp::kMul, x, with("b", TensorDict({2}))), "b: tree 0 has a tensor");
  ExpectError(AddInPlace(x, with("b", at::ones({2, 5}))), "add: ");
  // A leaf that broadcast must still begin with the batch size.
  const TensorDict one = *TensorDict::Make({{"b", at::ones({1})}}, {1});
  ExpectError(Add(one, *TensorDict::Make({{"b", at::ones({3})}})),
              "add: b: the shape [3] of the result does not begin with the batch size [1]");
  const TensorDict ints = *TensorDict::Make({{"i", at::ones({2}, at::kLong)}});
  ExpectError(ApplyInPlace(BinaryOp::kMul, ints, 0.5), "mul: ");
  TensorDict weights = Of(1, 1);
  weights.Get("b")->requires_grad_(true);
  ExpectError(AddInPlace(weights, x), "requires grad");
}

TEST(ArithmeticTest, NothingIsWrittenUnlessAllLeavesTakeIt) {
  const auto refused = [](const TensorDict& tree, const std::string& text, const auto& run) {
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict before, Clone(tree));
    ExpectError(run(tree), text);
    EXPECT_TRUE(*Equal(tree, before)) << text;
  };
  const auto with = [](at::Tensor leaf) {
    return *TensorDict::Make({{"a", at::full({3}, 4.0)}, {"n", {{"z", std::move(leaf)}}}});
  };
  const auto half = [](const TensorDict& tree) { return ApplyInPlace(BinaryOp::kMul, tree, 0.5); };
  const auto root = [](const TensorDict& tree) { return ApplyInPlace(UnaryOp::kSqrt, tree); };
  const auto add = [](const TensorDict& tree) { return AddInPlace(tree, *Clone(tree), 2); };
  refused(with(at::ones({3}, at::kLong)), "mul: n.z: ", half);
  refused(with(at::ones({3}, at::kLong)), "sqrt: n.z: ", root);
  refused(with(at::ones({1}).expand({3})), "mul: n.z: elements of it lie at one place", half);
  refused(with(at::ones({1}).expand({3})), "add: n.z: elements of it lie at one place", add);
  refused(with(at::ones({3}).requires_grad_()), "sqrt: n.z: it is a leaf of autograd", root);
  refused(with(at::ones({3})), "add: n.z: values of shape [2, 3] do not fit", [&](const auto& tree) {
    return AddInPlace(tree, with(at::ones({2, 3})));
  });
  refused(with(at::ones({3}, at::kLong)), "add: n.z: ", [&](const auto& tree) {
    return AddInPlace(tree, with(at::ones({3})));
  });
  refused(with(at::ones({3}, at::kLong)), "mul: n.z: ", [](const auto& tree) {
    return ApplyInPlace(BinaryOp::kMul, tree, std::vector<at::Tensor>(2, at::full({}, 0.5)));
  });
  EXPECT_TRUE(add(with(at::ones({3}, at::kLong))).ok());
  EXPECT_TRUE(AddInPlace(with(at::ones({3})), with(at::ones({3}, at::kLong))).ok());
}

TEST(ArithmeticTest, EmptyTreesAndEmptyLeaves) {
  const TensorDict none;
  EXPECT_TRUE(Add(none, none)->empty());
  EXPECT_TRUE(Apply(UnaryOp::kExp, none)->empty());
  EXPECT_TRUE(AddInPlace(none, none).ok());
  EXPECT_EQ(Norm(none)->item<double>(), 0);
  EXPECT_EQ(ClipNormInPlace(none, 1)->item<double>(), 0);
  const TensorDict hollow = *TensorDict::Make({{"a", at::ones({0, 3})}, {"b", at::ones({})}});
  EXPECT_EQ(Add(hollow, hollow)->Get("a")->numel(), 0);
  EXPECT_EQ(Norm(hollow)->item<double>(), 1);
}

TEST(ArithmeticTest, AutogradPassesThrough) {
  const TensorDict x = Of(3, 4);
  ASSERT_TRUE(RequiresGradInPlace(x).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict square, Apply(BinaryOp::kMul, x, x));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict sum, Apply(BinaryOp::kAdd, square, 1.0));
  sum.Get({"n", "a"})->sum().add(sum.Get("b")->sum()).backward();
  EXPECT_TRUE(x.Get({"n", "a"})->grad().equal(at::full({2, 3}, 6.0)));
  EXPECT_TRUE(x.Get("b")->grad().equal(at::full({2}, 8.0)));
}

TEST(NormTest, OfLeavesAndOfAll) {
  const TensorDict x = *TensorDict::Make(
      {{"a", at::full({4}, 3.0)}, {"n", {{"b", at::full({2, 2}, -4.0)}}}});
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict norms, LeafNorms(x));
  EXPECT_EQ(norms.Get("a")->item<double>(), 6);
  EXPECT_EQ(norms.Get({"n", "b"})->item<double>(), 8);
  EXPECT_EQ(Norm(x)->item<double>(), 10);
  EXPECT_EQ(Norm(x, 1)->item<double>(), 28);
  EXPECT_EQ(Norm(x, std::numeric_limits<double>::infinity())->item<double>(), 4);
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict batched, LeafNorms(Of(1, 1)));
  EXPECT_EQ(batched.batch_size(), at::IntArrayRef({}));
  EXPECT_EQ(batched.GetDict("n")->batch_size(), at::IntArrayRef({}));

  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict same, Clone(x));
  EXPECT_EQ(ClipNormInPlace(same, 100)->item<double>(), 10);
  EXPECT_TRUE(*Equal(same, x));
  EXPECT_EQ(ClipNormInPlace(same, 5)->item<double>(), 10);
  EXPECT_NEAR(Norm(same)->item<double>(), 5, 1e-5);
  EXPECT_NEAR((*same.Get("a"))[0].item<double>(), 1.5, 1e-6);
  ExpectError(ClipNormInPlace(x, -1), "-1 is negative");
  x.Get("a")->fill_(std::numeric_limits<double>::infinity());
  ExpectError(ClipNormInPlace(x, 1, 2, /*refuse_nonfinite=*/true), "not finite");
  EXPECT_EQ((*x.Get({"n", "b"}))[0][0].item<double>(), -4);
}

}  // namespace
}  // namespace leafpack
