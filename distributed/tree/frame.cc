#include "distributed/tree/frame.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <c10/core/ScalarType.h>

#include "absl/container/inlined_vector.h"
#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

#include "distributed/core/reduce/reduce.h"
#include "tensordict/bucket/packer.h"

namespace leafpack::internal {

absl::StatusOr<std::string> PackFrame(const CallPlan& plan, const FlatTree& tree,
                                      const ReduceOp& op) {
  std::string frame(static_cast<size_t>(plan.layout.total_bytes()), '\0');
  char* out = frame.data();
  for (const int64_t i : plan.frame_leaves) {
    const auto index = static_cast<size_t>(i);
    absl::Status status = PackLeaf(tree.leaves[index], PackOrder::kLogical, out);
    if (!status.ok()) return status;
    out += plan.layout.leaf(index).bytes;
  }
  if (op.kind != ReduceOpKind::kPremulSum) return frame;
  out = frame.data();
  for (const FrameSegment& segment : plan.frame) {
    absl::Status status = ApplyFactor(segment.dtype, op.factor, out, segment.numel);
    if (!status.ok()) return status;
    out += segment.numel * static_cast<int64_t>(c10::elementSize(segment.dtype));
  }
  return frame;
}

FrameReducer MakeFrameReducer(std::shared_ptr<const CallPlan> plan) {
  return [plan = std::move(plan)](absl::Span<const absl::Span<const char>> payloads,
                                  absl::Span<char> out) {
    size_t offset = 0;
    for (const FrameSegment& segment : plan->frame) {
      absl::InlinedVector<const void*, 8> inputs;
      for (const absl::Span<const char>& payload : payloads) {
        inputs.push_back(payload.data() + offset);
      }
      // Op and dtype were checked when the plan was made, sizes by the control channel.
      const absl::Status status = ReduceInto(plan->arguments.op, segment.dtype, inputs,
                                             out.data() + offset, segment.numel);
      DCHECK_OK(status);
      offset += static_cast<size_t>(segment.numel) * c10::elementSize(segment.dtype);
    }
  };
}

absl::Status UnpackFrame(const CallPlan& plan, absl::Span<const char> frame, const FlatTree& tree,
                         LeafRange written) {
  if (static_cast<int64_t>(frame.size()) != plan.layout.total_bytes()) {
    return absl::InternalError(absl::StrCat("the reduced frame has ", frame.size(),
                                            " bytes where the tree has ",
                                            plan.layout.total_bytes()));
  }
  const char* in = frame.data();
  for (const int64_t i : plan.frame_leaves) {
    const auto index = static_cast<size_t>(i);
    if (written.Has(index)) {
      absl::Status status = UnpackLeaf(in, PackOrder::kLogical, tree.leaves[index]);
      if (!status.ok()) return status;
    }
    in += plan.layout.leaf(index).bytes;
  }
  return absl::OkStatus();
}

}  // namespace leafpack::internal
