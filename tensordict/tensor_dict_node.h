// The node behind a TensorDict handle. For this folder only.
#ifndef LEAFPACK_TENSORDICT_TENSOR_DICT_NODE_H_
#define LEAFPACK_TENSORDICT_TENSOR_DICT_NODE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

class PathList;

struct TensorDict::Node {
  using ChildMap = absl::btree_map<KeyComponent, Value>;

  // What Flatten found last time with this node as root. A version is drawn from one counter for the
  // whole process, so an equal version means the same node with the same children. As parents come
  // before children, a child is looked at only after its parent proved that it still holds it.
  struct FlattenCache {
    std::shared_ptr<const PathList> paths;
    std::vector<const Node*> nodes;
    std::vector<uint64_t> versions;
    std::vector<const at::Tensor*> leaves;  // in the maps of `nodes`; an undefined one for a NonTensor
    std::vector<std::pair<size_t, const NonTensor*>> non_tensors;  // by index in `leaves`
  };

  Node() = default;
  explicit Node(at::IntArrayRef batch) : batch_size(batch.begin(), batch.end()) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  // Frees deep trees without recursion.
  ~Node();

  static uint64_t NextVersion();

  // Calls `visit` once with this node and with each node below it.
  template <typename Visitor>
  void ForEachNode(const Visitor& visit);

  c10::SmallVector<int64_t, 2> batch_size;
  std::vector<std::string> names;  // empty, or one per dimension of the batch
  std::optional<c10::Device> device;
  // How many locked nodes this one stands below or is; and whether it is one.
  size_t locks = 0;
  bool is_lock_owner = false;
  ChildMap children;
  // Number of children that are nodes.
  size_t num_dicts = 0;
  // Changes when a child comes, goes, or stops being the same node or kind of leaf, and with the batch
  // size and its names: equal paths of one tree mean that it is described alike. Not when a tensor is
  // replaced by a tensor, or a NonTensor by a NonTensor.
  uint64_t version = NextVersion();
  absl::Mutex cache_mutex;
  std::shared_ptr<const FlattenCache> cache ABSL_GUARDED_BY(cache_mutex);
};

template <typename Visitor>
void TensorDict::Node::ForEachNode(const Visitor& visit) {
  std::vector<Node*> pending = {this};
  absl::flat_hash_set<const Node*> met = {this};
  while (!pending.empty()) {
    Node* node = pending.back();
    pending.pop_back();
    visit(*node);
    if (node->num_dicts == 0) continue;
    for (auto& [key, value] : node->children) {
      auto* dict = std::get_if<TensorDict>(&value);
      if (dict != nullptr && met.insert(dict->node_.get()).second) {
        pending.push_back(dict->node_.get());
      }
    }
  }
}

namespace internal {

// For tree operations, which build nodes whole instead of by Set.
struct TreeAccess {
  using Node = TensorDict::Node;
  using Value = TensorDict::Value;

  static Node& node(const TensorDict& tree) { return *tree.node_; }
  static TensorDict Wrap(std::shared_ptr<Node> node) { return TensorDict(std::move(node)); }
};

}  // namespace internal

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_TENSOR_DICT_NODE_H_
