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

// `leaves[i]` stands at `(*paths)[i]`. `paths` is never null.
struct FlatTree {
  std::shared_ptr<const PathList> paths;
  std::vector<at::Tensor> leaves;

  FlatTree();
  FlatTree(std::shared_ptr<const PathList> p, std::vector<at::Tensor> l)
      : paths(std::move(p)), leaves(std::move(l)) {}

  size_t size() const { return leaves.size(); }
};

// The leaves of `tree` in canonical order. Nodes without leaves leave no trace. While no leaf or node
// came or went since the last call, the result has the very same `paths` pointer (a leaf that was
// replaced by another tensor does not count), so a caller may take an equal pointer for equal paths.
FlatTree Flatten(const TensorDict& tree);

// The same from pairs in any order. The empty path is legal for a tree that is one leaf.
// InvalidArgument, naming the path, if a path comes twice, lies below another, or has more than
// kMaxTreeDepth components.
absl::StatusOr<FlatTree> MakeFlatTree(std::vector<std::pair<NestedKey, at::Tensor>> leaves);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_FLAT_TREE_H_
