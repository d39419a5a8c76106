// The copies for devices, on memory of the host: what they put into a run is what Packer puts there.
#include "tensordict/bucket/device_copy.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/bucket/packer.h"

namespace leafpack {
namespace {

// Of each dtype: contiguous, permuted without gaps, with gaps, a scalar, and none.
std::vector<at::Tensor> Leaves(at::ScalarType dtype) {
  const at::Tensor numbers = at::arange(1, 121, at::TensorOptions().dtype(at::kDouble)).to(dtype);
  std::vector<at::Tensor> leaves = {numbers.slice(0, 0, 24).view({4, 6}).clone(),
                                    numbers.slice(0, 24, 48).view({2, 3, 4}).clone().permute({2, 0, 1}),
                                    numbers.slice(0, 48, 88).view({4, 10}).clone().slice(1, 1, 10, 3),
                                    numbers[88].clone(), numbers.slice(0, 0, 0).clone()};
  if (numbers.is_complex()) leaves.push_back(numbers.slice(0, 90, 96).clone().conj());
  return leaves;
}

Bucket BucketOf(const std::vector<at::Tensor>& leaves, int64_t gap_bytes) {
  Bucket bucket;
  bucket.dtype = leaves[0].scalar_type();
  int64_t offset = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto bytes = static_cast<int64_t>(leaves[i].nbytes());
    if (bytes == 0) continue;
    bucket.slots.push_back({static_cast<int64_t>(i), offset, bytes});
    bucket.bytes = offset + bytes;
    offset += bytes + gap_bytes;
  }
  return bucket;
}

at::Tensor BytesOf(const at::Tensor& tensor) {
  return tensor.resolve_conj().contiguous().reshape({-1}).view(at::kByte);
}

TEST(DeviceCopyTest, ThereAndBackAsPacker) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kByte, at::kBFloat16, at::kComplexFloat, at::kUInt16, at::kUInt32, at::kUInt64, at::kBool}) {
    for (const PackOrder order : {PackOrder::kLogical, PackOrder::kMemory}) {
      for (const int64_t gap : {0, 48}) {
        const std::vector<at::Tensor> leaves = Leaves(dtype);
        const Bucket bucket = BucketOf(leaves, gap);
        Packer packer(std::make_shared<BufferPool>());
        absl::StatusOr<PackedBucket> want = packer.Stage(bucket, leaves, order);
        ASSERT_TRUE(want.ok()) << want.status();

        const at::Tensor run = at::full({want->numel()}, 1, at::TensorOptions().dtype(at::kByte))
                                   .repeat({static_cast<int64_t>(c10::elementSize(dtype))})
                                   .view(dtype);
        PackOnDevice(bucket, leaves, order == PackOrder::kMemory, run);
        EXPECT_TRUE(run.view(at::kByte).equal(want->tensor().view(at::kByte)))
            << c10::toString(dtype) << " gap " << gap;

        std::vector<at::Tensor> back;
        for (const at::Tensor& leaf : leaves) back.push_back(at::zeros_like(leaf));
        UnpackOnDevice(bucket, run, order == PackOrder::kMemory, back);
        for (size_t i = 0; i < leaves.size(); ++i) {
          EXPECT_TRUE(BytesOf(back[i]).equal(BytesOf(leaves[i])))
              << c10::toString(dtype) << " leaf " << i;
        }
      }
    }
  }
}

TEST(DeviceCopyTest, WhatLiesBetweenTheElementsOfALeafIsLeftAlone) {
  const at::Tensor base = at::full({10}, 7.0f);
  const std::vector<at::Tensor> leaves = {base.slice(0, 0, 10, 2), at::full({3}, 1.0f)};
  const Bucket bucket = BucketOf(leaves, 0);
  UnpackOnDevice(bucket, at::arange(8, at::kFloat), /*memory_order=*/false, leaves);
  EXPECT_TRUE(base.slice(0, 1, 10, 2).eq(7).all().item<bool>());
  EXPECT_EQ(base[8].item<float>(), 4);
  EXPECT_EQ(leaves[1][2].item<float>(), 7);
}

}  // namespace
}  // namespace leafpack
