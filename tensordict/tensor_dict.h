// TensorDict: a tree whose leaves are tensors and whose nodes share a batch size.
//
//   TensorDict grads;                                             // batch size []
//   absl::Status s = grads.Set({"encoder", "weight"}, weight);    // makes the node "encoder"
//   absl::StatusOr<at::Tensor> w = grads.Get({"encoder", "weight"});
//   absl::StatusOr<TensorDict> nested =
//       TensorDict::Make({{"a", x}, {"b", {{"c", y}, {"d", z}}}});
#ifndef LEAFPACK_TENSORDICT_TENSOR_DICT_H_
#define LEAFPACK_TENSORDICT_TENSOR_DICT_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/nested_key.h"

namespace leafpack {

struct FlatTree;

// A path may have at most this many components. Deeper trees are refused (InvalidArgument), so that
// no walk over a tree can be made to need unbounded work per level.
inline constexpr int kMaxTreeDepth = 512;

// A handle, like at::Tensor: copies share the node, and so does a TensorDict that is set below
// another one. A node may stand under several paths. Tensors are held, never copied.
//
// An undefined tensor is a legal leaf (a gradient that does not exist yet).
//
// Threads: any number of threads may read one tree at once. A change (Set, Erase, Clear) of a node
// needs that no other thread uses a tree that holds this node. Changing the *values* of a leaf is no
// change of the tree.
class TensorDict {
 public:
  // An item of a nested construction: a tensor, a TensorDict, or items again.
  struct Item;
  // A direct child.
  struct Child;

  // An empty node.
  TensorDict();
  explicit TensorDict(at::IntArrayRef batch_size);
  explicit TensorDict(std::initializer_list<int64_t> batch_size)
      : TensorDict(at::IntArrayRef(batch_size)) {}
  ~TensorDict();
  TensorDict(const TensorDict&);
  TensorDict& operator=(const TensorDict&);
  // A moved-from handle may only be assigned to or destroyed.
  TensorDict(TensorDict&&) noexcept;
  TensorDict& operator=(TensorDict&&) noexcept;

  // A tree with these items; every nested node has the same batch size. Errors as of Set, and a
  // key that comes twice.
  static absl::StatusOr<TensorDict> Make(std::initializer_list<Item> items,
                                         at::IntArrayRef batch_size = {});

  // Puts a leaf or a node at `key`, in place of what was there. Nodes on the way are made with this
  // node's batch size. On an error nothing has changed. InvalidArgument, naming the path, if
  // - `key` is empty, or a leaf stands where a node is needed;
  // - the leading sizes of the tensor, or of the node's batch size, are not the batch size of the
  //   node that takes it (an undefined tensor has no sizes to check);
  // - the path would get longer than kMaxTreeDepth;
  // - a node would come to stand below itself.
  absl::Status Set(const NestedKey& key, at::Tensor leaf);
  absl::Status Set(const NestedKey& key, TensorDict node);

  // The leaf at `key`. NotFound, naming the first component that is missing; InvalidArgument if a
  // node stands there.
  absl::StatusOr<at::Tensor> Get(const NestedKey& key) const;

  // The node at `key`; the empty key is this node. Errors as of Get, the other way round.
  absl::StatusOr<TensorDict> GetDict(const NestedKey& key) const;

  // Takes away the leaf or node at `key`; nodes that become empty stay. NotFound if there is none.
  absl::Status Erase(const NestedKey& key);

  // Takes away all children.
  void Clear();

  // True if a leaf or a node stands at `key`.
  bool Contains(const NestedKey& key) const;

  // Calls `visitor` with every leaf below this node in canonical order. The path is valid during the
  // call only. The visitor must not change the tree.
  void Visit(absl::FunctionRef<void(const NestedKey& path, const at::Tensor& leaf)> visitor) const;

  // The direct children in canonical order, as a snapshot: changing the tree does not change it.
  std::vector<Child> Children() const;

  // Number of direct children.
  size_t size() const;
  bool empty() const { return size() == 0; }

  // Number of leaves in the whole tree; a leaf that stands under two paths counts twice.
  size_t num_leaves() const;

  at::IntArrayRef batch_size() const;

  // True if both handles share one node.
  bool IsSame(const TensorDict& other) const { return node_ == other.node_; }

 private:
  struct Node;
  struct Flattener;
  friend struct Flattener;
  friend FlatTree Flatten(const TensorDict& tree);

  explicit TensorDict(std::shared_ptr<Node> node);

  using Value = std::variant<at::Tensor, TensorDict>;
  absl::Status SetValue(const NestedKey& key, Value value);
  // The value at `key`, which must not be empty.
  absl::StatusOr<const Value*> Find(const NestedKey& key) const;

  std::shared_ptr<Node> node_;
};

struct TensorDict::Child {
  KeyComponent key;
  std::variant<at::Tensor, TensorDict> value;

  bool is_leaf() const { return std::holds_alternative<at::Tensor>(value); }
  const at::Tensor& leaf() const { return std::get<at::Tensor>(value); }
  const TensorDict& dict() const { return std::get<TensorDict>(value); }
};

struct TensorDict::Item {
  Item(KeyComponent k, at::Tensor leaf) : key(std::move(k)), value(std::move(leaf)) {}
  Item(KeyComponent k, TensorDict node) : key(std::move(k)), value(std::move(node)) {}
  Item(KeyComponent k, std::initializer_list<Item> items)
      : key(std::move(k)), value(std::vector<Item>(items)) {}

  KeyComponent key;
  std::variant<at::Tensor, TensorDict, std::vector<Item>> value;
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_TENSOR_DICT_H_
