// Trees made of parts of others: select, exclude, flatten and unflatten keys.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "tensordict/nested_key.h"
#include "tensordict/ops/items.h"
#include "tensordict/ops/keys.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::ErrorAt;
using internal::Node;
using internal::TreeAccess;
using internal::Value;
using internal::WalkItems;

TensorDict NodeLike(const Node& like) {
  auto node = std::make_shared<Node>();
  internal::CopyRules(like, *node);
  return TreeAccess::Wrap(std::move(node));
}

void AppendTo(std::string& name, const KeyComponent& key) {
  if (key.is_position()) {
    absl::StrAppend(&name, key.position());
  } else {
    name += key.name();
  }
}

}  // namespace

struct Selector::State {
  using Children = Node::ChildMap;
  // A node on the way to the last key. `to` is null where the whole node was selected before.
  struct Step {
    KeyComponent key;
    const Node* from;
    Node* to;
    Children::const_iterator next;  // in `from`, where the next key is looked for first
  };

  // The child of `step` at `key`, or the end.
  static Children::const_iterator Child(Step& step, const KeyComponent& key) {
    constexpr int kTries = 4;
    const Children& children = step.from->children;
    auto it = step.next;
    for (int i = 0; i < kTries && it != children.end(); ++i, ++it) {
      if (it->first == key) break;
    }
    if (it == children.end() || it->first != key) it = children.find(key);
    if (it != children.end()) step.next = std::next(it);
    return it;
  }

  // The node at `key` below the last step becomes the last step; false if there is none.
  bool Enter(const KeyComponent& key) {
    Step& above = steps.back();
    const auto it = Child(above, key);
    if (it == above.from->children.end()) return false;
    const auto* dict = std::get_if<TensorDict>(&it->second);
    if (dict == nullptr) return false;
    const Node& from = TreeAccess::node(*dict);
    Node* to = nullptr;
    if (above.to != nullptr) {
      const auto [slot, inserted] = above.to->children.try_emplace(key);
      if (inserted) {
        slot->second = NodeLike(from);
        ++above.to->num_dicts;
        to = &TreeAccess::node(std::get<TensorDict>(slot->second));
        made.insert(to);
      } else if (Node* there = &TreeAccess::node(std::get<TensorDict>(slot->second));
                 made.contains(there)) {
        to = there;
      }
    }
    steps.push_back({key, &from, to, from.children.begin()});
    return true;
  }

  TensorDict tree, result;
  bool strict;
  std::vector<Step> steps;  // the first is the root
  absl::flat_hash_set<const Node*> made;
};

Selector::Selector(const TensorDict& tree, bool strict) : state_(std::make_unique<State>()) {
  const Node& from = TreeAccess::node(tree);
  state_->tree = tree;
  state_->result = NodeLike(from);
  state_->strict = strict;
  Node* to = &TreeAccess::node(state_->result);
  state_->made.insert(to);
  state_->steps.push_back({KeyComponent(), &from, to, from.children.begin()});
}

Selector::~Selector() = default;

TensorDict Selector::Take() && { return std::move(state_->result); }

absl::Status Selector::Add(absl::Span<const KeyComponent> key) {
  if (key.empty()) return ErrorAt("select", NestedKey(), "the empty key names the whole tree");
  State& state = *state_;
  std::vector<State::Step>& steps = state.steps;
  const auto missing = [&]() -> absl::Status {
    if (!state.strict) return absl::OkStatus();
    return state.tree.Get(NestedKey(std::vector<KeyComponent>(key.begin(), key.end()))).status();
  };
  const size_t above = key.size() - 1;
  size_t known = 0;
  while (known < above && known + 1 < steps.size() && steps[known + 1].key == key[known]) ++known;
  steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(known) + 1, steps.end());
  for (size_t i = known; i < above; ++i) {
    if (!state.Enter(key[i])) return missing();
  }
  State::Step& step = steps.back();
  const auto it = State::Child(step, key.back());
  if (it == step.from->children.end()) return missing();
  if (step.to == nullptr) return absl::OkStatus();
  Node::ChildMap& children = step.to->children;
  const bool is_dict = std::holds_alternative<TensorDict>(it->second);
  const size_t size = children.size();
  const auto slot = children.try_emplace(children.end(), it->first, it->second);
  if (children.size() == size) {
    step.to->num_dicts -= std::holds_alternative<TensorDict>(slot->second) ? 1 : 0;
    slot->second = it->second;
  }
  step.to->num_dicts += is_dict ? 1 : 0;
  return absl::OkStatus();
}

absl::StatusOr<TensorDict> Select(const TensorDict& tree, const std::vector<NestedKey>& keys,
                                  bool strict) {
  Selector selector(tree, strict);
  for (const NestedKey& key : keys) {
    if (absl::Status s = selector.Add(key.components()); !s.ok()) return s;
  }
  return std::move(selector).Take();
}

absl::StatusOr<TensorDict> Exclude(const TensorDict& tree, const std::vector<NestedKey>& keys) {
  const auto copy = [](const Node& from) {
    TensorDict node = NodeLike(from);
    TreeAccess::node(node).children = from.children;
    TreeAccess::node(node).num_dicts = from.num_dicts;
    return node;
  };
  TensorDict result = copy(TreeAccess::node(tree));
  absl::flat_hash_set<const Node*> made = {&TreeAccess::node(result)};
  for (const NestedKey& key : keys) {
    if (key.empty()) return ErrorAt("exclude", NestedKey(), "the empty key names the whole tree");
    if (!result.Contains(key)) continue;
    Node* to = &TreeAccess::node(result);
    for (size_t i = 0; i + 1 < key.size(); ++i) {
      auto& child = std::get<TensorDict>(to->children.find(key[i])->second);
      if (!made.contains(&TreeAccess::node(child))) {
        child = copy(TreeAccess::node(child));
        made.insert(&TreeAccess::node(child));
      }
      to = &TreeAccess::node(child);
    }
    const auto it = to->children.find(key.back());
    to->num_dicts -= std::holds_alternative<TensorDict>(it->second) ? 1 : 0;
    to->children.erase(it);
  }
  return result;
}

absl::StatusOr<TensorDict> FlattenKeys(const TensorDict& tree, std::string_view separator) {
  TensorDict result = NodeLike(TreeAccess::node(tree));
  Node::ChildMap& children = TreeAccess::node(result).children;
  absl::Status status;
  std::string name;
  std::vector<const KeyComponent*> path;  // of the nodes above
  std::vector<size_t> lengths = {0};      // of what stands before a name at each depth
  WalkItems(tree, true, [&](size_t depth, const KeyComponent& key, const Value& value) {
    name.resize(lengths[depth]);
    AppendTo(name, key);
    if (std::holds_alternative<TensorDict>(value)) {
      name += separator;
      path.resize(depth);
      path.push_back(&key);
      lengths.resize(depth + 1);
      lengths.push_back(name.size());
      return;
    }
    const size_t size = children.size();
    const auto it = children.try_emplace(children.end(), KeyComponent(name), value);
    if (children.size() == size && status.ok()) {
      NestedKey where;
      for (size_t i = 0; i < depth; ++i) where.push_back(*path[i]);
      where.push_back(key);
      status = ErrorAt("flatten keys", where,
                       absl::StrCat("another leaf becomes ", it->first.ToString(), ", too"));
    }
  });
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<TensorDict> UnflattenKeys(const TensorDict& tree, std::string_view separator) {
  constexpr std::string_view kOp = "unflatten keys";
  if (separator.empty()) return ErrorAt(kOp, NestedKey(), "the separator is empty");
  TensorDict result = NodeLike(TreeAccess::node(tree));
  absl::flat_hash_set<const Node*> made = {&TreeAccess::node(result)};
  // Names that are not split come first, so that nodes that are there are joined, not replaced.
  for (const bool split : {false, true}) {
    for (const auto& [key, value] : TreeAccess::node(tree).children) {
      const bool has_parts =
          key.is_name() && std::string_view(key.name()).find(separator) != std::string_view::npos;
      if (has_parts != split) continue;
      NestedKey path;
      if (split) {
        for (std::string_view part : absl::StrSplit(key.name(), std::string(separator))) {
          path.push_back(part);
        }
      } else {
        path.push_back(key);
      }
      Node* to = &TreeAccess::node(result);
      for (size_t i = 0; i + 1 < path.size(); ++i) {
        const auto [it, inserted] = to->children.try_emplace(path[i]);
        if (inserted) {
          it->second = NodeLike(TreeAccess::node(tree));
          ++to->num_dicts;
          made.insert(&TreeAccess::node(std::get<TensorDict>(it->second)));
        }
        auto* dict = std::get_if<TensorDict>(&it->second);
        if (dict == nullptr) {
          return ErrorAt(kOp, NestedKey(key), "a leaf stands where its parts lead");
        }
        if (!made.contains(&TreeAccess::node(*dict))) {
          const Node& shared = TreeAccess::node(*dict);
          TensorDict own = NodeLike(shared);
          TreeAccess::node(own).children = shared.children;
          TreeAccess::node(own).num_dicts = shared.num_dicts;
          made.insert(&TreeAccess::node(own));
          *dict = std::move(own);
        }
        to = &TreeAccess::node(*dict);
      }
      if (path.size() > static_cast<size_t>(kMaxTreeDepth)) {
        return ErrorAt(kOp, NestedKey(),
                       absl::StrCat("a path would have more than ", kMaxTreeDepth, " components"));
      }
      const auto* leaf = std::get_if<at::Tensor>(&value);
      if (leaf != nullptr && leaf->defined() &&
          (leaf->sizes().size() < to->batch_size.size() ||
           leaf->sizes().slice(0, to->batch_size.size()) != at::IntArrayRef(to->batch_size))) {
        return ErrorAt(kOp, NestedKey(key),
                       absl::StrCat("its shape ", internal::ToText(leaf->sizes()),
                                    " does not begin with the batch size ",
                                    internal::ToText(to->batch_size),
                                    " of the node that is there"));
      }
      const auto [it, inserted] = to->children.try_emplace(path.back(), value);
      if (!inserted) {
        return ErrorAt(kOp, NestedKey(key), "something stands where its parts lead");
      }
      to->num_dicts += std::holds_alternative<TensorDict>(value) ? 1 : 0;
    }
  }
  return result;
}

}  // namespace leafpack
