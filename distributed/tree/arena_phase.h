// The data phase of an all-reduce of leaves in arenas: nothing is packed, so all operations are handed to
// the backend at once.
#ifndef LEAFPACK_DISTRIBUTED_TREE_ARENA_PHASE_H_
#define LEAFPACK_DISTRIBUTED_TREE_ARENA_PHASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "distributed/core/arena.h"
#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/data_wait.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

// One run of one plan over one tree whose strides all ranks have alike. Used by one thread.
class ArenaPipeline {
 public:
  struct Options {
    ReduceOp op;  // no factor
    // By leaf, as all ranks agreed: where it stands, or null for an ordinary leaf.
    absl::Span<const Arena* const> leaf_arenas;
    // By leaf, the same: whether what is behind it up to the next kArenaAlignment belongs to nobody.
    const std::vector<bool>* whole = nullptr;
    // Buckets that follow each other share one operation up to so many bytes. 0: each has its own.
    int64_t shared_operation_bytes = 0;
    InterruptCheck interrupt{};
    // Called in this thread once all is enqueued, while data is under way.
    std::function<void()> on_enqueued{};
    // Called in this thread when the leaves of bucket i hold their result.
    std::function<void(size_t)> on_bucket_done{};
  };

  // All references outlive this.
  ArenaPipeline(const BucketPlan& plan, const FlatTree& tree, Call& call, ArenaContext& arenas,
                Options options, CollectiveStats& stats);

  // Enqueues all, leaves the turnstile, waits. After an error nothing more is enqueued.
  absl::Status Run();
  // After Run failed and the epoch was aborted: waits (bounded) until the backend has let go of the leaves.
  void Settle();

  // Indices of buckets whose leaves hold their result.
  const std::vector<size_t>& done() const { return done_; }
  // True if some leaf may hold neither its old value nor the result.
  bool wrote_partly() const { return started_ > done_.size(); }

 private:
  struct InFlight {
    size_t first, end;  // buckets
    std::unique_ptr<DataWork> work;
  };

  absl::Status Enqueue(size_t first, size_t end);
  void AddViews(const Bucket& bucket, std::vector<LeafView>& views,
                std::vector<const Arena*>& arenas);

  const BucketPlan& plan_;
  const FlatTree& tree_;
  Call& call_;
  ArenaContext& arenas_;
  const Options options_;
  CollectiveStats& stats_;
  DataWaiter waiter_;
  std::shared_ptr<const std::vector<at::Tensor>> kept_leaves_;  // what views of ordinary leaves own
  std::vector<InFlight> in_flight_;
  std::vector<size_t> done_;
  size_t started_ = 0;  // buckets
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_ARENA_PHASE_H_
