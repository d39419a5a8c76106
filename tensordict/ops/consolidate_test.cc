#include "tensordict/ops/consolidate.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/bucket/packer.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

const c10::Device kMeta(c10::DeviceType::Meta);

Layout LayoutOf(const TensorDict& tree) {
  absl::StatusOr<Layout> layout = Layout::Of(Flatten(tree));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : Layout();
}

TEST(ConsolidateTest, OneStorageWhateverTheKeys) {
  TensorDict tree({2});
  for (const char* key : {"shape", "leaves", "cls", "_type", "non_tensors", "", "a.b", "device"}) {
    ASSERT_TRUE(tree.Set({"n", key}, Counted({2, 3})).ok());
  }
  ASSERT_TRUE(tree.Set("i", at::ones({2}, at::kLong)).ok());
  ASSERT_TRUE(tree.Set("h", at::ones({2, 5}, at::kBFloat16)).ok());
  ASSERT_TRUE(tree.Set("bool", at::ones({2}, at::kBool)).ok());
  ASSERT_TRUE(tree.Set("turned", Counted({3, 2}).t()).ok());
  ASSERT_TRUE(tree.Set("empty", at::zeros({2, 0})).ok());
  ASSERT_TRUE(tree.Set("s", "text").ok());
  ASSERT_TRUE(tree.Set("u", at::Tensor()).ok());
  ASSERT_TRUE(tree.SetNames({"time"}).ok());
  EXPECT_EQ(ConsolidatedStorage(tree), std::nullopt);
  EXPECT_FALSE(NeedsNoPacking(LayoutOf(tree)));

  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict packed, Consolidate(tree));
  EXPECT_TRUE(*Equal(packed, tree));
  EXPECT_EQ(packed.names(), tree.names());
  const Layout layout = LayoutOf(packed);
  EXPECT_EQ(layout, LayoutOf(tree));
  EXPECT_TRUE(NeedsNoPacking(layout));
  const std::optional<at::Tensor> storage = ConsolidatedStorage(packed);
  ASSERT_TRUE(storage.has_value());
  EXPECT_GE(storage->numel(), layout.total_bytes());
  EXPECT_EQ(packed.Get("turned")->strides(), tree.Get("turned")->strides());
  // Each run begins aligned.
  for (const LeafInfo& leaf : layout.leaves()) {
    EXPECT_TRUE(leaf.numel == 0 || leaf.follows >= 0 || leaf.address % 64 == 0);
  }
  // A leaf is a view: writing the storage writes the leaf, and nothing of the old tree.
  storage->zero_();
  EXPECT_EQ(packed.Get({"n", "shape"})->sum().item<double>(), 0);
  EXPECT_EQ(tree.Get({"n", "shape"})->sum().item<double>(), 15);
}

TEST(ConsolidateTest, ABucketPlanSeesOneRunWithoutCopy) {
  TensorDict tree;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(tree.Set({"p", i}, at::full({7, 3}, i)).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict packed, Consolidate(tree));
  const FlatTree flat = Flatten(packed);
  PlanParams params;
  params.memory_agreed = true;
  LEAFPACK_ASSIGN_OR_FAIL(const BucketPlan plan,
                          MakeBucketPlan(LayoutOf(packed), Bucketing::Auto(), params));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.buckets[0].slots.size(), 40u);
  Packer packer(std::make_shared<BufferPool>());
  LEAFPACK_ASSIGN_OR_FAIL(const PackedBucket bucket,
                          packer.Pack(plan.buckets[0], flat.leaves, PackOrder::kMemory));
  EXPECT_FALSE(bucket.owned());
  EXPECT_EQ(bucket.data(), (packed.Get({"p", 0})->data_ptr()));
}

TEST(ConsolidateTest, AliasesStayAliases) {
  const at::Tensor m = Counted({4, 6});
  const at::Tensor w = Counted({2, 3, 4}).transpose(0, 2);  // dense, permuted
  TensorDict tree;
  ASSERT_TRUE(tree.Set("a", m.slice(1, 0, 2)).ok());
  ASSERT_TRUE(tree.Set("b", m.slice(1, 2)).ok());
  ASSERT_TRUE(tree.Set("c", m.slice(1, 0, 2).t()).ok());
  ASSERT_TRUE(tree.Set("d", m.slice(1, 0, 2)).ok());
  ASSERT_TRUE(tree.Set("f", m.slice(1, 2).view({4, 2, 2})).ok());
  ASSERT_TRUE(tree.Set("w", w).ok());
  ASSERT_TRUE(tree.Set("x", w.transpose(0, 2).view({24})).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict packed, Consolidate(tree));
  EXPECT_TRUE(*Equal(packed, tree));
  EXPECT_EQ(LayoutOf(packed), LayoutOf(tree));  // aliases are part of it
  EXPECT_TRUE(NeedsNoPacking(LayoutOf(packed)));
  packed.Get("a")->fill_(-1);
  EXPECT_EQ(packed.Get("c")->sum().item<double>(), -8);
  EXPECT_EQ(packed.Get("f")->sum().item<double>(), tree.Get("f")->sum().item<double>());
}

TEST(ConsolidateTest, RandomAliasesOfStridedViews) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  int kept = 0;
  for (int round = 0; round < 500; ++round) {
    at::Tensor view = Counted({4, 6, 4});
    for (int64_t d = 0; d < 3; ++d) {
      if (rng() % 2 == 0) view = view.slice(d, 0, view.size(d), 2);
    }
    at::Tensor other = view;
    if (rng() % 2 == 0) other = other.transpose(0, static_cast<int64_t>(rng() % 3));
    if (rng() % 2 == 0 && other.size(1) % 2 == 0) other = other.unflatten(1, {2, -1});
    if (rng() % 2 == 0) std::swap(view, other);
    const TensorDict tree = *TensorDict::Make({{"a", view}, {"b", other}, {"z", at::ones({3})}});
    const absl::StatusOr<TensorDict> packed = Consolidate(tree);
    if (!packed.ok()) {
      EXPECT_EQ(packed.status().code(), absl::StatusCode::kUnimplemented) << packed.status();
      continue;
    }
    ++kept;
    ASSERT_TRUE(*Equal(*packed, tree)) << view.sizes() << view.strides() << other.strides();
    ASSERT_EQ(LayoutOf(*packed), LayoutOf(tree));
  }
  EXPECT_GT(kept, 400);
}

TEST(ConsolidateTest, WhatTorchKnowsOfTheLeaves) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set("w", at::ones({2}).requires_grad_(true)).ok());
  ASSERT_TRUE(tree.Set("mean", at::ones({2})).ok());
  ASSERT_TRUE(tree.Set("c", at::ones({2}, at::kComplexFloat).conj()).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict packed, Consolidate(tree));
  const at::Tensor w = *packed.Get("w");
  EXPECT_TRUE(w.requires_grad());
  EXPECT_TRUE(w.is_leaf());
  EXPECT_FALSE(packed.Get("c")->is_conj());
  EXPECT_TRUE(packed.Get("c")->equal(*tree.Get("c")));
  // Writing one leaf between forward and backward does not disturb another.
  const at::Tensor loss = w.mul(w).sum();
  packed.Get("mean")->add_(w.mul(2));  // and autograd may write into a leaf
  loss.backward();
  EXPECT_EQ(w.grad().sum().item<double>(), 4);
}

TEST(ConsolidateTest, SparseLeavesAndDevices) {
  const at::Tensor sparse = at::sparse_coo_tensor({5}, at::kFloat);
  TensorDict tree = *TensorDict::Make({{"a", at::ones({2})}, {"s", sparse}});
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict packed, Consolidate(tree));
  EXPECT_TRUE(packed.Get("s")->is_same(sparse));
  ASSERT_TRUE(tree.Erase("s").ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict meta, Consolidate(tree, {.device = kMeta}));
  EXPECT_TRUE(meta.Get("a")->is_meta());
  EXPECT_EQ(meta.device(), kMeta);
  ASSERT_TRUE(tree.Set("m", meta.Get("a")->clone()).ok());
  ExpectError(Consolidate(tree), "m: it lies on meta, leaves before it on cpu");
  EXPECT_TRUE(Consolidate(TensorDict()).ok());
  EXPECT_EQ(ConsolidatedStorage(TensorDict()), std::nullopt);
}

TEST(ConsolidateTest, Errors) {
  const at::Tensor x = at::ones({4});
  ExpectError(Consolidate(*TensorDict::Make({{"a", x}, {"b", x.slice(0, 2)}})), "a and b");
  ExpectError(Consolidate(*TensorDict::Make({{"a", at::ones({1}).expand({4})}})),
              "overlaps itself");
  ExpectError(Consolidate(TensorDict(), {.alignment = 0}), "alignment 0");
  ExpectError(Consolidate(TensorDict(), {.alignment = 48}), "alignment 48");
}

}  // namespace
}  // namespace leafpack
