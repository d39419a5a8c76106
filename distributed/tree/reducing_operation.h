// ReducingOperation: what all_reduce, reduce and reduce_scatter have in common. They agree on one plan of
// one tree, carry small trees in the control frame, and differ in whose leaves take the result.
#ifndef LEAFPACK_DISTRIBUTED_TREE_REDUCING_OPERATION_H_
#define LEAFPACK_DISTRIBUTED_TREE_REDUCING_OPERATION_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/all_reduce_options.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/operation.h"
#include "distributed/tree/sparse_reduce.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

class ReducingOperation : public Operation {
 public:
  std::vector<std::string> skipped_paths() const override;

 protected:
  // A collective on one tree: `trees` has one; or on a list of trees.
  ReducingOperation(CollectiveKind kind, std::string_view kind_name, std::vector<FlatTree> trees,
                    const Group& group, const AllReduceOptions& options);

  // Selects leaves, plans, and fills the spec. Overrides set what they need of arguments_ first.
  absl::Status Prepare(CallSpec& spec) override;
  absl::Status FinishFrame(absl::Span<const char> frame) override;
  // This rank's leaves that take the result; the others are only read. After the plan was made.
  virtual LeafRange Written() const = 0;
  // The rank that takes the result of a leaf; -1: all ranks do.
  virtual int OwnerOf(size_t leaf) const = 0;

  bool restore() const { return arguments_.on_failure == OnFailure::kRestore; }

  CallArguments arguments_;
  const ReduceOp op_;
  const LeafFilter filter_;
  const std::shared_ptr<PlanCache> cache_;
  std::vector<FlatTree> trees_;  // as they were given, until Prepare
  FlatTree tree_;                // since Prepare: the leaves that take part, of all trees
  std::shared_ptr<const CallPlan> plan_;
  std::optional<SparseReduce> sparse_;  // since Prepare
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_REDUCING_OPERATION_H_
