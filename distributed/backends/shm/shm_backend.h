// The backend "shm": ranks of one host over shared memory. Linking this package makes the name known to
// MakeBackend.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_SHM_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_SHM_BACKEND_H_

#include <atomic>
#include <memory>
#include <string_view>

#include "distributed/core/backend.h"

namespace leafpack {

// Every dtype and op of CheckOpAllowed, on CPU tensors, in rank order with the kernels of
// distributed/core/reduce: all ranks get equal bits, and the bits do not depend on bucketing. Takes
// strided leaves and reduces them where they are.
//
// If some ranks do not share memory (other hosts, other containers), all ranks use the backend "gloo"
// instead and group rank 0 logs one line that says so; if "gloo" is not linked in, opening is a
// FailedPrecondition that names those ranks.
class ShmBackend : public Backend {
 public:
  std::string_view name() const override { return "shm"; }
  absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                 c10::DeviceType device) const override;
  absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const override;
  bool PacksForItself() const override { return true; }
  BackendCost Cost(int ranks) const override;
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override;

 private:
  absl::StatusOr<std::shared_ptr<DataContext>> OpenOther(const DataContextOptions& options,
                                                         absl::Time deadline,
                                                         const absl::Status& reason);

  std::atomic<bool> told_{false};  // of the fallback
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_SHM_BACKEND_H_
