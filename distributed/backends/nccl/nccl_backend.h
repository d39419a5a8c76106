// The backend "nccl": all-reduce of leaves on GPUs by NCCL, through c10d's ProcessGroupNCCL.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_NCCL_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_NCCL_BACKEND_H_

#include <memory>
#include <string_view>

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/backends/nccl/device.h"
#include "distributed/core/backend.h"
#include "distributed/core/device_traits.h"

namespace leafpack {

// See docs/cuda.md for what it can do. Leaves must be on one device of this rank: the one that was current
// in the thread that made the group.
class NcclBackend : public Backend, public DeviceTraits {
 public:
  // FailedPrecondition if this machine has no device of the kind.
  static absl::StatusOr<std::unique_ptr<Backend>> Make(std::shared_ptr<nccl_internal::Device> device);

  std::string_view name() const override { return "nccl"; }
  absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                 c10::DeviceType device) const override;
  absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const override;
  // NCCL wants the calls of a process on a device in one order on all ranks, the user's own among them.
  bool MustEnqueueInCallerThread() const override { return true; }
  bool PacksForItself() const override { return true; }
  BackendCost Cost(int ranks) const override;
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override;

  absl::Status CheckDevice(c10::Device device) const override;
  // Calls that differ wait for each other until the deadline, and are aborted then.
  bool NeedsChecks() const override { return false; }

 private:
  NcclBackend(std::shared_ptr<nccl_internal::Device> device, c10::Device current)
      : device_(std::move(device)), current_(current) {}

  const std::shared_ptr<nccl_internal::Device> device_;
  const c10::Device current_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_NCCL_BACKEND_H_
