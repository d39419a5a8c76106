#include "tensordict/bucket/bucket_plan.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"

namespace leafpack {
namespace {

using testing::HasSubstr;

FlatTree Tree(const std::vector<at::Tensor>& leaves) {
  std::vector<std::pair<NestedKey, at::Tensor>> pairs;
  for (size_t i = 0; i < leaves.size(); ++i) pairs.emplace_back(NestedKey{i}, leaves[i]);
  return *MakeFlatTree(std::move(pairs));
}

Layout LayoutOf(const std::vector<at::Tensor>& leaves) {
  absl::StatusOr<Layout> layout = Layout::Of(Tree(leaves));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

BucketPlan Plan(const Layout& layout, Bucketing bucketing, const PlanParams& params = {}) {
  absl::StatusOr<BucketPlan> plan = MakeBucketPlan(layout, bucketing, params);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Indices of the leaves of each bucket.
std::vector<std::vector<int64_t>> Leaves(const BucketPlan& plan) {
  std::vector<std::vector<int64_t>> leaves;
  for (const Bucket& bucket : plan.buckets) {
    leaves.emplace_back();
    for (const Slot& slot : bucket.slots) leaves.back().push_back(slot.leaf);
  }
  return leaves;
}

using Indices = std::vector<std::vector<int64_t>>;

at::Tensor Bytes(int64_t n) { return at::zeros({n}, at::kByte); }
at::Tensor Floats(int64_t n) { return at::zeros({n}, at::kFloat); }

TEST(BucketPlanTest, PerLeaf) {
  const at::Tensor x = Floats(3);
  const BucketPlan plan =
      Plan(LayoutOf({x, Bytes(5), Floats(0), x, at::Tensor(), at::zeros({}, at::kFloat)}),
           Bucketing::PerLeaf());
  EXPECT_EQ(Leaves(plan), (Indices{{0}, {1}, {5}}));
  EXPECT_EQ(plan.buckets[0].dtype, at::kFloat);
  EXPECT_EQ(plan.buckets[0].bytes, 12);
  EXPECT_EQ(plan.buckets[1].dtype, at::kByte);
  EXPECT_EQ(plan.payload_bytes, 12 + 5 + 4);
}

TEST(BucketPlanTest, MaxBytesFillsInOrder) {
  const Layout layout = LayoutOf(
      {Bytes(4), Bytes(4), Floats(1), Bytes(3), Bytes(11), Bytes(10), Bytes(2), Floats(2)});
  EXPECT_EQ(Leaves(Plan(layout, Bucketing::MaxBytes(10))),
            (Indices{{0, 1}, {2}, {3, 6}, {4}, {5}, {7}}));
  EXPECT_EQ(Leaves(Plan(layout, Bucketing::MaxBytes(12))),
            (Indices{{0, 1, 3}, {2, 7}, {4}, {5, 6}}));
  EXPECT_EQ(Leaves(Plan(layout, Bucketing::MaxBytes(1))).size(), 8u);
  EXPECT_EQ(Leaves(Plan(layout, Bucketing::MaxBytes(INT64_MAX / 2))).size(), 2u);
}

TEST(BucketPlanTest, SlotsAreTightByDefault) {
  const BucketPlan plan =
      Plan(LayoutOf({Floats(1), Floats(5), Floats(2)}), Bucketing::MaxBytes(1000));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.buckets[0].slots, (std::vector<Slot>{{0, 0, 4}, {1, 4, 20}, {2, 24, 8}}));
  EXPECT_EQ(plan.buckets[0].bytes, 32);
}

TEST(BucketPlanTest, AlignmentOfSlots) {
  PlanParams params;
  params.alignment = 16;
  const Layout layout = LayoutOf({Floats(1), Floats(5), Floats(2)});
  const BucketPlan plan = Plan(layout, Bucketing::MaxBytes(1000), params);
  EXPECT_EQ(plan.buckets[0].slots, (std::vector<Slot>{{0, 0, 4}, {1, 16, 20}, {2, 48, 8}}));
  EXPECT_EQ(plan.buckets[0].bytes, 56);
  EXPECT_EQ(plan.payload_bytes, 32);
  // Padding counts for the cap.
  EXPECT_EQ(Leaves(Plan(layout, Bucketing::MaxBytes(55), params)), (Indices{{0, 1}, {2}}));
  params.alignment = 1;  // less than an element: elements win
  EXPECT_EQ(Plan(layout, Bucketing::MaxBytes(1000), params).buckets[0].slots[1].offset, 4);
}

TEST(BucketPlanTest, BadInputIsRefused) {
  const Layout layout = LayoutOf({Floats(1)});
  const auto error = [&](Bucketing bucketing, const PlanParams& params) {
    const absl::Status s = MakeBucketPlan(layout, bucketing, params).status();
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    return std::string(s.message());
  };
  EXPECT_THAT(error(Bucketing::MaxBytes(0), {}), HasSubstr("at most 0 bytes"));
  EXPECT_THAT(error(Bucketing::MaxBytes(-7), {}), HasSubstr("-7"));
  PlanParams params;
  params.alignment = 24;
  EXPECT_THAT(error(Bucketing::Auto(), params), HasSubstr("24"));
  params.alignment = int64_t{1} << 62;
  EXPECT_THAT(error(Bucketing::Auto(), params), HasSubstr("overflow"));
  params = {};
  params.max_packed_bucket_bytes = 0;
  EXPECT_THAT(error(Bucketing::Auto(), params), HasSubstr("max_packed_bucket_bytes"));
  params = {};
  params.costs.message_ns = -1;
  EXPECT_THAT(error(Bucketing::Auto(), params), HasSubstr("-1 ns"));
  params = {};
  const std::vector<uint8_t> flags = {1, 1};
  params.included = flags;
  EXPECT_THAT(error(Bucketing::Auto(), params), HasSubstr("2 flags"));
}

TEST(BucketPlanTest, IncludedLeaves) {
  const at::Tensor x = Floats(3);
  const at::Tensor sparse = at::sparse_coo_tensor({4}, at::kFloat);
  const Layout layout = LayoutOf({x, Floats(1), x, x, sparse, sparse});
  const auto plan = [&](std::vector<uint8_t> included) {
    PlanParams params;
    params.included = included;
    return Plan(layout, Bucketing::PerLeaf(), params);
  };
  EXPECT_EQ(Leaves(plan({})), (Indices{{0}, {1}}));
  EXPECT_EQ(plan({}).sparse, std::vector<int64_t>{4});
  EXPECT_EQ(Leaves(plan({0, 1, 0, 1, 0, 1})), (Indices{{1}, {3}}));
  EXPECT_EQ(plan({0, 1, 0, 1, 0, 1}).sparse, std::vector<int64_t>{5});
  EXPECT_EQ(Leaves(plan({0, 0, 1, 1, 0, 0})), (Indices{{2}}));
  EXPECT_TRUE(plan({0, 0, 0, 0, 0, 0}).buckets.empty());
  EXPECT_TRUE(plan({0, 0, 0, 0, 0, 0}).sparse.empty());
}

TEST(BucketPlanTest, AutoPacksSmallLeavesAndLeavesLargeOnesAlone) {
  PlanParams params;
  params.costs = {
      .message_ns = 1000, .wire_ps_per_byte = 1000, .pack_ps_per_byte = 1000, .overlap = false};
  // A message costs as much as packing 1000 bytes.
  EXPECT_EQ(Leaves(Plan(LayoutOf({Bytes(10), Bytes(1001), Bytes(20), Bytes(5000), Bytes(30)}),
                        Bucketing::Auto(), params)),
            (Indices{{0, 2, 4}, {1}, {3}}));
  // Two leaves of 900 bytes: packing 1800 saves one message only.
  EXPECT_EQ(Leaves(Plan(LayoutOf({Bytes(900), Bytes(900)}), Bucketing::Auto(), params)),
            (Indices{{0}, {1}}));
  EXPECT_EQ(Leaves(Plan(LayoutOf({Bytes(400), Bytes(400)}), Bucketing::Auto(), params)),
            (Indices{{0, 1}}));
  EXPECT_EQ(Leaves(Plan(LayoutOf({Bytes(400)}), Bucketing::Auto(), params)), (Indices{{0}}));
  EXPECT_TRUE(Plan(LayoutOf({}), Bucketing::Auto(), params).buckets.empty());
}

TEST(BucketPlanTest, AutoCutsWhatOverlaps) {
  PlanParams params;
  params.costs = {
      .message_ns = 1000, .wire_ps_per_byte = 1000, .pack_ps_per_byte = 1000, .overlap = true};
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < 1000; ++i) leaves.push_back(Bytes(100));
  // S * pack / message = 100: ten buckets.
  const BucketPlan plan = Plan(LayoutOf(leaves), Bucketing::Auto(), params);
  EXPECT_EQ(plan.buckets.size(), 10u);
  for (const Bucket& bucket : plan.buckets) EXPECT_EQ(bucket.bytes, 10000);
  params.costs.overlap = false;
  EXPECT_EQ(Plan(LayoutOf(leaves), Bucketing::Auto(), params).buckets.size(), 1u);
  params.max_packed_bucket_bytes = 30000;
  const BucketPlan capped = Plan(LayoutOf(leaves), Bucketing::Auto(), params);
  EXPECT_EQ(capped.buckets.size(), 4u);
  for (const Bucket& bucket : capped.buckets) EXPECT_LE(bucket.bytes, 30000);
}

TEST(BucketPlanTest, AutoSeesNeighboursOnlyWhenMemoryIsAgreed) {
  PlanParams params;
  params.costs = {
      .message_ns = 1000, .wire_ps_per_byte = 1000, .pack_ps_per_byte = 1000, .overlap = false};
  const at::Tensor flat = Bytes(9000);
  const Layout layout = LayoutOf({flat.slice(0, 0, 5000), flat.slice(0, 5000, 5010),
                                  flat.slice(0, 5010, 9000), Bytes(7), Bytes(8)});
  EXPECT_EQ(Leaves(Plan(layout, Bucketing::Auto(), params)), (Indices{{0}, {1, 3, 4}, {2}}));
  params.memory_agreed = true;
  EXPECT_EQ(Leaves(Plan(layout, Bucketing::Auto(), params)), (Indices{{0, 1, 2}, {3, 4}}));
}

struct RandomTree {
  std::vector<at::Tensor> leaves;
  // The same sizes, dtypes and aliases, other strides and addresses.
  std::vector<at::Tensor> twin;
};

RandomTree MakeRandomTree(std::mt19937_64& rng) {
  static const at::ScalarType kDtypes[] = {at::kFloat, at::kByte, at::kComplexDouble, at::kHalf};
  RandomTree tree;
  const size_t n = rng() % 40;
  for (size_t i = 0; i < n; ++i) {
    const auto kind = rng() % 12;
    if (kind == 0 && i > 0) {
      const size_t j = rng() % i;
      tree.leaves.push_back(tree.leaves[j]);
      tree.twin.push_back(tree.twin[j]);
      continue;
    }
    if (kind == 1) {
      tree.leaves.emplace_back();
      tree.twin.emplace_back();
      continue;
    }
    const auto options = at::TensorOptions().dtype(kDtypes[rng() % 4]);
    const int64_t rows = kind == 2 ? 0 : 1 + static_cast<int64_t>(rng() % 9);
    const auto columns = static_cast<int64_t>(std::exp2(static_cast<double>(rng() % 90) / 10));
    tree.leaves.push_back(at::zeros({rows, columns}, options));
    tree.twin.push_back(at::zeros({columns, rows + 1}, options).t().slice(0, 0, rows));
  }
  return tree;
}

TEST(BucketPlanTest, RandomTreesKeepAllPromises) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 500; ++round) {
    const RandomTree tree = MakeRandomTree(rng);
    const Layout layout = LayoutOf(tree.leaves);
    const auto cap = static_cast<int64_t>(1 + rng() % 20000);
    PlanParams params;
    params.alignment = rng() % 2 == 0 ? 0 : int64_t{1} << (rng() % 8);
    params.max_packed_bucket_bytes = static_cast<int64_t>(1 + rng() % 20000);
    params.costs = {.message_ns = static_cast<int64_t>(rng() % 3000),
                    .wire_ps_per_byte = static_cast<int64_t>(rng() % 2000),
                    .pack_ps_per_byte = static_cast<int64_t>(rng() % 2000),
                    .overlap = rng() % 2 == 0};
    for (const Bucketing& bucketing :
         {Bucketing::Auto(), Bucketing::PerLeaf(), Bucketing::MaxBytes(cap)}) {
      SCOPED_TRACE(bucketing.ToString());
      const BucketPlan plan = Plan(layout, bucketing, params);
      // Deterministic, and blind to strides and addresses.
      EXPECT_EQ(plan, Plan(layout, bucketing, params));
      EXPECT_EQ(plan, Plan(LayoutOf(tree.twin), bucketing, params));

      std::vector<int> times(layout.size(), 0);
      int64_t payload = 0;
      int64_t last_first = -1;
      for (const Bucket& bucket : plan.buckets) {
        ASSERT_FALSE(bucket.slots.empty());
        EXPECT_GT(bucket.slots.front().leaf, last_first);
        last_first = bucket.slots.front().leaf;
        int64_t end = 0;
        int64_t last = -1;
        for (const Slot& slot : bucket.slots) {
          const LeafInfo& info = layout.leaf(static_cast<size_t>(slot.leaf));
          ++times[static_cast<size_t>(slot.leaf)];
          payload += slot.bytes;
          EXPECT_GT(slot.leaf, last);
          last = slot.leaf;
          EXPECT_GT(slot.bytes, 0);
          EXPECT_EQ(slot.bytes, info.bytes);
          EXPECT_EQ(info.dtype, bucket.dtype);
          EXPECT_EQ(info.device.type(), bucket.device);
          const int64_t step = std::max<int64_t>(
              params.alignment, static_cast<int64_t>(c10::elementSize(bucket.dtype)));
          EXPECT_EQ(slot.offset, (end + step - 1) / step * step);
          end = slot.offset + slot.bytes;
        }
        EXPECT_EQ(bucket.bytes, end);
        if (bucketing.mode() == Bucketing::Mode::kPerLeaf) {
          EXPECT_EQ(bucket.slots.size(), 1u);
        }
        if (bucketing.mode() == Bucketing::Mode::kMaxBytes && bucket.slots.size() > 1) {
          EXPECT_LE(bucket.bytes, cap);
        }
        if (bucketing.mode() == Bucketing::Mode::kAuto && bucket.slots.size() > 1) {
          EXPECT_LE(bucket.bytes, params.max_packed_bucket_bytes);
        }
      }
      EXPECT_EQ(payload, plan.payload_bytes);
      EXPECT_EQ(payload, layout.total_bytes());
      for (size_t i = 0; i < layout.size(); ++i) {
        const LeafInfo& info = layout.leaf(i);
        const bool travels = info.kind == LeafKind::kDense && info.numel > 0 && info.alias_of < 0;
        EXPECT_EQ(times[i], travels ? 1 : 0) << i;
      }
    }
  }
}

// The modelled cost of a plan, in picoseconds, without the bytes on the wire: per dtype, messages
// and what of the packing is not hidden.
double ModelCost(const BucketPlan& plan, const AutoCosts& costs) {
  struct Sum {
    double messages = 0;
    double packed = 0;
  };
  std::map<at::ScalarType, Sum> sums;
  for (const Bucket& bucket : plan.buckets) {
    Sum& sum = sums[bucket.dtype];
    ++sum.messages;
    if (bucket.slots.size() > 1) sum.packed += static_cast<double>(bucket.bytes);
  }
  double cost = 0;
  for (const auto& [dtype, sum] : sums) {
    cost += sum.messages * static_cast<double>(costs.message_ns) * 1000;
    const auto pack = static_cast<double>(costs.pack_ps_per_byte);
    const auto hides =
        costs.overlap
            ? static_cast<double>(std::min(costs.pack_ps_per_byte, costs.wire_ps_per_byte))
            : 0.0;
    cost += sum.packed * (pack - (1 - 1 / sum.messages) * hides);
  }
  return cost;
}

TEST(BucketPlanTest, AutoIsNeverWorseThanPerLeafOrOneBucket) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  int better = 0;
  for (int round = 0; round < 2000; ++round) {
    const Layout layout = LayoutOf(MakeRandomTree(rng).leaves);
    PlanParams params;
    params.costs = {.message_ns = static_cast<int64_t>(rng() % 3000),
                    .wire_ps_per_byte = static_cast<int64_t>(rng() % 2000),
                    .pack_ps_per_byte = static_cast<int64_t>(rng() % 2000),
                    .overlap = rng() % 2 == 0};
    const double auto_cost = ModelCost(Plan(layout, Bucketing::Auto(), params), params.costs);
    const double per_leaf = ModelCost(Plan(layout, Bucketing::PerLeaf(), params), params.costs);
    const double one =
        ModelCost(Plan(layout, Bucketing::MaxBytes(int64_t{1} << 40), params), params.costs);
    const double best = std::min(per_leaf, one);
    EXPECT_LE(auto_cost, best * (1 + 1e-9));
    better += auto_cost < best * 0.999 ? 1 : 0;
  }
  EXPECT_GT(better, 100);
}

TEST(BucketPlanTest, BucketingPrints) {
  EXPECT_EQ(Bucketing::Auto().ToString(), "auto");
  EXPECT_EQ(Bucketing::PerLeaf().ToString(), "per leaf");
  EXPECT_EQ(Bucketing::MaxBytes(5).ToString(), "at most 5 bytes");
  EXPECT_NE(Bucketing::MaxBytes(5), Bucketing::MaxBytes(6));
  EXPECT_NE(Bucketing::Auto(), Bucketing::PerLeaf());
}

}  // namespace
}  // namespace leafpack
