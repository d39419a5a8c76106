// The data path of one group and epoch over Gloo.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_CONTEXT_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_CONTEXT_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/backends/gloo/all_reduce_pipeline.h"
#include "distributed/backends/gloo/exchanger.h"
#include "distributed/backends/gloo/gloo_link.h"
#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::gloo_internal {

class GlooContext : public DataContext {
 public:
  // `link` is null for one rank.
  GlooContext(std::unique_ptr<GlooLink> link, int rank, int size);
  // Aborts what is under way. Takes about 10 ms: connections are closed.
  ~GlooContext() override = default;

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override;
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives) override;
  void Abort() override;

 private:
  absl::Status CheckTransfers(const std::vector<Transfer>& transfers) const;
  absl::Status RunAlone(absl::Span<const LeafView> leaves, ReduceOpKind op);

  const int rank_;
  const int size_;
  const std::unique_ptr<GlooLink> link_;
  std::atomic<bool> aborted_{false};
  // Null for one rank. They go before the link.
  const std::unique_ptr<AllReducePipeline> pipeline_;
  const std::unique_ptr<Exchanger> exchanger_;
};

}  // namespace leafpack::gloo_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_CONTEXT_H_
