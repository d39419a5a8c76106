// Small trees ride with their digest: packing a tree into the bytes of a control frame, reducing the
// frames of all ranks, and writing the result back.
#ifndef LEAFPACK_DISTRIBUTED_TREE_FRAME_H_
#define LEAFPACK_DISTRIBUTED_TREE_FRAME_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/engine.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/leaf_rules.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

// The leaves of the plan in canonical and logical order without gaps, aliases once; for kPremulSum
// times this rank's factor.
absl::StatusOr<std::string> PackFrame(const CallPlan& plan, const FlatTree& tree,
                                      const ReduceOp& op);

// The reduction that group rank 0 runs: in rank order, see distributed/core/reduce. Keeps `plan`.
FrameReducer MakeFrameReducer(std::shared_ptr<const CallPlan> plan);

// Writes the reduced bytes into the leaves `written`.
absl::Status UnpackFrame(const CallPlan& plan, absl::Span<const char> frame, const FlatTree& tree,
                         LeafRange written);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_FRAME_H_
