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

}  // namespace

PathList::PathList(std::vector<NestedKey> paths)
    : paths_(std::move(paths)), digest_(DigestOf(paths_)) {}

FlatTree::FlatTree() : paths(NoPaths()) {}

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
  return FlatTree(cache->paths, std::move(leaves));
}

absl::StatusOr<FlatTree> MakeFlatTree(std::vector<std::pair<NestedKey, at::Tensor>> leaves) {
  for (const auto& [path, leaf] : leaves) {
    if (path.size() > static_cast<size_t>(kMaxTreeDepth)) {
      const std::vector<KeyComponent> begin(path.begin(), path.begin() + 4);
      return absl::InvalidArgumentError(
          absl::StrCat("the path ", NestedKey(begin).ToString(), "... has ", path.size(),
                       " components, more than the limit of ", kMaxTreeDepth));
    }
  }
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (!std::is_sorted(leaves.begin(), leaves.end(), before)) {
    std::stable_sort(leaves.begin(), leaves.end(), before);
  }
  FlatTree tree;
  std::vector<NestedKey> paths;
  paths.reserve(leaves.size());
  tree.leaves.reserve(leaves.size());
  for (auto& [path, leaf] : leaves) {
    // Only neighbours can clash: all that begins with a path comes right behind it.
    if (!paths.empty() && paths.back().IsPrefixOf(path)) {
      return absl::InvalidArgumentError(
          paths.back() == path
              ? absl::StrCat("two leaves stand at ", path.ToString())
              : absl::StrCat(path.ToString(), " stands below the leaf ", paths.back().ToString()));
    }
    paths.push_back(std::move(path));
    tree.leaves.push_back(std::move(leaf));
  }
  if (!paths.empty()) tree.paths = std::make_shared<PathList>(std::move(paths));
  return tree;
}

}  // namespace leafpack
