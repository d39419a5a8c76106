// Lets a backend that takes contiguous views only stand in for one that packs for itself.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PACKING_CONTEXT_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PACKING_CONTEXT_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "distributed/core/backend.h"

namespace leafpack::shm {

// Strided views, and runs of small ones, pass through buffers: gathered when an operation starts,
// scattered by who learns first that it is over. Large contiguous views are handed on.
class PackingContext : public DataContext {
 public:
  PackingContext(std::unique_ptr<Backend> backend, std::shared_ptr<DataContext> context)
      : backend_(std::move(backend)), context_(std::move(context)) {}

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override;
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives) override;
  void Abort() override { context_->Abort(); }

 private:
  const std::unique_ptr<Backend> backend_;
  const std::shared_ptr<DataContext> context_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PACKING_CONTEXT_H_
