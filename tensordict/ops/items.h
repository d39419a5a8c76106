// How operations on keys walk what stands in a tree. For the operations in tensordict/ops only.
#ifndef LEAFPACK_TENSORDICT_OPS_ITEMS_H_
#define LEAFPACK_TENSORDICT_OPS_ITEMS_H_

#include <utility>
#include <variant>
#include <vector>

#include "tensordict/ops/walk.h"
#include "tensordict/tensor_dict.h"
#include "tensordict/tensor_dict_node.h"

namespace leafpack::internal {

// Calls visit(depth, key, value); see VisitItems.
template <typename Visit>
void WalkItems(const TensorDict& tree, bool nested, const Visit& visit) {
  using Next = Node::ChildMap::const_iterator;
  std::vector<std::pair<Next, Next>> stack;
  const auto enter = [&](const Node& node) {
    stack.emplace_back(node.children.begin(), node.children.end());
  };
  enter(TreeAccess::node(tree));
  while (!stack.empty()) {
    auto& [next, end] = stack.back();
    if (next == end) {
      stack.pop_back();
      continue;
    }
    const auto& [key, value] = *next;
    ++next;
    visit(stack.size() - 1, key, value);
    if (!nested) continue;
    if (const auto* dict = std::get_if<TensorDict>(&value)) enter(TreeAccess::node(*dict));
  }
}

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_OPS_ITEMS_H_
