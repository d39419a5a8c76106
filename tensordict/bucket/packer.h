// Packer: copies the leaves of a bucket into one run of bytes, and back.
//
//   Packer packer(pool);
//   ASSIGN_OR_RETURN(PackedBucket packed, packer.Pack(bucket, flat.leaves, PackOrder::kLogical));
//   ... all_reduce packed.data(), or packed.tensor() ...
//   RETURN_IF_ERROR(packer.Unpack(bucket, packed, flat.leaves));
#ifndef LEAFPACK_TENSORDICT_BUCKET_PACKER_H_
#define LEAFPACK_TENSORDICT_BUCKET_PACKER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"

namespace leafpack {

// The order of elements within a slot.
enum class PackOrder : uint8_t {
  // Row-major order of the indices: the same on every rank, whatever the strides are.
  kLogical,
  // Memory order for leaves without gaps (permuted, channels last), else logical order. Legal only if
  // the stride digests of all ranks agree. Such leaves are then copied as one run, or not at all.
  kMemory,
};

// A bucket as one run of bytes. Move-only. If !owned() the run is the memory of the leaves
// themselves: what is written to it is in the leaves at once.
class PackedBucket {
 public:
  PackedBucket() = default;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  at::ScalarType dtype() const { return dtype_; }
  // bytes() in elements of dtype().
  int64_t numel() const { return numel_; }
  c10::Device device() const { return device_; }
  // True if the run is a buffer of the pool.
  bool owned() const { return static_cast<bool>(buffer_); }
  PackOrder order() const { return order_; }

  // The run as a 1-d tensor without autograd. Valid while this PackedBucket lives.
  const at::Tensor& tensor();

 private:
  friend class Packer;
  BufferPool::Buffer buffer_;
  at::Tensor tensor_;         // made when asked for, if not owned
  at::Tensor first_;          // keeps the memory of the leaves, if not owned
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t numel_ = 0;
  at::ScalarType dtype_ = at::ScalarType::Undefined;
  c10::Device device_ = c10::Device(c10::kCPU);
  PackOrder order_ = PackOrder::kLogical;
};

// Threads: any, on different buckets; the leaves of one bucket must not be written meanwhile. Autograd
// records nothing, and version counters are left alone: who changes leaves bumps them once, for
// leaves that were not copied too.
class Packer {
 public:
  // `pool` must not be null; it may be shared by many packers.
  explicit Packer(std::shared_ptr<BufferPool> pool);

  // The elements of the bucket's leaves, each slot at its offset, zeros between slots. `leaves` are all
  // leaves of the layout that the plan was made from, with the geometry they had then; a leaf whose
  // dtype or size does not fit its slot is InvalidArgument. Leaves with the conjugate or negative bit
  // set give their values. If the slots lie in one storage exactly as in the bucket, the memory itself
  // is handed out: no copy, owned() is false. On CPU nothing is allocated once the pool is warm, except
  // for leaves with a conjugate or negative bit.
  absl::StatusOr<PackedBucket> Pack(const Bucket& bucket, absl::Span<const at::Tensor> leaves,
                                    PackOrder order = PackOrder::kLogical);

  // As Pack, but always into a buffer of the pool: a staged copy.
  absl::StatusOr<PackedBucket> Stage(const Bucket& bucket, absl::Span<const at::Tensor> leaves,
                                     PackOrder order = PackOrder::kLogical);

  // A buffer of the bucket's size with undefined contents, to be filled and then unpacked.
  absl::StatusOr<PackedBucket> Allocate(const Bucket& bucket, c10::Device device,
                                        PackOrder order = PackOrder::kLogical);

  // A run to be received into: the memory of the leaves themselves if their slots lie there exactly as in
  // the bucket and `direct` is set, else a buffer with undefined contents. Errors as of Pack.
  absl::StatusOr<PackedBucket> AllocateFor(const Bucket& bucket, absl::Span<const at::Tensor> leaves,
                                           bool direct, PackOrder order = PackOrder::kLogical);

  // Writes the run back into the leaves, their own elements only. Nothing to do if !owned().
  absl::Status Unpack(const Bucket& bucket, const PackedBucket& packed,
                      absl::Span<const at::Tensor> leaves);

  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  // The memory of the leaves as a bucket, if it is one.
  static std::optional<PackedBucket> Direct(const Bucket& bucket,
                                            absl::Span<const at::Tensor> leaves, PackOrder order);

  std::shared_ptr<BufferPool> pool_;
};

// One slot: copies the elements of `leaf` to `dst`, or from `src` into `leaf`; at least
// leaf.nbytes() bytes, on the leaf's device. Used by Packer, and by those who lay out frames of their
// own. Internal if a tensor operation fails.
absl::Status PackLeaf(const at::Tensor& leaf, PackOrder order, void* dst);
absl::Status UnpackLeaf(const void* src, PackOrder order, const at::Tensor& leaf);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_BUCKET_PACKER_H_
