#include "tensordict/ops/cast.h"

#include <ATen/ops/_foreach_zero.h>

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "tensordict/ops/walk.h"
#include "tensordict/ops/writable.h"

namespace leafpack {

using internal::MapTree;
using internal::Node;
using internal::TreeAccess;

namespace {

// The same leaves in nodes of their own.
TensorDict NewNodes(const TensorDict& tree) {
  auto root = std::make_shared<Node>();
  std::vector<std::pair<const Node*, Node*>> pending = {{&TreeAccess::node(tree), root.get()}};
  while (!pending.empty()) {
    const auto [from, to] = pending.back();
    pending.pop_back();
    internal::CopyRules(*from, *to);
    to->children = from->children;
    to->num_dicts = from->num_dicts;
    if (to->num_dicts == 0) continue;
    for (auto& [key, value] : to->children) {
      auto* dict = std::get_if<TensorDict>(&value);
      if (dict == nullptr) continue;
      auto node = std::make_shared<Node>();
      pending.emplace_back(&TreeAccess::node(*dict), node.get());  // kept alive by `tree`
      *dict = TreeAccess::Wrap(std::move(node));
    }
  }
  return TreeAccess::Wrap(std::move(root));
}

}  // namespace

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
  if (!recurse) return NewNodes(tree);
  return MapTree("clone", tree, [](const at::Tensor& leaf) { return leaf.clone(); });
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
  if (absl::Status s = internal::CheckWritable("zero", tree); !s.ok()) return s;
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
