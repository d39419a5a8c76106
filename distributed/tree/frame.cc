#include "distributed/tree/frame.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "absl/container/inlined_vector.h"
#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"

#include "distributed/core/reduce/reduce.h"
#include "tensordict/bucket/packer.h"

namespace leafpack::internal {
namespace {

// Leaves of other devices are in frames of groups of one rank only.
absl::Status Pack(const at::Tensor& leaf, char* out) {
  if (leaf.device().is_cpu()) return PackLeaf(leaf, PackOrder::kLogical, out);
  try {
    return PackLeaf(leaf.detach().cpu(), PackOrder::kLogical, out);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying a leaf to the host failed: ", e.what()));
  }
}

absl::Status Unpack(const char* in, const at::Tensor& leaf) {
  if (leaf.device().is_cpu()) return UnpackLeaf(in, PackOrder::kLogical, leaf);
  try {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor values = at::empty(leaf.sizes(), leaf.options().device(at::kCPU));
    if (absl::Status status = UnpackLeaf(in, PackOrder::kLogical, values); !status.ok()) return status;
    leaf.copy_(values);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying a leaf to its device failed: ", e.what()));
  }
}

}  // namespace

absl::StatusOr<std::string> PackFrame(const CallPlan& plan, const FlatTree& tree,
                                      const ReduceOp& op) {
  std::string frame(static_cast<size_t>(plan.layout.total_bytes()), '\0');
  char* out = frame.data();
  for (const int64_t i : plan.frame_leaves) {
    const auto index = static_cast<size_t>(i);
    absl::Status status = Pack(tree.leaves[index], out);
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
      ABSL_DCHECK_OK(status);
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
      absl::Status status = Unpack(in, tree.leaves[index]);
      if (!status.ok()) return status;
    }
    in += plan.layout.leaf(index).bytes;
  }
  return absl::OkStatus();
}

}  // namespace leafpack::internal
