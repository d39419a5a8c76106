// The node behind a TensorDict handle. For this folder only.
#ifndef LEAFPACK_TENSORDICT_TENSOR_DICT_NODE_H_
#define LEAFPACK_TENSORDICT_TENSOR_DICT_NODE_H_

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "tensordict/nested_key.h"
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
    std::vector<const at::Tensor*> leaves;  // in the maps of `nodes`
  };

  Node() = default;
  explicit Node(at::IntArrayRef batch) : batch_size(batch.begin(), batch.end()) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  // Frees deep trees without recursion.
  ~Node();

  static uint64_t NextVersion();

  c10::SmallVector<int64_t, 2> batch_size;
  ChildMap children;
  // Number of children that are nodes.
  size_t num_dicts = 0;
  // Changes when a child comes, goes, or stops being the same node; not when a leaf is replaced.
  uint64_t version = NextVersion();
  absl::Mutex cache_mutex;
  std::shared_ptr<const FlattenCache> cache ABSL_GUARDED_BY(cache_mutex);
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_TENSOR_DICT_NODE_H_
