// How tree operations walk trees and build new ones. For the operations in tensordict/ only.
//
// Walks are recursive and refuse trees deeper than kMaxTreeDepth. What torch throws at a leaf
// becomes a status that names the operation and the path.
#ifndef LEAFPACK_TENSORDICT_OPS_WALK_H_
#define LEAFPACK_TENSORDICT_OPS_WALK_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"
#include "tensordict/tensor_dict_node.h"

namespace leafpack::internal {

using Node = TreeAccess::Node;
using Value = TreeAccess::Value;
using Dims = absl::InlinedVector<int64_t, 8>;

// A path as a chain of frames on the stack: it costs nothing until somebody asks for it.
struct PathFrame {
  const PathFrame* above;  // null below the root
  const KeyComponent* key;
};
NestedKey PathOf(const PathFrame* above, const KeyComponent* key);

// `a` and then `b`.
Dims Join(at::IntArrayRef a, at::IntArrayRef b);
std::string ToText(at::IntArrayRef sizes);

// To be called in a handler: what was thrown, as a status that begins with `op` and, unless it is
// null, the path.
absl::Status CaughtAt(std::string_view op, const NestedKey* path);

// InvalidArgument "<op>: <path>: <text>".
absl::Status ErrorAt(std::string_view op, const NestedKey& path, std::string_view text);

// Takes batch size, names and device over from `from`.
void CopyRules(const Node& from, Node& to);

using LeafFn = absl::FunctionRef<at::Tensor(const at::Tensor& leaf)>;
using NodeFn = absl::FunctionRef<void(const Node& from, Node& to)>;

// A tree of the same structure: `leaf` makes each defined tensor, `node` sets the rules of each
// node before it has children. Undefined tensors and values that are no tensors are taken over.
// InvalidArgument, naming the path, if what `leaf` made does not begin with the node's batch size.
absl::StatusOr<TensorDict> MapTree(std::string_view op, const TensorDict& tree, LeafFn leaf,
                                   NodeFn node = CopyRules);

// Calls `leaf` with each defined tensor, in canonical order.
absl::Status VisitTensors(std::string_view op, const TensorDict& tree,
                          absl::FunctionRef<void(const at::Tensor& leaf)> leaf);

// The defined tensors in canonical order.
absl::StatusOr<std::vector<at::Tensor>> TensorsOf(std::string_view op, const TensorDict& tree);

// A tree of the same structure whose defined tensors are `tensors`, in canonical order.
absl::StatusOr<TensorDict> WithTensors(std::string_view op, const TensorDict& tree,
                                       absl::Span<const at::Tensor> tensors,
                                       NodeFn node = CopyRules);

// Walks trees of one structure side by side. InvalidArgument, naming the first path and the tree,
// if one has other keys, a node where another has a leaf, an undefined tensor beside a defined one,
// or another value that is no tensor. `node` gets the nodes of all trees; `leaf` their defined
// tensors.
using LeavesFn = absl::FunctionRef<at::Tensor(absl::Span<const at::Tensor> leaves)>;
using NodesFn =
    absl::FunctionRef<absl::Status(absl::Span<const Node* const> from, Node& to)>;
absl::StatusOr<TensorDict> ZipTrees(std::string_view op, absl::Span<const TensorDict> trees,
                                    LeavesFn leaf, NodesFn node);

// The defined tensors of `a` and `b` in canonical order; errors as of ZipTrees.
struct TensorPairs {
  std::vector<at::Tensor> a, b;
};
absl::StatusOr<TensorPairs> PairsOf(std::string_view op, const TensorDict& a, const TensorDict& b);

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_OPS_WALK_H_
