// All that this backend asks of CUDA and NCCL. What is above it is built and tested without either, over a
// mock; cuda_device.h is the one for GPUs.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_DEVICE_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::nccl_internal {

// A point on a stream. Used by one thread at a time.
class Mark {
 public:
  virtual ~Mark() = default;
  // Whether the device has got there. An error if the device failed. Never blocks.
  virtual absl::StatusOr<bool> IsReached() = 0;
  // What the calling thread puts on its current stream from now on waits for the mark. Never blocks.
  virtual absl::Status HoldCurrentStream() = 0;
};

// One member of a group of NCCL calls.
struct Reduction {
  at::Tensor tensor;  // contiguous, reduced in place
  ReduceOpKind op = ReduceOpKind::kSum;  // sum, product, min, max or avg
};

// The communicator of a group on one device of this rank, with a stream of its own. Nothing waits for the
// device; what is put on the stream runs in order. Calls come from one thread at a time, Check and Abort from
// any.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // What is put on the stream from now on waits for all that is on the calling thread's current stream.
  virtual absl::Status FollowCurrentStream() = 0;
  // Memory of the device for use on the stream, one-dimensional, with undefined contents. It may be dropped
  // once its last use was put on the stream.
  virtual absl::StatusOr<at::Tensor> Allocate(int64_t numel, at::ScalarType dtype) = 0;
  // Puts the operations of `work` on tensors on the stream, without autograd; it must touch nothing else. What
  // it throws is Internal.
  virtual absl::Status Run(std::function<void()> work) = 0;
  // Puts reductions over all ranks on the stream, as one group of NCCL calls.
  virtual absl::Status AllReduce(const std::vector<Reduction>& reductions) = 0;
  // A mark after all that was put on the stream.
  virtual absl::StatusOr<std::unique_ptr<Mark>> MarkStream() = 0;
  // OK, or how the communicator failed: Unavailable if a peer is gone. Never blocks.
  virtual absl::Status Check() = 0;
  // Makes the device give up reductions that wait for other ranks. What is on the stream after them still
  // runs. Idempotent.
  virtual void Abort() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // The kind of device whose memory NCCL reduces.
  virtual c10::DeviceType type() const = 0;
  // The calling thread's current device. FailedPrecondition if there is none on this machine.
  virtual absl::StatusOr<c10::Device> Current() = 0;
  // Connects the ranks; collective. May block past `deadline` when a rank is missing, so it is called in a
  // thread that nobody waits for past the deadline.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Connect(const DataContextOptions& options,
                                                                c10::Device device,
                                                                absl::Time deadline) = 0;
};

}  // namespace leafpack::nccl_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_DEVICE_H_
