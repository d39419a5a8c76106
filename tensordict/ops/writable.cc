#include "tensordict/ops/writable.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "tensordict/ops/walk.h"

namespace leafpack::internal {
namespace {

// What a kernel's refusal depends on, beside the shapes.
struct Kind {
  at::ScalarType dtype;
  at::Device device;
  bool is_scalar;  // tensors without dimensions promote otherwise

  static Kind Of(const at::Tensor& tensor) {
    return {tensor.scalar_type(), tensor.device(), tensor.dim() == 0};
  }
  friend bool operator==(const Kind&, const Kind&) = default;
};
using Kinds = absl::InlinedVector<Kind, 3>;

bool IsPlain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized();
}

at::Tensor Small(const Kind& kind) {
  return at::ones(kind.is_scalar ? at::IntArrayRef() : at::IntArrayRef({1}),
                  at::TensorOptions().dtype(kind.dtype).device(kind.device));
}

}  // namespace

std::string_view WhyNotWritable(const at::Tensor& leaf) {
  if (leaf.layout() == at::kStrided && !leaf.unsafeGetTensorImpl()->is_non_overlapping_and_dense() &&
      at::has_internal_overlap(leaf) == at::MemOverlap::Yes) {
    return "elements of it lie at one place in memory (it was expanded): clone it first";
  }
  if (c10::GradMode::is_enabled() && leaf.requires_grad() &&
      (leaf.is_leaf() || (leaf.is_view() && leaf._base().is_leaf()))) {
    return "it is a leaf of autograd that requires grad: write it without gradients (no_grad)";
  }
  if (leaf.is_inference() && !c10::InferenceMode::is_enabled()) {
    return "it was made in inference mode, outside of which it cannot be written";
  }
  return {};
}

absl::Status CheckWritable(std::string_view op, const NestedKey& path, const at::Tensor& leaf) {
  const std::string_view why = WhyNotWritable(leaf);
  return why.empty() ? absl::OkStatus() : ErrorAt(op, path, why);
}

absl::Status CheckWritable(std::string_view op, const TensorDict& tree) {
  size_t index = 0;
  size_t first = 0;
  std::string_view why;
  absl::Status s = VisitTensors(op, tree, [&](const at::Tensor& leaf) {
    if (why.empty()) {
      why = WhyNotWritable(leaf);
      first = index;
    }
    ++index;
  });
  if (!s.ok() || why.empty()) return s;
  return ErrorAt(op, PathOfTensor(tree, first), why);
}

NestedKey PathOfTensor(const TensorDict& tree, size_t index) {
  NestedKey found;
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    if (leaf.defined() && index-- == 0) found = path;
  });
  return found;
}

absl::Status CheckInPlace(std::string_view op, const TensorDict& tree,
                          absl::Span<const at::Tensor> tensors,
                          absl::Span<const absl::Span<const at::Tensor>> operands,
                          SmallKernel kernel) {
  absl::InlinedVector<Kinds, 2> seen;
  absl::InlinedVector<size_t, 2> first_of;  // where each was seen
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (const std::string_view why = WhyNotWritable(tensor); !why.empty()) {
      return ErrorAt(op, PathOfTensor(tree, i), why);
    }
    if (!IsPlain(tensor)) continue;
    Kinds kinds = {Kind::Of(tensor)};
    bool plain = true;
    for (const absl::Span<const at::Tensor> list : operands) {
      plain = plain && IsPlain(list[i]);
      kinds.push_back(Kind::Of(list[i]));
      if (!at::is_expandable_to(list[i].sizes(), tensor.sizes())) {
        return ErrorAt(op, PathOfTensor(tree, i),
                       absl::StrCat("values of shape ", ToText(list[i].sizes()),
                                    " do not fit the shape ", ToText(tensor.sizes())));
      }
    }
    if (!plain || std::find(seen.begin(), seen.end(), kinds) != seen.end()) continue;
    seen.push_back(std::move(kinds));
    first_of.push_back(i);
  }
  if (seen.size() < 2) return absl::OkStatus();  // a refusal is one of the first tensor
  const c10::NoGradGuard no_grad;
  for (size_t k = 0; k < seen.size(); ++k) {
    try {
      std::vector<at::Tensor> small;
      for (size_t i = 1; i < seen[k].size(); ++i) small.push_back(Small(seen[k][i]));
      kernel(Small(seen[k][0]), small);
    } catch (...) {
      const NestedKey path = PathOfTensor(tree, first_of[k]);
      return CaughtAt(op, &path);
    }
  }
  return absl::OkStatus();
}

}  // namespace leafpack::internal
