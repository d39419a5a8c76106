#include "distributed/tree/polled_pack.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include <ATen/core/LegacyTypeDispatch.h>

#include "absl/strings/str_cat.h"

namespace leafpack::internal {
namespace {

class PolledCopy {
 public:
  explicit PolledCopy(absl::FunctionRef<absl::Status()> poll) : poll_(poll) {}

  // One slot, as PackLeaf copies it. May throw what torch throws.
  absl::Status Leaf(const at::Tensor& leaf, PackOrder order, char* dst) {
    const bool as_it_lies = order == PackOrder::kMemory && !leaf.is_conj() && !leaf.is_neg() &&
                            leaf.is_non_overlapping_and_dense();
    return Part(as_it_lies ? leaf.as_strided({leaf.numel()}, {1}) : leaf, dst);
  }

 private:
  // In logical order.
  absl::Status Part(const at::Tensor& part, char* dst) {
    const auto bytes = static_cast<int64_t>(part.nbytes());
    if (bytes <= kPollBytes || part.dim() == 0) {
      if (absl::Status status = PackLeaf(part, PackOrder::kLogical, dst); !status.ok()) {
        return status;
      }
      copied_ += bytes;
      if (copied_ < kPollBytes) return absl::OkStatus();
      copied_ = 0;
      return poll_();
    }
    const int64_t rows = part.size(0);
    const int64_t row_bytes = bytes / rows;
    const int64_t step = std::max<int64_t>(1, kPollBytes / row_bytes);
    for (int64_t row = 0; row < rows; row += step) {
      const at::Tensor some =
          step == 1 ? part.select(0, row) : part.narrow(0, row, std::min(step, rows - row));
      if (absl::Status status = Part(some, dst + row * row_bytes); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const absl::FunctionRef<absl::Status()> poll_;
  int64_t copied_ = 0;  // since the last poll
};

}  // namespace

absl::StatusOr<PackedBucket> PackPolled(Packer& packer, const Bucket& bucket,
                                        absl::Span<const at::Tensor> leaves, PackOrder order,
                                        bool stage, absl::FunctionRef<absl::Status()> poll) {
  if (bucket.bytes <= kPollBytes || bucket.device != c10::DeviceType::CPU) {
    return stage ? packer.Stage(bucket, leaves, order) : packer.Pack(bucket, leaves, order);
  }
  absl::StatusOr<PackedBucket> packed =
      packer.AllocateFor(bucket, leaves, /*direct=*/!stage, order);
  if (!packed.ok() || !packed->owned()) return packed;
  auto* const begin = static_cast<char*>(packed->data());
  PolledCopy copy(poll);
  int64_t end = 0;
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (const Slot& slot : bucket.slots) {
      if (slot.offset > end) std::memset(begin + end, 0, static_cast<size_t>(slot.offset - end));
      absl::Status status =
          copy.Leaf(leaves[static_cast<size_t>(slot.leaf)], order, begin + slot.offset);
      if (!status.ok()) return status;
      end = slot.offset + slot.bytes;
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("packing a bucket failed: ", e.what()));
  }
  if (bucket.bytes > end) std::memset(begin + end, 0, static_cast<size_t>(bucket.bytes - end));
  return packed;
}

}  // namespace leafpack::internal
