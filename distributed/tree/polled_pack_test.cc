#include "distributed/tree/polled_pack.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/view_as_complex.h>
#include <gtest/gtest.h>

#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"

namespace leafpack::internal {
namespace {

constexpr int64_t kElements = 5 * kPollBytes / 4;  // of 4 bytes

at::Tensor Numbers() { return at::arange(kElements, at::kInt); }

struct Case {
  const char* name;
  at::Tensor leaf;
  PackOrder order;
};

std::vector<Case> Cases() {
  return {
      {"flat", Numbers(), PackOrder::kLogical},
      {"transposed", Numbers().view({-1, 1024}).t(), PackOrder::kLogical},
      {"transposed, as it lies", Numbers().view({-1, 1024}).t(), PackOrder::kMemory},
      {"one row", Numbers().view({1, 1, -1, 2}).select(3, 0), PackOrder::kLogical},
      {"complex", at::view_as_complex(Numbers().to(at::kFloat).view({-1, 2})).conj(),
       PackOrder::kMemory},
  };
}

BucketPlan PlanOf(const FlatTree& tree) {
  return *MakeBucketPlan(*Layout::Of(tree), Bucketing::MaxBytes(int64_t{1} << 40));
}

FlatTree Tree(std::vector<at::Tensor> leaves) {
  std::vector<std::pair<NestedKey, at::Tensor>> pairs;
  for (size_t i = 0; i < leaves.size(); ++i) pairs.emplace_back(NestedKey{i}, std::move(leaves[i]));
  return *MakeFlatTree(std::move(pairs));
}

TEST(PackPolledTest, GivesWhatThePackerGivesAndPolls) {
  Packer packer(std::make_shared<BufferPool>());
  for (const Case& each : Cases()) {
    SCOPED_TRACE(each.name);
    const auto options = each.leaf.options();
    const FlatTree tree = Tree({at::ones({3}, options), each.leaf, at::ones({5}, options)});
    const BucketPlan plan = PlanOf(tree);
    ASSERT_EQ(plan.buckets.size(), 1u);
    const Bucket& bucket = plan.buckets[0];
    int polls = 0;
    const auto poll = [&] {
      ++polls;
      return absl::OkStatus();
    };
    for (const bool stage : {false, true}) {
      polls = 0;
      const absl::StatusOr<PackedBucket> packed =
          PackPolled(packer, bucket, tree.leaves, each.order, stage, poll);
      ASSERT_TRUE(packed.ok()) << packed.status();
      EXPECT_GE(polls, bucket.bytes / kPollBytes / 2);
      EXPECT_LE(polls, bucket.bytes / kPollBytes + 1);
      const absl::StatusOr<PackedBucket> whole = packer.Stage(bucket, tree.leaves, each.order);
      ASSERT_TRUE(whole.ok()) << whole.status();
      ASSERT_EQ(packed->bytes(), whole->bytes());
      EXPECT_EQ(std::memcmp(packed->data(), whole->data(), static_cast<size_t>(whole->bytes())), 0);
    }
  }
}

TEST(PackPolledTest, AnErrorEndsIt) {
  Packer packer(std::make_shared<BufferPool>());
  const FlatTree tree = Tree({Numbers()});
  const BucketPlan plan = PlanOf(tree);
  int polls = 0;
  const absl::Status status =
      PackPolled(packer, plan.buckets[0], tree.leaves, PackOrder::kLogical, /*stage=*/true, [&] {
        return ++polls == 2 ? absl::CancelledError("over") : absl::OkStatus();
      }).status();
  EXPECT_EQ(status, absl::CancelledError("over"));
  EXPECT_EQ(polls, 2);
}

TEST(PackPolledTest, MemoryThatIsOneRunIsHandedOut) {
  Packer packer(std::make_shared<BufferPool>());
  const FlatTree tree = Tree({Numbers()});
  const BucketPlan plan = PlanOf(tree);
  const absl::StatusOr<PackedBucket> packed =
      PackPolled(packer, plan.buckets[0], tree.leaves, PackOrder::kLogical, /*stage=*/false,
                 [] { return absl::InternalError("nothing is copied"); });
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_FALSE(packed->owned());
}

}  // namespace
}  // namespace leafpack::internal
