#include "tensordict/ops/combine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::Dims;
using internal::Node;
using internal::ToText;

absl::StatusOr<TensorDict> Combine(std::string_view op, absl::Span<const TensorDict> trees,
                                   int64_t dim, bool stack) {
  if (trees.empty()) return absl::InvalidArgumentError(absl::StrCat(op, ": no tree is given"));
  const auto dims = static_cast<int64_t>(trees[0].batch_size().size());
  const int64_t places = dims + (stack ? 1 : 0);
  if (dim < -places || dim >= places) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": dimension ", dim,
                                                   " is out of range for the batch size ",
                                                   ToText(trees[0].batch_size())));
  }
  const auto at = static_cast<size_t>(dim < 0 ? dim + places : dim);
  const auto node = [&](absl::Span<const Node* const> from, Node& to) -> absl::Status {
    Dims batch(from[0]->batch_size.begin(), from[0]->batch_size.end());
    to.device = from[0]->device;
    for (size_t i = 1; i < from.size(); ++i) {
      const at::IntArrayRef other = from[i]->batch_size;
      bool fits = other.size() == batch.size();
      for (size_t d = 0; fits && d < batch.size(); ++d) {
        fits = other[d] == from[0]->batch_size[d] || (!stack && d == at);
      }
      if (!fits) {
        return absl::InvalidArgumentError(
            absl::StrCat("tree 0 has the batch size ", ToText(from[0]->batch_size), ", tree ", i,
                         " ", ToText(other)));
      }
      if (!stack) batch[at] += other[at];
      if (from[i]->device != to.device) to.device = std::nullopt;
    }
    if (stack) {
      batch.insert(batch.begin() + static_cast<long>(at), static_cast<int64_t>(from.size()));
    }
    to.batch_size.assign(batch.begin(), batch.end());
    to.names = from[0]->names;
    if (stack && !to.names.empty()) {
      to.names.insert(to.names.begin() + static_cast<long>(at), std::string());
    }
    return absl::OkStatus();
  };
  const auto torch_dim = static_cast<int64_t>(at);
  return internal::ZipTrees(
      op, trees,
      [&](absl::Span<const at::Tensor> leaves) {
        const at::TensorList list(leaves.data(), leaves.size());
        return stack ? at::stack(list, torch_dim) : at::cat(list, torch_dim);
      },
      node);
}

}  // namespace

absl::StatusOr<TensorDict> Stack(absl::Span<const TensorDict> trees, int64_t dim) {
  return Combine("stack", trees, dim, /*stack=*/true);
}

absl::StatusOr<TensorDict> Cat(absl::Span<const TensorDict> trees, int64_t dim) {
  return Combine("cat", trees, dim, /*stack=*/false);
}

}  // namespace leafpack
