// A tree as two parallel lists in canonical order: the paths (immutable, shared) and the leaves.
#ifndef LEAFPACK_TENSORDICT_FLAT_TREE_H_
#define LEAFPACK_TENSORDICT_FLAT_TREE_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tensordict/digest128.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// The paths of all leaves of a tree, strictly rising in canonical order. Immutable.
class PathList {
 public:
  // `paths` must be strictly rising, and none may be the beginning of another (checked by
  // MakeFlatTree, which is the way to get one from other input).
  explicit PathList(std::vector<NestedKey> paths);

  const std::vector<NestedKey>& paths() const { return paths_; }
  size_t size() const { return paths_.size(); }
  const NestedKey& operator[](size_t i) const { return paths_[i]; }

  // Of all paths; the same in every process and on every platform.
  const Digest128& digest() const { return digest_; }

 private:
  std::vector<NestedKey> paths_;
  Digest128 digest_;
};

// A leaf that is no tensor.
struct NonTensorLeaf {
  size_t leaf = 0;  // index in FlatTree::leaves
  NonTensor value;
  friend bool operator==(const NonTensorLeaf&, const NonTensorLeaf&) = default;
};

// `leaves[i]` stands at `(*paths)[i]`. `paths` is never null. Where a NonTensor stands, the tensor is
// undefined and `non_tensors`, whose indices rise, has the value.
struct FlatTree {
  std::shared_ptr<const PathList> paths;
  std::vector<at::Tensor> leaves;
  std::vector<NonTensorLeaf> non_tensors;

  FlatTree();
  FlatTree(std::shared_ptr<const PathList> p, std::vector<at::Tensor> l,
           std::vector<NonTensorLeaf> n = {})
      : paths(std::move(p)), leaves(std::move(l)), non_tensors(std::move(n)) {}

  size_t size() const { return leaves.size(); }
  // The value at leaf `i`, or null if a tensor stands there.
  const NonTensor* non_tensor(size_t i) const;
};

// The leaves of `tree` in canonical order. Nodes without leaves leave no trace. While no leaf or node
// came or went since the last call, the result has the very same `paths` pointer (a leaf that was
// replaced by another of its kind does not count), so a caller may take an equal pointer for equal paths.
FlatTree Flatten(const TensorDict& tree);

// The same from pairs in any order. The empty path is legal for a tree that is one leaf.
// InvalidArgument, naming the path, if a path comes twice, lies below another, or has more than
// kMaxTreeDepth components.
absl::StatusOr<FlatTree> MakeFlatTree(std::vector<std::pair<NestedKey, at::Tensor>> leaves,
                                      std::vector<std::pair<NestedKey, NonTensor>> non_tensors = {});

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_FLAT_TREE_H_
