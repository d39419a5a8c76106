// TensorDict: a tree whose leaves are tensors (or plain values) and whose nodes share a batch size.
//
//   TensorDict grads;                                             // batch size []
//   absl::Status s = grads.Set({"encoder", "weight"}, weight);    // makes the node "encoder"
//   absl::StatusOr<at::Tensor> w = grads.Get({"encoder", "weight"});
//   absl::StatusOr<TensorDict> nested =
//       TensorDict::Make({{"a", x}, {"b", {{"c", y}, {"d", z}}}});
#ifndef LEAFPACK_TENSORDICT_TENSOR_DICT_H_
#define LEAFPACK_TENSORDICT_TENSOR_DICT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"

namespace leafpack {

struct FlatTree;
namespace internal {
struct TreeAccess;
}

// A path may have at most this many components. Deeper trees are refused (InvalidArgument), so that
// no walk over a tree can be made to need unbounded work per level.
inline constexpr int kMaxTreeDepth = 512;

// A handle, like at::Tensor: copies share the node, and so does a TensorDict that is set below
// another one. A node may stand under several paths. Tensors are held, never copied.
//
// An undefined tensor is a legal leaf (a gradient that does not exist yet). A NonTensor is a leaf that
// has no sizes and no device.
//
// Threads: any number of threads may read one tree at once. A change (all that is not const) of a node
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
  // An empty node all of whose tensors lie on `device`, see device().
  TensorDict(at::IntArrayRef batch_size, std::optional<c10::Device> device);
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

  // Puts a leaf or a node at `key`, in place of what was there. Nodes on the way are made with batch
  // size, names and device of the node above them. Where the node that takes it has a device, a tensor
  // is copied there if it lies elsewhere. A node that has no names or no device of its own takes those
  // of the node above. On an error nothing has changed. InvalidArgument, naming the path, if
  // - `key` is empty, or a leaf stands where a node is needed;
  // - the leading sizes of the tensor, or of the node's batch size, are not the batch size of the
  //   node that takes it (an undefined tensor has no sizes to check);
  // - a node has other names for these dimensions, or another device, or a leaf on another device;
  // - the path would get longer than kMaxTreeDepth;
  // - a node would come to stand below itself.
  // FailedPrecondition if the node that takes it is locked.
  absl::Status Set(const NestedKey& key, at::Tensor leaf);
  absl::Status Set(const NestedKey& key, TensorDict node);
  absl::Status Set(const NestedKey& key, NonTensor value);

  // The leaf at `key`. NotFound, naming the first component that is missing; InvalidArgument if a
  // node or a value that is no tensor stands there.
  absl::StatusOr<at::Tensor> Get(const NestedKey& key) const;

  // The value at `key`. Errors as of Get.
  absl::StatusOr<NonTensor> GetNonTensor(const NestedKey& key) const;

  // The node at `key`; the empty key is this node. Errors as of Get, the other way round.
  absl::StatusOr<TensorDict> GetDict(const NestedKey& key) const;

  // Takes away the leaf or node at `key`; nodes that become empty stay. NotFound if there is none;
  // FailedPrecondition if the node that holds it is locked.
  absl::Status Erase(const NestedKey& key);

  // Takes away all children. FailedPrecondition if this node is locked.
  absl::Status Clear();

  // True if a leaf or a node stands at `key`.
  bool Contains(const NestedKey& key) const;

  // Calls `visitor` with every tensor below this node in canonical order. The path is valid during the
  // call only. The visitor must not change the tree.
  void Visit(absl::FunctionRef<void(const NestedKey& path, const at::Tensor& leaf)> visitor) const;
  // The same with every leaf that is no tensor.
  void VisitNonTensors(
      absl::FunctionRef<void(const NestedKey& path, const NonTensor& value)> visitor) const;

  // The direct children in canonical order, as a snapshot: changing the tree does not change it.
  std::vector<Child> Children() const;

  // Number of direct children.
  size_t size() const;
  bool empty() const { return size() == 0; }

  // Number of leaves in the whole tree, tensors or not; a leaf that stands under two paths counts
  // twice.
  size_t num_leaves() const;

  at::IntArrayRef batch_size() const;
  // InvalidArgument, naming the path, if a child does not begin with `batch_size`. Nodes below that
  // have fewer dimensions get it too. Names of dimensions that stay are kept.
  absl::Status SetBatchSize(at::IntArrayRef batch_size);

  // Names of the batch dimensions: none, or one per dimension; the empty string is "no name".
  const std::vector<std::string>& names() const;
  // Names these dimensions, here and in all nodes below. InvalidArgument if there is neither none nor
  // one per dimension, or a name comes twice, also beside those that a node below has for
  // dimensions of its own.
  absl::Status SetNames(std::vector<std::string> names);

  // Where all tensors of this tree lie, if that was asked for.
  std::optional<c10::Device> device() const;
  // Asks for it no more, here and in all nodes below.
  void ClearDevice();

  // Forbids changes of structure (Set, Erase, Clear, SetBatchSize) here and in all nodes below, until
  // Unlock or until this node is gone. Values of leaves may still be written. A second Lock changes
  // nothing.
  void Lock();
  // FailedPrecondition if a locked node above this one holds it. A node below that was locked on its
  // own stays locked.
  absl::Status Unlock();
  bool is_locked() const;

  // True if both handles share one node.
  bool IsSame(const TensorDict& other) const { return node_ == other.node_; }

 private:
  struct Node;
  struct Flattener;
  friend struct Flattener;
  friend struct internal::TreeAccess;
  friend FlatTree Flatten(const TensorDict& tree);

  explicit TensorDict(std::shared_ptr<Node> node);

  using Value = std::variant<at::Tensor, TensorDict, NonTensor>;
  absl::Status SetValue(const NestedKey& key, Value value);
  static absl::Status Adopt(const Node& parent, const TensorDict& dict, const NestedKey& key);
  template <typename Leaf>
  void VisitKind(absl::FunctionRef<void(const NestedKey& path, const Leaf& leaf)> visitor) const;
  // The value at `key`, which must not be empty.
  absl::StatusOr<const Value*> Find(const NestedKey& key) const;

  std::shared_ptr<Node> node_;
};

struct TensorDict::Child {
  KeyComponent key;
  std::variant<at::Tensor, TensorDict, NonTensor> value;

  bool is_leaf() const { return !is_dict(); }  // a tensor or not
  bool is_dict() const { return std::holds_alternative<TensorDict>(value); }
  bool is_non_tensor() const { return std::holds_alternative<NonTensor>(value); }
  const at::Tensor& leaf() const { return std::get<at::Tensor>(value); }
  const TensorDict& dict() const { return std::get<TensorDict>(value); }
  const NonTensor& non_tensor() const { return std::get<NonTensor>(value); }
};

struct TensorDict::Item {
  Item(KeyComponent k, at::Tensor leaf) : key(std::move(k)), value(std::move(leaf)) {}
  Item(KeyComponent k, TensorDict node) : key(std::move(k)), value(std::move(node)) {}
  Item(KeyComponent k, NonTensor leaf) : key(std::move(k)), value(std::move(leaf)) {}
  Item(KeyComponent k, std::initializer_list<Item> items)
      : key(std::move(k)), value(std::vector<Item>(items)) {}

  KeyComponent key;
  std::variant<at::Tensor, TensorDict, NonTensor, std::vector<Item>> value;
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_TENSOR_DICT_H_
