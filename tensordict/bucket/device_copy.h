// Copies between the leaves of a bucket and its run on devices other than the CPU, where a copy of each leaf would
// be a kernel of its own: torch's _foreach_copy_ copies them in few.
#ifndef LEAFPACK_TENSORDICT_BUCKET_DEVICE_COPY_H_
#define LEAFPACK_TENSORDICT_BUCKET_DEVICE_COPY_H_

#include <ATen/core/Tensor.h>

#include "absl/types/span.h"
#include "tensordict/bucket/bucket_plan.h"

namespace leafpack {

// As Packer::Stage and Unpack, `memory_order` for PackOrder::kMemory, for leaves that fit their slots; `run` has the bucket's dtype and size. They are
// put on the current stream of the device; nothing waits for it. Throws what torch throws. Memory of any
// device will do, the host's too.
void PackOnDevice(const Bucket& bucket, absl::Span<const at::Tensor> leaves, bool memory_order,
                  const at::Tensor& run);
void UnpackOnDevice(const Bucket& bucket, const at::Tensor& run, bool memory_order,
                    absl::Span<const at::Tensor> leaves);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_BUCKET_DEVICE_COPY_H_
