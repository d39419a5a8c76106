#include "tensordict/flat_tree.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensordict/digest128.h"
#include "tensordict/digest_builder.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"
#include "tensordict/tensor_dict_node.h"

namespace leafpack {
namespace {

Digest128 DigestOf(const std::vector<NestedKey>& paths) {
  DigestBuilder builder("leafpack paths 1");
  builder.U64(paths.size());
  for (const NestedKey& path : paths) {
    builder.U32(static_cast<uint32_t>(path.size()));
    for (const KeyComponent& component : path) {
      if (component.is_position()) {
        builder.U8(0);
        builder.I64(component.position());
      } else {
        builder.U8(1);
        builder.Bytes(component.name());
      }
    }
  }
  return builder.Finish();
}

const std::shared_ptr<const PathList>& NoPaths() {
  static const auto* const none =
      new std::shared_ptr<const PathList>(std::make_shared<PathList>(std::vector<NestedKey>()));
  return *none;
}

const at::Tensor& NoTensor() {
  static const auto* const none = new at::Tensor();
  return *none;
}

}  // namespace

PathList::PathList(std::vector<NestedKey> paths)
    : paths_(std::move(paths)), digest_(DigestOf(paths_)) {}

FlatTree::FlatTree() : paths(NoPaths()) {}

const NonTensor* FlatTree::non_tensor(size_t i) const {
  const auto it = std::lower_bound(non_tensors.begin(), non_tensors.end(), i,
                                   [](const NonTensorLeaf& n, size_t leaf) { return n.leaf < leaf; });
  return it != non_tensors.end() && it->leaf == i ? &it->value : nullptr;
}

struct TensorDict::Flattener {
  using Cache = TensorDict::Node::FlattenCache;

  static bool IsCurrent(const Cache& cache) {
    for (size_t i = 0; i < cache.nodes.size(); ++i) {
      if (cache.nodes[i]->version != cache.versions[i]) return false;
    }
    return true;
  }

  static std::shared_ptr<const Cache> Walk(const TensorDict::Node& root) {
    struct Step {
      const TensorDict::Node* node;
      TensorDict::Node::ChildMap::const_iterator next;
    };
    auto cache = std::make_shared<Cache>();
    std::vector<NestedKey> paths;
    NestedKey path;
    std::vector<Step> stack;
    const auto enter = [&](const TensorDict::Node* node) {
      cache->nodes.push_back(node);
      cache->versions.push_back(node->version);
      stack.push_back({node, node->children.begin()});
    };
    enter(&root);
    while (!stack.empty()) {
      Step& step = stack.back();
      if (step.next == step.node->children.end()) {
        stack.pop_back();
        if (!path.empty()) path.pop_back();
        continue;
      }
      const auto& [key, value] = *step.next;
      ++step.next;
      if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
        paths.push_back(path.Child(key));
        cache->leaves.push_back(leaf);
      } else if (const auto* non_tensor = std::get_if<NonTensor>(&value)) {
        paths.push_back(path.Child(key));
        cache->non_tensors.emplace_back(cache->leaves.size(), non_tensor);
        cache->leaves.push_back(&NoTensor());
      } else {
        path.push_back(key);
        enter(std::get<TensorDict>(value).node_.get());
      }
    }
    cache->paths = std::make_shared<PathList>(std::move(paths));
    return cache;
  }
};

FlatTree Flatten(const TensorDict& tree) {
  TensorDict::Node& root = *tree.node_;
  std::shared_ptr<const TensorDict::Node::FlattenCache> cache;
  {
    absl::MutexLock lock(&root.cache_mutex);
    cache = root.cache;
  }
  if (cache == nullptr || !TensorDict::Flattener::IsCurrent(*cache)) {
    // Two threads may both come here; either result is right.
    cache = TensorDict::Flattener::Walk(root);
    absl::MutexLock lock(&root.cache_mutex);
    root.cache = cache;
  }
  std::vector<at::Tensor> leaves;
  leaves.reserve(cache->leaves.size());
  for (const at::Tensor* leaf : cache->leaves) leaves.push_back(*leaf);
  std::vector<NonTensorLeaf> non_tensors;
  non_tensors.reserve(cache->non_tensors.size());
  for (const auto& [leaf, value] : cache->non_tensors) non_tensors.push_back({leaf, *value});
  return FlatTree(cache->paths, std::move(leaves), std::move(non_tensors));
}

absl::StatusOr<FlatTree> MakeFlatTree(
    std::vector<std::pair<NestedKey, at::Tensor>> leaves,
    std::vector<std::pair<NestedKey, NonTensor>> non_tensors) {
  struct Leaf {
    NestedKey path;
    at::Tensor tensor;
    const NonTensor* value = nullptr;
  };
  std::vector<Leaf> all;
  all.reserve(leaves.size() + non_tensors.size());
  for (auto& [path, tensor] : leaves) all.push_back({std::move(path), std::move(tensor), nullptr});
  for (auto& [path, value] : non_tensors) all.push_back({std::move(path), at::Tensor(), &value});
  for (const Leaf& leaf : all) {
    if (leaf.path.size() > static_cast<size_t>(kMaxTreeDepth)) {
      const std::vector<KeyComponent> begin(leaf.path.begin(), leaf.path.begin() + 4);
      return absl::InvalidArgumentError(
          absl::StrCat("the path ", NestedKey(begin).ToString(), "... has ", leaf.path.size(),
                       " components, more than the limit of ", kMaxTreeDepth));
    }
  }
  const auto before = [](const Leaf& a, const Leaf& b) { return a.path < b.path; };
  if (!std::is_sorted(all.begin(), all.end(), before)) {
    std::stable_sort(all.begin(), all.end(), before);
  }
  FlatTree tree;
  std::vector<NestedKey> paths;
  paths.reserve(all.size());
  tree.leaves.reserve(all.size());
  for (Leaf& leaf : all) {
    // Only neighbours can clash: all that begins with a path comes right behind it.
    if (!paths.empty() && paths.back().IsPrefixOf(leaf.path)) {
      return absl::InvalidArgumentError(
          paths.back() == leaf.path
              ? absl::StrCat("two leaves stand at ", leaf.path.ToString())
              : absl::StrCat(leaf.path.ToString(), " stands below the leaf ",
                             paths.back().ToString()));
    }
    if (leaf.value != nullptr) tree.non_tensors.push_back({paths.size(), *leaf.value});
    paths.push_back(std::move(leaf.path));
    tree.leaves.push_back(std::move(leaf.tensor));
  }
  if (!paths.empty()) tree.paths = std::make_shared<PathList>(std::move(paths));
  return tree;
}

}  // namespace leafpack
