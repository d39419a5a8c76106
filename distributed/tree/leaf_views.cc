#include "distributed/tree/leaf_views.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <c10/core/ScalarType.h>

namespace leafpack::internal {
namespace {

LeafView Run(void* data, int64_t numel, at::ScalarType dtype, c10::Device device,
             std::shared_ptr<const void> keep_alive) {
  LeafView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  view.sizes = {numel};
  view.strides = {1};
  view.keep_alive = std::move(keep_alive);
  return view;
}

}  // namespace

bool CanBeViewed(const Bucket& bucket, absl::Span<const at::Tensor> leaves) {
  for (const Slot& slot : bucket.slots) {
    const at::Tensor& leaf = leaves[static_cast<size_t>(slot.leaf)];
    if (leaf.is_conj() || leaf.is_neg()) return false;
  }
  return true;
}

void AppendLeafViews(const Bucket& bucket, absl::Span<const at::Tensor> leaves, PackOrder order,
                     const std::shared_ptr<const void>& keep_alive, std::vector<LeafView>& views) {
  for (const Slot& slot : bucket.slots) {
    const at::Tensor& leaf = leaves[static_cast<size_t>(slot.leaf)];
    void* data = leaf.mutable_data_ptr();
    const bool is_run = leaf.is_contiguous() || (order == PackOrder::kMemory &&
                                                 leaf.is_non_overlapping_and_dense());
    views.push_back(Run(data, leaf.numel(), bucket.dtype, leaf.device(), keep_alive));
    if (is_run) continue;
    views.back().sizes.assign(leaf.sizes().begin(), leaf.sizes().end());
    views.back().strides.assign(leaf.strides().begin(), leaf.strides().end());
  }
}

void AppendRunView(const std::shared_ptr<PackedBucket>& packed, std::vector<LeafView>& views) {
  views.push_back(Run(packed->data(), packed->numel(), packed->dtype(), packed->device(), packed));
}

void AppendSlotViews(const Bucket& bucket, const std::shared_ptr<PackedBucket>& packed,
                     std::vector<LeafView>& views) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(bucket.dtype));
  for (const Slot& slot : bucket.slots) {
    views.push_back(Run(static_cast<char*>(packed->data()) + slot.offset,
                        slot.bytes / element_bytes, bucket.dtype, packed->device(), packed));
  }
}

}  // namespace leafpack::internal
