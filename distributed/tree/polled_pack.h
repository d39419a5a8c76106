// Packing that looks up from time to time: a bucket may be as large as the largest leaf, and while it is copied
// deadlines pass, other ranks fail and users press Ctrl-C.
#ifndef LEAFPACK_DISTRIBUTED_TREE_POLLED_PACK_H_
#define LEAFPACK_DISTRIBUTED_TREE_POLLED_PACK_H_

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/packer.h"

namespace leafpack::internal {

// About as many bytes are copied between two polls, some milliseconds' worth.
inline constexpr int64_t kPollBytes = int64_t{16} << 20;

// What packer.Stage (`stage`) or packer.Pack give, with `poll` asked after each kPollBytes on the way; its error
// ends the packing and is returned. Buckets up to that size, and those of devices, are packed in one go.
absl::StatusOr<PackedBucket> PackPolled(Packer& packer, const Bucket& bucket,
                                        absl::Span<const at::Tensor> leaves, PackOrder order,
                                        bool stage, absl::FunctionRef<absl::Status()> poll);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_POLLED_PACK_H_
