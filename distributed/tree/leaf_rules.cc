#include "distributed/tree/leaf_rules.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <c10/core/DeviceType.h>
#include <c10/core/GradMode.h>

#include "absl/strings/str_cat.h"

#include "distributed/core/device_traits.h"
#include "distributed/core/error.h"

namespace leafpack::internal {
namespace {

absl::Status Unsupported(absl::StatusCode code, const NestedKey& path, std::string_view text) {
  ErrorDetails details;
  details.kind = ErrorKind::kUnsupported;
  details.path = path.ToString();
  return WithErrorDetails(absl::Status(code, absl::StrCat("leaf ", details.path, ": ", text)),
                          details);
}

// All-reduce of dense leaves is the backend's; all others exchange leaves and reduce them here, in memory.
absl::Status Supports(const Backend& backend, CollectiveKind collective, ReduceOpKind op,
                      const LeafInfo& leaf) {
  const c10::DeviceType device = leaf.device.type();
  if (leaf.kind == LeafKind::kSparse) {
    if (op != ReduceOpKind::kSum && op != ReduceOpKind::kAvg && op != ReduceOpKind::kPremulSum) {
      return absl::UnimplementedError(absl::StrCat(
          "sparse leaves can be reduced by sum, avg and premul_sum only, not by ", ReduceOpName(op)));
    }
  } else if (collective == CollectiveKind::kAllReduce) {
    return backend.SupportsAllReduce(leaf.dtype, op, device);
  }
  if (device != c10::DeviceType::CPU) {
    return absl::UnimplementedError(absl::StrCat(
        "only CPU leaves can be reduced so, not ", c10::DeviceTypeName(device, true)));
  }
  return backend.SupportsExchange(leaf.dtype, device);
}

}  // namespace

absl::Status CheckLeafKinds(const Layout& layout, ReduceOpKind op, CollectiveKind collective,
                            const Backend& backend) {
  const DeviceTraits* const traits = DeviceTraits::Of(backend);
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (leaf.kind == LeafKind::kNonTensor) continue;  // equal on all ranks by the digest
    if (leaf.kind == LeafKind::kUndefined) {
      return Unsupported(absl::StatusCode::kInvalidArgument, layout.path(i),
                         "is undefined (a gradient that does not exist?); erase it on all ranks or "
                         "choose leaves that exist");
    }
    if (leaf.kind != LeafKind::kDense && leaf.kind != LeafKind::kSparse) {
      return Unsupported(absl::StatusCode::kUnimplemented, layout.path(i),
                         absl::StrCat(LeafKindName(leaf.kind), " leaves cannot be reduced"));
    }
    if (leaf.device.type() == c10::DeviceType::Meta) {
      return Unsupported(absl::StatusCode::kInvalidArgument, layout.path(i),
                         "is a meta tensor: it has no values to reduce");
    }
    absl::Status status = CheckOpAllowed(op, leaf.dtype);
    if (status.ok()) status = Supports(backend, collective, op, leaf);
    if (status.ok() && traits != nullptr) status = traits->CheckDevice(leaf.device);
    if (!status.ok()) return Unsupported(status.code(), layout.path(i), status.message());
  }
  return absl::OkStatus();
}

absl::Status CheckMovable(const Layout& layout, const Backend& backend) {
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (leaf.kind == LeafKind::kUndefined || leaf.kind == LeafKind::kNonTensor) continue;
    if (leaf.device.type() == c10::DeviceType::Meta) {
      return Unsupported(absl::StatusCode::kInvalidArgument, layout.path(i),
                         "is a meta tensor: it has no values to move");
    }
    const absl::Status status = backend.SupportsExchange(leaf.dtype, leaf.device.type());
    if (!status.ok()) return Unsupported(status.code(), layout.path(i), status.message());
  }
  return absl::OkStatus();
}

absl::Status CheckJoinable(const Layout& layout) {
  for (size_t i = 0; i < layout.size(); ++i) {
    if (layout.leaf(i).kind != LeafKind::kSparse) continue;
    return Unsupported(absl::StatusCode::kUnimplemented, layout.path(i),
                       "sparse leaves cannot be joined; gather the trees instead");
  }
  return absl::OkStatus();
}

absl::Status CheckAutograd(const FlatTree& tree, LeafRange written) {
  if (!c10::GradMode::is_enabled()) return absl::OkStatus();
  for (size_t i = written.begin; i < std::min(written.end, tree.size()); ++i) {
    const at::Tensor& leaf = tree.leaves[i];
    if (!leaf.defined() || !leaf.requires_grad() || leaf.is_leaf()) continue;
    ErrorDetails details;
    details.path = (*tree.paths)[i].ToString();
    return WithErrorDetails(
        absl::InvalidArgumentError(absl::StrCat(
            "leaf ", details.path,
            ": was computed by autograd (it has a grad_fn) and would be written in place; reduce it "
            "with grad mode off, or detach it")),
        details);
  }
  return absl::OkStatus();
}

void BumpVersions(const FlatTree& tree, LeafRange written) {
  constexpr size_t kAhead = 8;
  const size_t end = std::min(written.end, tree.size());
  for (size_t i = written.begin; i < end; ++i) {
    if (i + kAhead < end) __builtin_prefetch(tree.leaves[i + kAhead].unsafeGetTensorImpl(), 1);
    if (!tree.leaves[i].defined()) continue;  // a value that is no tensor
    c10::TensorImpl* impl = tree.leaves[i].unsafeGetTensorImpl();
    if (!impl->is_inference()) impl->bump_version();
  }
}

}  // namespace leafpack::internal
