// Operations on the keys of a tree: update, select, rename, flatten, and lists of keys.
//
//   absl::StatusOr<TensorDict> flat = FlattenKeys(tree);   // {"a": {"b": x}} -> {"a.b": x}
//   absl::StatusOr<TensorDict> part = Select(tree, {{"a", "b"}, "c"});
#ifndef LEAFPACK_TENSORDICT_OPS_KEYS_H_
#define LEAFPACK_TENSORDICT_OPS_KEYS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// What can stand at a key.
using TreeValue = std::variant<at::Tensor, TensorDict, NonTensor>;

// Whether values may be converted to the dtype of the leaf that takes them.
enum class Cast : uint8_t { kRefuse, kAllow };

// ---- One key.

// What stands at `key`. NotFound as of TensorDict::Get. The empty key is the tree itself.
absl::StatusOr<TreeValue> GetValue(const TensorDict& tree, const NestedKey& key);
// The tensor at `key`, or `fallback` if nothing stands there. InvalidArgument if no tensor does.
absl::StatusOr<at::Tensor> GetOr(const TensorDict& tree, const NestedKey& key, at::Tensor fallback);
absl::Status SetValue(TensorDict& tree, const NestedKey& key, TreeValue value);

// Copies `value` into the tensor that stands at `key`. Sizes behind the batch size may broadcast.
// The tree keeps its tensor, so this is allowed in a locked tree. NotFound if there is none;
// InvalidArgument if sizes do not fit, or the dtype differs and `cast` is kRefuse.
absl::Status SetInPlace(TensorDict& tree, const NestedKey& key, const at::Tensor& value,
                        Cast cast = Cast::kRefuse);

// Takes away what stands at `key` and returns it. Errors as of Erase.
absl::StatusOr<TreeValue> Pop(TensorDict& tree, const NestedKey& key);

// Moves what stands at `from` to `to`, in place of what stands there. With `safe`, InvalidArgument
// if something does. InvalidArgument if `to` lies below `from`. On an error nothing has changed.
absl::Status RenameKey(TensorDict& tree, const NestedKey& from, const NestedKey& to,
                       bool safe = false);

// ---- Lists. Always in canonical order, which is sorted.

struct KeysOptions {
  bool nested = false;       // also what stands below nodes
  bool leaves_only = false;  // no nodes
};
std::vector<NestedKey> Keys(const TensorDict& tree, KeysOptions options = {});
std::vector<TreeValue> Values(const TensorDict& tree, KeysOptions options = {});
std::vector<std::pair<NestedKey, TreeValue>> Items(const TensorDict& tree,
                                                   KeysOptions options = {});

// Calls `visit` with what stands in the tree, in canonical order: a node comes directly before what is
// below it, which comes with `nested` only. `depth` is the number of nodes above, without the root. The
// visitor must not change the structure; key and value stay where they are as long as nobody does.
void VisitItems(const TensorDict& tree, bool nested,
                absl::FunctionRef<void(size_t depth, const KeyComponent& key,
                                       const TreeValue& value)> visit);

// Tells whether the structure of a tree is still that which it had: the same keys, and at each the same
// node or the same kind of leaf. Costs a few nanoseconds for each node. Threads: as reading the tree.
class StructureMark {
 public:
  // With `nested` for the whole tree, else for its first level.
  StructureMark(const TensorDict& tree, bool nested);

  // True if `tree` is that very tree, and unchanged; then what VisitItems gave is where it was.
  bool Holds(const TensorDict& tree) const;

 private:
  // Parents before children, which may be looked at only where the parent still holds them.
  std::vector<std::pair<const void*, uint64_t>> nodes_;
};

// ---- Many keys.

// Sets all of `source` in `tree`; where both have a node, goes on below. Tensors are shared. At an
// error what came before it in canonical order has been set.
absl::Status Update(TensorDict& tree, const TensorDict& source);

// Copies the tensors of `source` into those of `tree`, and sets its other values. NotFound or
// InvalidArgument (see SetInPlace), naming the path, if a leaf has no counterpart that can take it:
// then nothing has changed.
absl::Status UpdateInPlace(TensorDict& tree, const TensorDict& source, Cast cast = Cast::kRefuse);

struct LoadOptions {
  // Both must have the same leaves.
  bool strict = true;
  // The leaves of the state take the places of the old ones, in place of a copy.
  bool assign = false;
  Cast cast = Cast::kRefuse;
};

// Puts the leaves of `state` into those of `tree`, as load_state_dict does; a tree is its own
// state. Shapes must be equal, without broadcast. NotFound (the state lacks a leaf) or
// InvalidArgument (a leaf too many, another shape, dtype or kind), naming the path, before anything
// has changed. With `assign`, FailedPrecondition in a locked tree. Autograd records nothing.
absl::Status Load(TensorDict& tree, const TensorDict& state, const LoadOptions& options = {});

// A tree of these leaves and nodes only; nodes that are given whole are shared with `tree`. With
// `strict`, NotFound if one is missing. InvalidArgument for the empty key.
absl::StatusOr<TensorDict> Select(const TensorDict& tree, const std::vector<NestedKey>& keys,
                                  bool strict = true);

// Select key by key, for callers whose keys are no NestedKeys. Fastest where keys come in canonical
// order. After an error the result is of no use.
class Selector {
 public:
  Selector(const TensorDict& tree, bool strict);
  ~Selector();
  Selector(const Selector&) = delete;
  Selector& operator=(const Selector&) = delete;

  // Errors as of Select. The tree must not change between the calls.
  absl::Status Add(absl::Span<const KeyComponent> key);
  TensorDict Take() &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A tree of all but these leaves and nodes; keys that are not there do not matter. Nodes in which
// nothing is missing are shared with `tree`.
absl::StatusOr<TensorDict> Exclude(const TensorDict& tree, const std::vector<NestedKey>& keys);

// A tree of one level: the components of each path joined by `separator`, positions as decimal
// numbers. Empty nodes are dropped. InvalidArgument if two paths become one.
absl::StatusOr<TensorDict> FlattenKeys(const TensorDict& tree, std::string_view separator = ".");

// The other way round: names of the first level are split at `separator`; all parts are names.
// Where this leads into a node that is there, the two are joined. InvalidArgument if two leaves, or
// a leaf and a node, would stand at one path, or `separator` is empty.
absl::StatusOr<TensorDict> UnflattenKeys(const TensorDict& tree, std::string_view separator = ".");

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_KEYS_H_
