// TreePlan: what a collective works out about one tree that it moves, and the cache that keeps it from
// one call to the next.
#ifndef LEAFPACK_DISTRIBUTED_TREE_TREE_PLAN_H_
#define LEAFPACK_DISTRIBUTED_TREE_TREE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/engine.h"
#include "distributed/tree/trees.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"

namespace leafpack::internal {

// How the leaves of one layout travel: in `buckets`, so many of them in each step. A pure function of the
// layout's digest, of the backend and of the number of ranks.
struct LayoutPlan {
  Layout layout;
  absl::uint128 digest = 0;  // of the layout
  BucketPlan buckets;
  std::vector<std::pair<size_t, size_t>> steps;  // first bucket, and the one behind the last
};

// Immutable once made; shared by calls.
struct TreePlan {
  std::shared_ptr<const LayoutPlan> plan;
  std::shared_ptr<const TreeSpec> spec;  // never null
  std::string encoded;                   // the spec; sparse leaves without a number of elements
  absl::uint128 spec_digest = 0;

  const Layout& layout() const { return plan->layout; }
};

// The plan of a layout. An error names the path of a leaf that cannot be moved.
absl::StatusOr<std::shared_ptr<const LayoutPlan>> MakeLayoutPlan(Layout layout, const Engine& engine);

// Per group: recent plans. Thread-safe.
class TreePlanCache {
 public:
  // The plan of `tree`, made anew only if it is not here. An error is about this rank's tree and names
  // the path.
  absl::StatusOr<std::shared_ptr<const TreePlan>> Get(const TreeArg& tree, const Engine& engine);

 private:
  struct Entry {
    bool from_dict = false;  // its nodes are those of a TensorDict; else those that the paths name
    std::shared_ptr<const TreePlan> plan;
  };

  absl::Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // latest first
};

// The values of all dense leaves in canonical and logical order without gaps, aliases once:
// layout.total_bytes() of them.
absl::Status AppendValues(const Layout& layout, const FlatTree& tree, std::string& out);
// The way back; Internal for another number of bytes.
absl::Status WriteValues(const Layout& layout, absl::string_view bytes, const FlatTree& tree);

// Copies the values of one tree into another of the same layout digest, sparse elements too. The trees may
// lie in each other's memory.
absl::Status CopyValues(const Layout& layout, const FlatTree& from, const FlatTree& to);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_TREE_PLAN_H_
