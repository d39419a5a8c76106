// The backend "gloo": TCP between CPUs, by c10d's ProcessGroupGloo. Linking this package makes the name
// known to MakeBackend.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_BACKEND_H_

#include <memory>
#include <string_view>

#include "distributed/core/backend.h"

namespace leafpack {

// Every dtype and op of CheckOpAllowed, on CPU tensors. All ranks get equal bits. Integers, bool,
// half types, float8, MIN, MAX and complex products are reduced in rank order whatever the bucketing;
// so are all sums of two ranks. Sums and products of float32 and float64 over more ranks go round
// Gloo's ring: with three ranks and more the order depends on where in its bucket an element lies.
class GlooBackend : public Backend {
 public:
  std::string_view name() const override { return "gloo"; }
  absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                 c10::DeviceType device) const override;
  BackendCost Cost(int ranks) const override;
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_BACKEND_H_
