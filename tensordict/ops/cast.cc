#include "tensordict/ops/cast.h"

#include <ATen/ops/_foreach_zero.h>

#include <vector>

#include "tensordict/ops/walk.h"

namespace leafpack {

using internal::MapTree;
using internal::Node;

absl::StatusOr<TensorDict> To(const TensorDict& tree, const ToOptions& options) {
  return MapTree(
      "to", tree,
      [&](const at::Tensor& leaf) {
        return leaf.to(options.dtype, std::nullopt, options.device, std::nullopt,
                       options.non_blocking, /*copy=*/false, std::nullopt);
      },
      [&](const Node& from, Node& to) {
        internal::CopyRules(from, to);
        if (options.device.has_value()) to.device = options.device;
      });
}

absl::StatusOr<TensorDict> Clone(const TensorDict& tree, bool recurse) {
  return MapTree("clone", tree,
                 [&](const at::Tensor& leaf) { return recurse ? leaf.clone() : leaf; });
}

absl::StatusOr<TensorDict> Contiguous(const TensorDict& tree) {
  return MapTree("contiguous", tree, [](const at::Tensor& leaf) { return leaf.contiguous(); });
}

absl::StatusOr<TensorDict> Detach(const TensorDict& tree) {
  return MapTree("detach", tree, [](const at::Tensor& leaf) { return leaf.detach(); });
}

absl::Status ZeroInPlace(const TensorDict& tree) {
  const absl::StatusOr<std::vector<at::Tensor>> tensors = internal::TensorsOf("zero", tree);
  if (!tensors.ok()) return tensors.status();
  if (tensors->empty()) return absl::OkStatus();
  try {
    at::_foreach_zero_(*tensors);
  } catch (...) {
    return internal::CaughtAt("zero", nullptr);
  }
  return absl::OkStatus();
}

absl::Status RequiresGradInPlace(const TensorDict& tree, bool requires_grad) {
  return internal::VisitTensors("requires_grad", tree, [&](const at::Tensor& leaf) {
    at::Tensor handle = leaf;
    handle.requires_grad_(requires_grad);
  });
}

absl::StatusOr<TensorDict> Grads(const TensorDict& tree) {
  return MapTree("grads", tree, [](const at::Tensor& leaf) { return leaf.grad(); });
}

}  // namespace leafpack
