// The data path of one group and epoch over Gloo.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_CONTEXT_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_CONTEXT_H_

#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "distributed/backends/gloo/all_reduce_pipeline.h"
#include "distributed/backends/gloo/gloo_link.h"
#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::gloo_internal {

// True when Gloo's own all-reduce gives what ReduceOp promises: 8, 32 and 64-bit integers that it
// knows, and sums and products of float32 and float64 and sums of complex numbers. The rest goes
// through AllReducePipeline.
bool NativelyExact(ReduceOpKind op, at::ScalarType dtype);

class GlooContext : public DataContext {
 public:
  // `link` is null for one rank.
  GlooContext(std::unique_ptr<GlooLink> link, int rank, int size);
  // Aborts what is under way. Takes about 10 ms: connections are closed.
  ~GlooContext() override;

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override;
  void Abort() override;

 private:
  absl::Status RunAlone(const std::vector<LeafView>& views, ReduceOpKind op);
  absl::StatusOr<std::unique_ptr<DataWork>> StartNative(const std::vector<LeafView>& views,
                                                        ReduceOpKind op);

  const int rank_;
  const int size_;
  const std::shared_ptr<GlooLink> link_;  // native works hold it too
  absl::Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<AllReducePipeline> pipeline_ ABSL_GUARDED_BY(mutex_);  // made at first use
};

}  // namespace leafpack::gloo_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_CONTEXT_H_
