// The backend "gloo": TCP between CPUs, by c10d's ProcessGroupGloo. Linking this package makes the name
// known to MakeBackend.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_BACKEND_H_

#include <memory>
#include <string_view>

#include "distributed/core/backend.h"

namespace leafpack {

// Every dtype and op of CheckOpAllowed, on CPU tensors. Gloo carries the bytes; ranks reduce them in
// rank order with the kernels of distributed/core/reduce. So all ranks get equal bits, and the bits
// depend on the values alone: not on bucketing, nor on what else is in the tree. Exchanges move the
// bytes of any dtype.
class GlooBackend : public Backend {
 public:
  std::string_view name() const override { return "gloo"; }
  absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                 c10::DeviceType device) const override;
  absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const override;
  bool PacksForItself() const override { return true; }
  BackendCost Cost(int ranks) const override;
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_BACKEND_H_
