// BucketPipeline: the data phase of a collective on a tree. Packs buckets, hands them to the backend,
// and unpacks what is done, so that copies and transfers overlap. A backend that packs for itself gets
// the leaves where they are.
#ifndef LEAFPACK_DISTRIBUTED_TREE_BUCKET_PIPELINE_H_
#define LEAFPACK_DISTRIBUTED_TREE_BUCKET_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/data_wait.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/packer.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

// One run of one plan over one tree. Used by one thread.
class BucketPipeline {
 public:
  struct Options {
    ReduceOp op;
    PackOrder order = PackOrder::kLogical;
    // Leaves keep their values until Commit: every bucket is a staged copy.
    bool stage = false;
    // The backend packs for itself: it gets one view per leaf, of the leaf's memory where that is
    // possible. Not where leaves are staged, or a factor must be applied before.
    bool leaf_views = false;
    // With `leaf_views`: buckets that follow each other share one operation as long as they have no
    // more bytes than this together. 0: each has its own.
    int64_t shared_operation_bytes = 0;
    // Packed bytes in flight stay under this; a bucket that is larger goes alone.
    int64_t max_in_flight_bytes = 0;
    // Asked about every kWaitSlice; true ends the run with Cancelled.
    InterruptCheck interrupt{};
    // Called in this thread once every bucket is enqueued, while data is under way.
    std::function<void()> on_enqueued{};
    // Called in this thread when the leaves of bucket i hold their result.
    std::function<void(size_t)> on_bucket_done{};
  };

  // All references outlive the pipeline.
  BucketPipeline(const BucketPlan& plan, const FlatTree& tree, Packer& packer, Call& call,
                 DataContext& context, Options options, CollectiveStats& stats);

  // Packs and enqueues every bucket, in order, unpacking those that are done meanwhile. Leaves the
  // call's turnstile when all are enqueued, or at the first error, then waits for the rest. The first
  // error ends it: nothing more is written to a leaf by this thread afterwards.
  absl::Status Run();

  // After Run failed and the epoch was aborted: waits (bounded) until the backend has let go of the
  // buffers and of leaves that were handed out directly.
  void Settle();

  // After Run with `stage`: writes all results into the leaves.
  absl::Status Commit();

  // Indices of buckets whose leaves hold their result.
  const std::vector<size_t>& done() const { return done_; }
  // True if some leaf may hold neither its old value nor the result.
  bool wrote_partly() const { return direct_started_ > direct_done_; }

 private:
  // One operation of the backend.
  struct InFlight {
    size_t first;  // buckets [first, first + packed.size())
    std::vector<std::shared_ptr<PackedBucket>> packed;  // null for a bucket of leaves where they are
    std::unique_ptr<DataWork> work;
  };

  // The end of the buckets that share an operation with `first`, and their bytes.
  size_t EndOfOperation(size_t first, int64_t& bytes) const;
  absl::Status Enqueue(size_t first, size_t end);
  // Adds the views of one bucket to an operation; `packed` as in InFlight.
  absl::Status AddViews(const Bucket& bucket, std::vector<LeafView>& views,
                        std::vector<std::shared_ptr<PackedBucket>>& packed);
  absl::Status WaitForFront();
  // Takes the front off; its work is over.
  absl::Status FinishFront();
  // Unpacks the buckets of an operation that is over, and tells that they are done.
  absl::Status Deliver(InFlight& flight);
  absl::Status FinishWhatIsDone();
  absl::StatusOr<PackedBucket> PackNext(const Bucket& bucket);

  const BucketPlan& plan_;
  const FlatTree& tree_;
  Packer& packer_;
  Call& call_;
  DataContext& context_;
  const Options options_;
  CollectiveStats& stats_;
  DataWaiter waiter_;
  std::deque<InFlight> in_flight_;
  int64_t in_flight_bytes_ = 0;  // of owned buffers
  std::vector<InFlight> staged_;
  std::shared_ptr<const std::vector<at::Tensor>> kept_leaves_;  // what views own
  std::vector<size_t> done_;
  int direct_started_ = 0;
  int direct_done_ = 0;
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_BUCKET_PIPELINE_H_
