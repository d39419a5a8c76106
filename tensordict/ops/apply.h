// Functions applied to all tensors of a tree, or of several trees of one structure.
//
//   absl::StatusOr<TensorDict> doubled = Apply(tree, [](const at::Tensor& x) { return x * 2; });
#ifndef LEAFPACK_TENSORDICT_OPS_APPLY_H_
#define LEAFPACK_TENSORDICT_OPS_APPLY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// What becomes of nodes without children in a result.
enum class EmptyNodes : uint8_t {
  kKeep,
  kDrop,
  // Keeps those that were empty before, drops those that lost their last leaf or node.
  kKeepIfEmptyBefore,
};

struct ApplyOptions {
  // Of the result, in place of the tree's. Nodes below that have a longer one get this one too.
  std::optional<std::vector<int64_t>> batch_size{};
  EmptyNodes empty_nodes = EmptyNodes::kKeepIfEmptyBefore;
};

// In all of these: functions are called in canonical order with every defined tensor; undefined
// tensors and values that are no tensors are taken over. nullopt drops the leaf. What a function
// throws becomes InvalidArgument (Unimplemented, ResourceExhausted) that names the path; so does a
// result whose sizes do not begin with the batch size. A function may change the tree itself: the result
// is made of what the tree was when the call began.

using UnaryFn = absl::FunctionRef<std::optional<at::Tensor>(const at::Tensor& leaf)>;
using NamedFn =
    absl::FunctionRef<std::optional<at::Tensor>(const NestedKey& path, const at::Tensor& leaf)>;
using ManyFn = absl::FunctionRef<std::optional<at::Tensor>(absl::Span<const at::Tensor> leaves)>;

absl::StatusOr<TensorDict> Apply(const TensorDict& tree, UnaryFn fn,
                                 const ApplyOptions& options = {});
absl::StatusOr<TensorDict> NamedApply(const TensorDict& tree, NamedFn fn,
                                      const ApplyOptions& options = {});
// `fn` gets the leaves of all trees at one path. InvalidArgument, naming the path, if the
// structures differ. Batch size, names and values that are no tensors come from the first tree.
absl::StatusOr<TensorDict> Apply(absl::Span<const TensorDict> trees, ManyFn fn,
                                 const ApplyOptions& options = {});

// Puts what `fn` returns in place of each tensor; nullopt keeps the tensor. All or nothing: at an
// error the tree is as it was (what `fn` did aside). FailedPrecondition if the tree is locked and a
// tensor would be replaced by another, or if `fn` changed the tree's structure.
absl::Status ApplyInPlace(TensorDict& tree, UnaryFn fn);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_APPLY_H_
