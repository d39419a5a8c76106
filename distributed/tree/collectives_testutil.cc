#include "distributed/tree/collectives_testutil.h"

#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack::testing {

at::Tensor Values(at::ScalarType dtype, at::IntArrayRef sizes, int seed) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const at::Tensor run = at::arange(numel, at::kLong).add_(37 * seed).remainder(101);
  return (dtype == at::kBool ? run.remainder(2) : run).to(dtype).reshape(sizes);
}

TensorDict MakeTree(int seed, Size size, int variant) {
  TensorDict tree;
  const auto set = [&](const NestedKey& key, at::Tensor leaf) {
    const absl::Status status = tree.Set(key, std::move(leaf));
    ASSERT_TRUE(status.ok()) << status;
  };
  set({"layer", "weight"}, Values(at::kFloat, {3 + variant, 4}, seed));
  set({"layer", "bias"}, Values(at::kDouble, {5}, seed + 1));
  set({"list", 0}, Values(at::kLong, {}, seed + 2));
  set({"list", 1}, Values(at::kHalf, {2, 3}, seed + 3).t());
  set({"mask"}, Values(at::kBool, {7}, seed + 4));
  set({"none"}, Values(at::kFloat, {0, 3}, seed));
  set({"missing"}, at::Tensor());
  const at::Tensor tied = Values(at::kFloat, {2, 5}, seed + 5);
  set({"tied", "a"}, tied);
  set({"tied", "b"}, tied.t());
  if (variant > 0) set({"more"}, Values(at::kInt, {3}, seed + 6));
  if (size == Size::kSmall) return tree;
  set({"large", "whole"}, Values(at::kFloat, {300, 500}, seed + 7));
  set({"large", "strided"}, Values(at::kFloat, {200, 600}, seed + 8).slice(1, 0, 300));
  for (int i = 0; i < 60; ++i) {
    set({"many", i}, Values(at::kBFloat16, {40, 50 + i}, seed + i));
  }
  return tree;
}

void ExpectEqual(const TensorDict& tree, const TensorDict& expected) {
  const FlatTree got = Flatten(tree);
  const FlatTree want = Flatten(expected);
  ASSERT_EQ(got.paths->paths(), want.paths->paths());
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string path = (*got.paths)[i].ToString();
    ASSERT_EQ(got.leaves[i].defined(), want.leaves[i].defined()) << path;
    if (!got.leaves[i].defined()) continue;
    ASSERT_EQ(got.leaves[i].scalar_type(), want.leaves[i].scalar_type()) << path;
    ASSERT_EQ(got.leaves[i].sizes(), want.leaves[i].sizes()) << path;
    EXPECT_TRUE(at::equal(got.leaves[i], want.leaves[i])) << path;
  }
}

void ExpectTree(const TensorDict& tree, int seed, Size size, int variant) {
  ExpectEqual(tree, MakeTree(seed, size, variant));
}

void ExpectError(const absl::Status& status, absl::StatusCode code, ErrorKind kind,
                 const std::vector<std::string_view>& texts) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(GetErrorDetails(status).kind, kind) << status;
  for (const std::string_view text : texts) {
    EXPECT_NE(status.message().find(text), std::string_view::npos)
        << "no '" << text << "' in " << status;
  }
}

void ExpectUsable(const Group& group) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set("x", Values(at::kFloat, {3}, 0)).ok());
  const absl::Status status = AllReduce(tree, group);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace leafpack::testing
