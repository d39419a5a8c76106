// CallPlan: all that a collective on a tree works out before it talks to anybody, and the cache that
// keeps it from one call to the next.
#ifndef LEAFPACK_DISTRIBUTED_TREE_CALL_PLAN_H_
#define LEAFPACK_DISTRIBUTED_TREE_CALL_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/engine.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/filter.h"
#include "distributed/tree/tree_plan.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"

namespace leafpack::internal {

// The arguments of a collective that reduces, as far as they shape its plan and must be equal on all
// ranks. The factor of kPremulSum is not among them: each rank has its own.
struct CallArguments {
  CollectiveKind collective = CollectiveKind::kAllReduce;
  int root = -1;  // group rank; -1: there is none
  ReduceOpKind op = ReduceOpKind::kSum;
  Bucketing bucketing = Bucketing::Auto();
  LeafFilter::Kind leaves = LeafFilter::Kind::kAll;
  OnFailure on_failure = OnFailure::kReport;
  std::string name;
  // Where it says in which order the ranks move data; else 0.
  int64_t max_in_flight_bytes = 0;

  friend bool operator==(const CallArguments&, const CallArguments&) = default;
};

// A run of elements of one dtype in a frame; runs follow each other without gaps.
struct FrameSegment {
  at::ScalarType dtype = at::ScalarType::Undefined;
  int64_t numel = 0;
};

// Immutable once made; shared by calls.
struct CallPlan {
  CallArguments arguments;
  Layout layout;
  absl::uint128 digest = 0;       // of arguments, backend, and layout
  absl::uint128 soft_digest = 0;  // of strides
  bool is_frame = false;          // rides with its digest
  std::vector<FrameSegment> frame;  // frames only
  std::vector<int64_t> frame_leaves;  // leaf indices of a frame, in wire order
  std::vector<int64_t> sparse;    // leaf indices: in no frame and no bucket, aliases once
  BucketPlan buckets;             // else: ranks need not agree on strides
  BucketPlan memory_buckets;      // else: all ranks have equal strides
  std::vector<size_t> bucket_of;  // leaf index -> its bucket in `buckets`
  // Joined trees: the first leaf of each, and the number of leaves; no bucket has leaves of two.
  std::vector<size_t> tree_begin;

  const BucketPlan& buckets_for(bool strides_agree) const {
    return strides_agree ? memory_buckets : buckets;
  }
  // For the report of a mismatch.
  std::vector<DescriptionEntry> Describe(std::string_view backend) const;
};

// Printable paths of all leaves, aliases too, that lie in the buckets `done` of `buckets`.
std::vector<std::string> PathsDone(const CallPlan& plan, const BucketPlan& buckets,
                                   const std::vector<size_t>& done);

// Per group: recent plans, the leaves that filters chose, and the buffers. Thread-safe.
class PlanCache {
 public:
  PlanCache();

  // The cache of the group that `engine` belongs to.
  static std::shared_ptr<PlanCache> Of(Engine& engine);

  // The leaves of `tree` that `filter` takes. An unchanged choice keeps its PathList pointer.
  FlatTree Select(FlatTree tree, const LeafFilter& filter);

  // One tree of several: leaf `path` of trees[i] stands at (i, path...). Unchanged paths keep the
  // PathList pointer.
  FlatTree Join(const std::vector<FlatTree>& trees);

  // The plan of `tree` (all of its leaves take part), made anew only if it is not here. An error is
  // about this rank's tree or arguments and names the path.
  // `tree_begin`: see CallPlan.
  absl::StatusOr<std::shared_ptr<const CallPlan>> Get(const FlatTree& tree,
                                                      const CallArguments& arguments,
                                                      const Engine& engine,
                                                      std::vector<size_t> tree_begin = {});

  // Of trees that are moved, not reduced.
  TreePlanCache& trees() { return trees_; }

  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  struct Selection {
    std::shared_ptr<const PathList> source;
    std::vector<size_t> chosen;  // indices into `source`
    std::shared_ptr<const PathList> paths;
  };

  struct Joined {
    std::vector<std::shared_ptr<const PathList>> sources;
    std::shared_ptr<const PathList> paths;
  };

  const std::shared_ptr<BufferPool> pool_;
  TreePlanCache trees_;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<const CallPlan>> plans_ ABSL_GUARDED_BY(mutex_);  // latest first
  std::vector<Selection> selections_ ABSL_GUARDED_BY(mutex_);                   // latest first
  std::vector<Joined> joined_ ABSL_GUARDED_BY(mutex_);                          // latest first
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_CALL_PLAN_H_
