#include "tensordict/bucket/packer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/bucket/device_copy.h"
#include "tensordict/bucket/strided_copy.h"
#include "tensordict/dtype.h"

namespace leafpack {
namespace {

absl::Span<const int64_t> Span(at::IntArrayRef dims) { return {dims.data(), dims.size()}; }

bool IsLazy(const at::Tensor& leaf) { return leaf.is_conj() || leaf.is_neg(); }

// True if the bytes of a slot are the bytes of the leaf's memory, as they lie there.
bool IsOneRun(const at::Tensor& leaf, PackOrder order) {
  if (IsLazy(leaf)) return false;
  return leaf.is_contiguous() ||
         (order == PackOrder::kMemory && leaf.is_non_overlapping_and_dense());
}

bool InHostMemory(const at::Tensor& leaf) { return leaf.device().is_cpu(); }

// The bytes of a slot at `memory` as a tensor that the leaf can be copied to or from.
at::Tensor SlotTensor(const at::Tensor& leaf, PackOrder order, void* memory) {
  const auto options = at::TensorOptions().dtype(leaf.scalar_type()).device(leaf.device());
  if (IsOneRun(leaf, order)) {
    return at::from_blob(memory, leaf.sizes(), leaf.strides(), options);
  }
  return at::from_blob(memory, leaf.sizes(), options);
}

void Copy(const at::Tensor& leaf, PackOrder order, void* dst) {
  if (leaf.numel() == 0) return;
  if (!InHostMemory(leaf) || IsLazy(leaf)) {
    SlotTensor(leaf, order, dst).copy_(leaf);
  } else if (IsOneRun(leaf, order)) {
    std::memcpy(dst, leaf.const_data_ptr(), leaf.nbytes());
  } else {
    GatherStrided(leaf.const_data_ptr(), Span(leaf.sizes()), Span(leaf.strides()), leaf.itemsize(),
                  dst);
  }
}

void CopyBack(const void* src, PackOrder order, const at::Tensor& leaf) {
  if (leaf.numel() == 0) return;
  if (!InHostMemory(leaf) || IsLazy(leaf)) {
    // from_blob wants memory that may be written; copy_ only reads it.
    leaf.copy_(SlotTensor(leaf, order, const_cast<void*>(src)));
  } else if (IsOneRun(leaf, order)) {
    std::memcpy(leaf.mutable_data_ptr(), src, leaf.nbytes());
  } else {
    ScatterStrided(src, Span(leaf.sizes()), Span(leaf.strides()), leaf.itemsize(),
                   leaf.mutable_data_ptr());
  }
}

// Runs what may throw, without autograd.
template <typename F>
absl::Status Guarded(const char* what, F f) {
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    f();
    return absl::OkStatus();
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat(what, " failed: ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what, " failed: ", e.what()));
  }
}

absl::Status CheckLeaves(const Bucket& bucket, absl::Span<const at::Tensor> leaves) {
  for (const Slot& slot : bucket.slots) {
    if (slot.leaf < 0 || slot.leaf >= static_cast<int64_t>(leaves.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the bucket names leaf ", slot.leaf, " of ", leaves.size()));
    }
    const at::Tensor& leaf = leaves[static_cast<size_t>(slot.leaf)];
    if (!leaf.defined() || leaf.scalar_type() != bucket.dtype ||
        static_cast<int64_t>(leaf.nbytes()) != slot.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("leaf ", slot.leaf, " does not fit its slot of ", slot.bytes, " bytes of ",
                       std::string(DtypeName(bucket.dtype)), ": ",
                       leaf.defined() ? absl::StrCat("it has ", leaf.nbytes(), " bytes of ",
                                                     std::string(DtypeName(leaf.scalar_type())))
                                      : "it is undefined"));
    }
  }
  return absl::OkStatus();
}

// The begin of the run if all slots lie in one storage exactly as in the bucket, else null.
void* RunOf(const Bucket& bucket, absl::Span<const at::Tensor> leaves, PackOrder order) {
  const char* begin = nullptr;
  const c10::StorageImpl* storage = nullptr;
  for (const Slot& slot : bucket.slots) {
    const at::Tensor& leaf = leaves[static_cast<size_t>(slot.leaf)];
    if (!IsOneRun(leaf, order)) return nullptr;
    const c10::StorageImpl* of_leaf =
        leaf.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const char* slot_begin = static_cast<const char*>(leaf.const_data_ptr()) - slot.offset;
    if (begin == nullptr) {
      begin = slot_begin;
      storage = of_leaf;
      // Leaves that lie apart are told at the second slot.
    } else if (slot_begin != begin || of_leaf != storage) {
      return nullptr;
    }
  }
  // Memory that is shared by copy-on-write moves when it is asked for to be written.
  if (leaves[static_cast<size_t>(bucket.slots.front().leaf)].mutable_data_ptr() != begin) {
    return RunOf(bucket, leaves, order);
  }
  return const_cast<char*>(begin);
}

}  // namespace

const at::Tensor& PackedBucket::tensor() {
  if (owned()) return buffer_.AsTensor(dtype_, numel_);
  if (!tensor_.defined() && data_ != nullptr) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    tensor_ = at::from_blob(data_, {numel_}, at::TensorOptions().dtype(dtype_).device(device_));
  }
  return tensor_;
}

Packer::Packer(std::shared_ptr<BufferPool> pool) : pool_(std::move(pool)) {}

absl::StatusOr<PackedBucket> Packer::Allocate(const Bucket& bucket, c10::Device device,
                                              PackOrder order) {
  absl::StatusOr<BufferPool::Buffer> buffer = pool_->Acquire(bucket.bytes, device);
  if (!buffer.ok()) return buffer.status();
  PackedBucket packed;
  packed.buffer_ = *std::move(buffer);
  packed.data_ = packed.buffer_.data();
  packed.bytes_ = bucket.bytes;
  packed.numel_ = bucket.bytes / static_cast<int64_t>(c10::elementSize(bucket.dtype));
  packed.dtype_ = bucket.dtype;
  packed.device_ = device;
  packed.order_ = order;
  return packed;
}

absl::StatusOr<PackedBucket> Packer::Pack(const Bucket& bucket, absl::Span<const at::Tensor> leaves,
                                          PackOrder order) {
  if (absl::Status s = CheckLeaves(bucket, leaves); !s.ok()) return s;
  if (std::optional<PackedBucket> run = Direct(bucket, leaves, order)) return *std::move(run);
  return Stage(bucket, leaves, order);
}

absl::StatusOr<PackedBucket> Packer::AllocateFor(const Bucket& bucket,
                                                 absl::Span<const at::Tensor> leaves, bool direct,
                                                 PackOrder order) {
  if (absl::Status s = CheckLeaves(bucket, leaves); !s.ok()) return s;
  if (direct) {
    if (std::optional<PackedBucket> run = Direct(bucket, leaves, order)) return *std::move(run);
  }
  return Allocate(bucket, leaves[static_cast<size_t>(bucket.slots.front().leaf)].device(), order);
}

std::optional<PackedBucket> Packer::Direct(const Bucket& bucket,
                                           absl::Span<const at::Tensor> leaves, PackOrder order) {
  void* const run = RunOf(bucket, leaves, order);
  if (run == nullptr) return std::nullopt;
  PackedBucket packed;
  packed.first_ = leaves[static_cast<size_t>(bucket.slots.front().leaf)];
  packed.data_ = run;
  packed.bytes_ = bucket.bytes;
  packed.numel_ = bucket.bytes / static_cast<int64_t>(c10::elementSize(bucket.dtype));
  packed.dtype_ = bucket.dtype;
  packed.device_ = packed.first_.device();
  packed.order_ = order;
  return packed;
}

absl::StatusOr<PackedBucket> Packer::Stage(const Bucket& bucket,
                                           absl::Span<const at::Tensor> leaves, PackOrder order) {
  if (absl::Status s = CheckLeaves(bucket, leaves); !s.ok()) return s;
  const c10::Device device = leaves[static_cast<size_t>(bucket.slots.front().leaf)].device();
  absl::StatusOr<PackedBucket> packed = Allocate(bucket, device, order);
  if (!packed.ok()) return packed.status();
  absl::Status copied = Guarded("packing a bucket", [&] {
    if (!device.is_cpu()) return PackOnDevice(bucket, leaves, order == PackOrder::kMemory, packed->tensor());
    auto* const begin = static_cast<char*>(packed->data_);
    const auto zero = [&](int64_t from, int64_t to) {
      if (to > from) std::memset(begin + from, 0, static_cast<size_t>(to - from));
    };
    int64_t end = 0;
    for (const Slot& slot : bucket.slots) {
      zero(end, slot.offset);
      Copy(leaves[static_cast<size_t>(slot.leaf)], order, begin + slot.offset);
      end = slot.offset + slot.bytes;
    }
    zero(end, bucket.bytes);
  });
  if (!copied.ok()) return copied;
  return packed;
}

absl::Status Packer::Unpack(const Bucket& bucket, const PackedBucket& packed,
                            absl::Span<const at::Tensor> leaves) {
  if (!packed.owned()) return absl::OkStatus();
  if (absl::Status s = CheckLeaves(bucket, leaves); !s.ok()) return s;
  if (packed.bytes() != bucket.bytes || packed.dtype() != bucket.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("a run of ", packed.bytes(),
                                                   " bytes was not packed from a bucket of ",
                                                   bucket.bytes, " bytes"));
  }
  return Guarded("unpacking a bucket", [&] {
    if (!packed.device().is_cpu()) {
      const at::Tensor run = at::from_blob(
          packed.data(), {packed.numel()}, [](void*) {},
          at::TensorOptions().dtype(packed.dtype()).device(packed.device()), packed.device());
      return UnpackOnDevice(bucket, run, packed.order() == PackOrder::kMemory, leaves);
    }
    const auto* const begin = static_cast<const char*>(packed.data());
    for (const Slot& slot : bucket.slots) {
      CopyBack(begin + slot.offset, packed.order(), leaves[static_cast<size_t>(slot.leaf)]);
    }
  });
}

absl::Status PackLeaf(const at::Tensor& leaf, PackOrder order, void* dst) {
  return Guarded("packing a leaf", [&] { Copy(leaf, order, dst); });
}

absl::Status UnpackLeaf(const void* src, PackOrder order, const at::Tensor& leaf) {
  return Guarded("unpacking a leaf", [&] { CopyBack(src, order, leaf); });
}

}  // namespace leafpack
