#include "tensordict/bucket/device_copy.h"

#include <ATen/ops/_foreach_copy.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace leafpack {
namespace {

// Leaves and slots as tensors of equal shapes. _foreach_copy_ takes its fast way only if every pair in a list has
// equal strides, so those that have not are lists of their own.
struct Pairs {
  std::vector<at::Tensor> slots, leaves;
  std::vector<at::Tensor> other_slots, other_leaves;
};

// The fast way knows no unsigned integers but bytes; a copy does not mind what the bits mean.
at::ScalarType CopiedAs(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::UInt16:
      return at::ScalarType::Short;
    case at::ScalarType::UInt32:
      return at::ScalarType::Int;
    case at::ScalarType::UInt64:
      return at::ScalarType::Long;
    default:
      return dtype;
  }
}

Pairs PairsOf(const Bucket& bucket, absl::Span<const at::Tensor> leaves, bool memory_order,
              const at::Tensor& run) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(bucket.dtype));
  const at::ScalarType dtype = CopiedAs(bucket.dtype);
  const at::Tensor bits = dtype == bucket.dtype ? run : run.view(dtype);
  Pairs pairs;
  for (const Slot& slot : bucket.slots) {
    at::Tensor leaf = leaves[static_cast<size_t>(slot.leaf)].detach();
    if (leaf.numel() == 0) continue;
    if (dtype != bucket.dtype) leaf = leaf.view(dtype);
    const int64_t offset = bits.storage_offset() + slot.offset / element_bytes;
    const bool plain = !leaf.is_conj() && !leaf.is_neg();
    const bool in_memory_order =
        plain && (leaf.is_contiguous() ||
                  (memory_order && leaf.is_non_overlapping_and_dense()));
    if (in_memory_order) {
      pairs.slots.push_back(bits.as_strided(leaf.sizes(), leaf.strides(), offset));
      pairs.leaves.push_back(std::move(leaf));
    } else {
      pairs.other_slots.push_back(
          bits.as_strided({leaf.numel()}, {1}, offset).view(leaf.sizes()));
      pairs.other_leaves.push_back(std::move(leaf));
    }
  }
  return pairs;
}

}  // namespace

void PackOnDevice(const Bucket& bucket, absl::Span<const at::Tensor> leaves, bool memory_order,
                  const at::Tensor& run) {
  int64_t used = 0;
  for (const Slot& slot : bucket.slots) used += slot.bytes;
  if (used < bucket.bytes) run.zero_();  // between the slots too
  const Pairs pairs = PairsOf(bucket, leaves, memory_order, run);
  if (!pairs.slots.empty()) at::_foreach_copy_(pairs.slots, pairs.leaves);
  for (size_t i = 0; i < pairs.other_slots.size(); ++i) {
    pairs.other_slots[i].copy_(pairs.other_leaves[i]);
  }
}

void UnpackOnDevice(const Bucket& bucket, const at::Tensor& run, bool memory_order,
                    absl::Span<const at::Tensor> leaves) {
  const Pairs pairs = PairsOf(bucket, leaves, memory_order, run);
  if (!pairs.slots.empty()) at::_foreach_copy_(pairs.leaves, pairs.slots);
  for (size_t i = 0; i < pairs.other_slots.size(); ++i) {
    pairs.other_leaves[i].copy_(pairs.other_slots[i]);
  }
}

}  // namespace leafpack
