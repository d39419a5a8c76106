#include "tensordict/tensor_dict.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/path_payload.h"
#include "tensordict/tensor_dict_node.h"

namespace leafpack {
namespace {

std::string SizesToString(at::IntArrayRef sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

NestedKey Prefix(const NestedKey& key, size_t length) {
  return NestedKey(std::vector<KeyComponent>(key.begin(), key.begin() + static_cast<long>(length)));
}

bool BeginsWith(at::IntArrayRef sizes, at::IntArrayRef batch) {
  return sizes.size() >= batch.size() && sizes.slice(0, batch.size()) == batch;
}

absl::Status CheckBatch(at::IntArrayRef batch, at::IntArrayRef sizes, const NestedKey& key,
                        const char* what) {
  if (BeginsWith(sizes, batch)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot set ", key.ToString(), ": its ", what, " ", SizesToString(sizes),
      " does not begin with the batch size ", SizesToString(batch), " of the node that takes it"));
}

bool LiesOn(const c10::Device& device, const c10::Device& wanted) {
  return device.type() == wanted.type() && (!wanted.has_index() || device.index() == wanted.index());
}

absl::Status LockedError(std::string_view what, const NestedKey& key) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", what, " ", key.ToString(), ": the tree is locked"));
}

// `names` in front of what `own` has for further dimensions; or what is wrong with that.
absl::StatusOr<std::vector<std::string>> MergeNames(const std::vector<std::string>& names,
                                                    const std::vector<std::string>& own,
                                                    size_t dimensions) {
  std::vector<std::string> merged = own;
  merged.resize(dimensions);
  std::copy(names.begin(), names.end(), merged.begin());
  for (size_t i = 0; i < merged.size(); ++i) {
    if (!merged[i].empty() &&
        std::find(merged.begin(), merged.begin() + static_cast<long>(i), merged[i]) !=
            merged.begin() + static_cast<long>(i)) {
      return absl::InvalidArgumentError(
          absl::StrCat("two dimensions would have the name ", merged[i]));
    }
  }
  return merged;
}

}  // namespace

uint64_t TensorDict::Node::NextVersion() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

TensorDict::Node::~Node() {
  // Nodes that nobody else holds are emptied before they are freed, so that no destructor has a
  // node below it to free.
  std::vector<std::shared_ptr<Node>> doomed;
  const auto take_nodes = [&doomed](Node& node) {
    if (node.is_lock_owner) node.ForEachNode([](Node& below) { --below.locks; });
    node.is_lock_owner = false;
    if (node.num_dicts == 0) return;
    for (auto& [key, value] : node.children) {
      if (auto* dict = std::get_if<TensorDict>(&value)) doomed.push_back(std::move(dict->node_));
    }
    node.num_dicts = 0;
  };
  take_nodes(*this);
  while (!doomed.empty()) {
    const std::shared_ptr<Node> node = std::move(doomed.back());
    doomed.pop_back();
    if (node.use_count() == 1) take_nodes(*node);
  }
}

TensorDict::TensorDict() : node_(std::make_shared<Node>()) {}
TensorDict::TensorDict(at::IntArrayRef batch_size) : node_(std::make_shared<Node>(batch_size)) {}
TensorDict::TensorDict(at::IntArrayRef batch_size, std::optional<c10::Device> device)
    : TensorDict(batch_size) {
  node_->device = device;
}
TensorDict::TensorDict(std::shared_ptr<Node> node) : node_(std::move(node)) {}
TensorDict::~TensorDict() = default;
TensorDict::TensorDict(const TensorDict&) = default;
TensorDict& TensorDict::operator=(const TensorDict&) = default;
TensorDict::TensorDict(TensorDict&&) noexcept = default;
TensorDict& TensorDict::operator=(TensorDict&&) noexcept = default;

absl::StatusOr<TensorDict> TensorDict::Make(std::initializer_list<Item> items,
                                            at::IntArrayRef batch_size) {
  struct Pending {
    NestedKey path;
    TensorDict node;
    const Item* begin;
    const Item* end;
  };
  TensorDict root(batch_size);
  std::vector<Pending> pending = {{NestedKey(), root, items.begin(), items.end()}};
  while (!pending.empty()) {
    const Pending now = std::move(pending.back());
    pending.pop_back();
    for (const Item* item = now.begin; item != now.end; ++item) {
      NestedKey path = now.path.Child(item->key);
      if (now.node.Contains(item->key)) {
        return absl::InvalidArgumentError(absl::StrCat(path.ToString(), " is given twice"));
      }
      // Set through the root, so that errors name the whole path and depth is checked.
      if (const auto* leaf = std::get_if<at::Tensor>(&item->value)) {
        if (absl::Status s = root.Set(path, *leaf); !s.ok()) return s;
      } else if (const auto* node = std::get_if<TensorDict>(&item->value)) {
        if (absl::Status s = root.Set(path, *node); !s.ok()) return s;
      } else if (const auto* value = std::get_if<NonTensor>(&item->value)) {
        if (absl::Status s = root.Set(path, *value); !s.ok()) return s;
      } else {
        const auto& nested = std::get<std::vector<Item>>(item->value);
        TensorDict child(batch_size);
        if (absl::Status s = root.Set(path, child); !s.ok()) return s;
        pending.push_back({std::move(path), child, nested.data(), nested.data() + nested.size()});
      }
    }
  }
  return root;
}

absl::Status TensorDict::Set(const NestedKey& key, at::Tensor leaf) {
  return SetValue(key, Value(std::move(leaf)));
}

absl::Status TensorDict::Set(const NestedKey& key, TensorDict node) {
  return SetValue(key, Value(std::move(node)));
}

absl::Status TensorDict::Set(const NestedKey& key, NonTensor value) {
  return SetValue(key, Value(std::move(value)));
}

absl::Status TensorDict::SetValue(const NestedKey& key, Value value) {
  if (key.empty()) return absl::InvalidArgumentError("cannot set the root: the key is empty");

  // The last node on the way that exists, and how many components lead to it.
  Node* parent = node_.get();
  size_t depth = 0;
  for (; depth + 1 < key.size(); ++depth) {
    const auto it = parent->children.find(key[depth]);
    if (it == parent->children.end()) break;
    auto* dict = std::get_if<TensorDict>(&it->second);
    if (dict == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("cannot set ", key.ToString(), ": ",
                                                     Prefix(key, depth + 1).ToString(),
                                                     " is a leaf, nothing can stand below it"));
    }
    parent = dict->node_.get();
  }
  if (parent->locks > 0) return LockedError("set", key);

  const auto* dict = std::get_if<TensorDict>(&value);
  size_t height = 0;  // components below `key`
  if (dict != nullptr) {
    if (absl::Status s = CheckBatch(parent->batch_size, dict->batch_size(), key, "batch size");
        !s.ok()) {
      return s;
    }
    // One walk finds the height of the new node and whether it leads back to its parent.
    std::unordered_map<const Node*, size_t> heights;
    struct Step {
      const Node* node;
      Node::ChildMap::const_iterator next;
      size_t height;
    };
    std::vector<Step> stack;
    const Node* top = dict->node_.get();
    if (top == parent) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot set ", key.ToString(), ": the node would stand below itself"));
    }
    stack.push_back({top, top->children.begin(), 0});
    while (!stack.empty()) {
      Step& step = stack.back();
      if (step.node->num_dicts == 0) step.next = step.node->children.end();
      if (step.next == step.node->children.end()) {
        if (!step.node->children.empty()) step.height = std::max<size_t>(step.height, 1);
        height = step.height;
        heights[step.node] = height;
        stack.pop_back();
        if (!stack.empty()) stack.back().height = std::max(stack.back().height, height + 1);
        continue;
      }
      const Value& child = step.next->second;
      ++step.next;
      const auto* child_dict = std::get_if<TensorDict>(&child);
      if (child_dict == nullptr) continue;
      const Node* node = child_dict->node_.get();
      if (node == parent) {
        return absl::InvalidArgumentError(
            absl::StrCat("cannot set ", key.ToString(), ": the node would stand below itself"));
      }
      if (const auto known = heights.find(node); known != heights.end()) {
        step.height = std::max(step.height, known->second + 1);
        continue;
      }
      stack.push_back({node, node->children.begin(), 0});
    }
  } else if (auto* leaf = std::get_if<at::Tensor>(&value); leaf != nullptr && leaf->defined()) {
    if (leaf->is_nested()) {  // asking it for its sizes throws
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot set ", key.ToString(), ": a nested tensor has no sizes; trees of different sizes stand "
          "side by side in a lazy stack"));
    }
    if (absl::Status s = CheckBatch(parent->batch_size, leaf->sizes(), key, "shape"); !s.ok()) {
      return s;
    }
  }
  if (key.size() + height > kMaxTreeDepth) {
    const std::string begin = Prefix(key, std::min<size_t>(key.size(), 4)).ToString();
    return absl::InvalidArgumentError(
        absl::StrCat("cannot set ", begin, key.size() > 4 ? "..." : "", ": a path would have ",
                     key.size() + height, " components, more than the limit of ", kMaxTreeDepth));
  }

  if (dict != nullptr) {
    if (absl::Status s = Adopt(*parent, *dict, key); !s.ok()) return s;
  } else if (parent->device.has_value()) {
    auto* leaf = std::get_if<at::Tensor>(&value);
    if (leaf != nullptr && leaf->defined() && !LiesOn(leaf->device(), *parent->device)) {
      try {
        *leaf = leaf->to(*parent->device);
      } catch (const c10::Error& e) {
        return absl::InvalidArgumentError(
            absl::StrCat("cannot set ", key.ToString(), ": it cannot be copied to ",
                         parent->device->str(), ": ", e.what_without_backtrace()));
      } catch (const std::exception& e) {
        return absl::InvalidArgumentError(absl::StrCat("cannot set ", key.ToString(),
                                                       ": it cannot be copied to ",
                                                       parent->device->str(), ": ", e.what()));
      }
    }
  }

  // Nothing can fail from here on. New nodes are built from the bottom up.
  for (size_t i = key.size() - 1; i > depth; --i) {
    TensorDict made(parent->batch_size, parent->device);
    made.node_->names = parent->names;
    made.node_->num_dicts = std::holds_alternative<TensorDict>(value) ? 1 : 0;
    made.node_->children.emplace(key[i], std::move(value));
    value = std::move(made);
  }
  const bool is_dict = std::holds_alternative<TensorDict>(value);
  const auto [it, inserted] = parent->children.try_emplace(key[depth]);
  const bool was_dict = std::holds_alternative<TensorDict>(it->second);
  const bool changes_kind = it->second.index() != value.index();
  // The old value is destroyed last, when the tree is whole again.
  std::swap(it->second, value);
  if (inserted || is_dict || changes_kind) {
    parent->num_dicts += is_dict ? 1 : 0;
    parent->num_dicts -= was_dict ? 1 : 0;
    parent->version = Node::NextVersion();
  }
  return absl::OkStatus();
}

// Gives `dict`, which will stand at `key` below `parent`, the names and the device that it lacks, or
// says which one it has otherwise and leaves all as it is.
absl::Status TensorDict::Adopt(const Node& parent, const TensorDict& dict, const NestedKey& key) {
  const auto error = [&](std::string_view text) {
    return absl::InvalidArgumentError(absl::StrCat("cannot set ", key.ToString(), ": ", text));
  };
  const bool named = std::any_of(parent.names.begin(), parent.names.end(),
                                 [](const std::string& name) { return !name.empty(); });
  if (!named && !parent.device.has_value()) return absl::OkStatus();
  absl::Status status;
  std::vector<std::pair<Node*, std::vector<std::string>>> renamed;
  dict.node_->ForEachNode([&](Node& node) {
    if (!status.ok()) return;
    if (named) {
      for (size_t i = 0; i < parent.names.size() && i < node.names.size(); ++i) {
        if (!node.names[i].empty() && !parent.names[i].empty() &&
            node.names[i] != parent.names[i]) {
          status = error(absl::StrCat("its dimension ", i, " has the name ", node.names[i],
                                      ", but above it the name ", parent.names[i]));
          return;
        }
      }
      std::vector<std::string> names = parent.names;
      for (size_t i = 0; i < names.size() && i < node.names.size(); ++i) {
        if (names[i].empty()) names[i] = node.names[i];
      }
      absl::StatusOr<std::vector<std::string>> merged =
          MergeNames(names, node.names, node.batch_size.size());
      if (!merged.ok()) {
        status = error(merged.status().message());
        return;
      }
      renamed.emplace_back(&node, *std::move(merged));
    }
    if (!parent.device.has_value()) return;
    if (node.device.has_value() && *node.device != *parent.device) {
      status = error(absl::StrCat("its device is ", node.device->str(), ", but above it ",
                                  parent.device->str()));
      return;
    }
    for (const auto& [name, value] : node.children) {
      const auto* leaf = std::get_if<at::Tensor>(&value);
      if (leaf == nullptr || !leaf->defined() || LiesOn(leaf->device(), *parent.device)) continue;
      status = error(absl::StrCat("its leaf ", name.ToString(), " lies on ", leaf->device().str(),
                                  ", but above it all must lie on ", parent.device->str()));
      return;
    }
  });
  if (!status.ok()) return status;
  for (auto& [node, names] : renamed) {
    node->names = std::move(names);
    node->version = Node::NextVersion();
  }
  if (parent.device.has_value()) {
    dict.node_->ForEachNode([&](Node& node) { node.device = parent.device; });
  }
  return absl::OkStatus();
}

absl::StatusOr<const TensorDict::Value*> TensorDict::Find(const NestedKey& key) const {
  const Node* node = node_.get();
  for (size_t i = 0; i < key.size(); ++i) {
    const auto it = node->children.find(key[i]);
    if (it == node->children.end()) {
      return absl::NotFoundError(i + 1 == key.size()
                                     ? absl::StrCat("there is no ", key.ToString())
                                     : absl::StrCat("there is no ", Prefix(key, i + 1).ToString(),
                                                    ", so no ", key.ToString()));
    }
    if (i + 1 == key.size()) return &it->second;
    const auto* dict = std::get_if<TensorDict>(&it->second);
    if (dict == nullptr) {
      return absl::NotFoundError(absl::StrCat("there is no ", key.ToString(), ": ",
                                              Prefix(key, i + 1).ToString(), " is a leaf"));
    }
    node = dict->node_.get();
  }
  return absl::InvalidArgumentError("the key is empty: the root is a node, not a leaf");
}

absl::StatusOr<at::Tensor> TensorDict::Get(const NestedKey& key) const {
  absl::StatusOr<const Value*> value = Find(key);
  if (!value.ok()) return value.status();
  if (const auto* leaf = std::get_if<at::Tensor>(*value)) return *leaf;
  return absl::InvalidArgumentError(
      std::holds_alternative<TensorDict>(**value)
          ? absl::StrCat(key.ToString(), " is a node, not a leaf")
          : absl::StrCat(key.ToString(), " is a value that is no tensor (see GetNonTensor)"));
}

absl::StatusOr<NonTensor> TensorDict::GetNonTensor(const NestedKey& key) const {
  absl::StatusOr<const Value*> value = Find(key);
  if (!value.ok()) return value.status();
  if (const auto* found = std::get_if<NonTensor>(*value)) return *found;
  return absl::InvalidArgumentError(absl::StrCat(
      key.ToString(), " is a ", std::holds_alternative<TensorDict>(**value) ? "node" : "tensor",
      ", not a value that is no tensor"));
}

absl::StatusOr<TensorDict> TensorDict::GetDict(const NestedKey& key) const {
  if (key.empty()) return *this;
  absl::StatusOr<const Value*> value = Find(key);
  if (!value.ok()) return value.status();
  if (const auto* dict = std::get_if<TensorDict>(*value)) return *dict;
  return absl::InvalidArgumentError(absl::StrCat(key.ToString(), " is a leaf, not a node"));
}

bool TensorDict::Contains(const NestedKey& key) const { return key.empty() || Find(key).ok(); }

absl::Status TensorDict::Erase(const NestedKey& key) {
  if (key.empty()) return absl::InvalidArgumentError("cannot erase the root: the key is empty");
  absl::StatusOr<const Value*> found = Find(key);
  if (!found.ok()) return found.status();
  absl::StatusOr<TensorDict> parent = GetDict(Prefix(key, key.size() - 1));
  if (!parent.ok()) return parent.status();
  Node& node = *parent->node_;
  if (node.locks > 0) return LockedError("erase", key);
  const auto it = node.children.find(key.back());
  const Value old = std::move(it->second);  // destroyed when the tree is whole again
  node.num_dicts -= std::holds_alternative<TensorDict>(old) ? 1 : 0;
  node.children.erase(it);
  node.version = Node::NextVersion();
  return absl::OkStatus();
}

absl::Status TensorDict::Clear() {
  if (node_->locks > 0) return LockedError("clear", NestedKey());
  // A stand-in node takes the children with it, and frees them without recursion.
  Node old;
  std::swap(old.children, node_->children);
  std::swap(old.num_dicts, node_->num_dicts);
  node_->version = Node::NextVersion();
  return absl::OkStatus();
}

template <typename Leaf>
void TensorDict::VisitKind(absl::FunctionRef<void(const NestedKey&, const Leaf&)> visitor) const {
  struct Step {
    const Node* node;
    Node::ChildMap::const_iterator next;
  };
  NestedKey path;
  std::vector<Step> stack = {{node_.get(), node_->children.begin()}};
  while (!stack.empty()) {
    Step& step = stack.back();
    if (step.next == step.node->children.end()) {
      stack.pop_back();
      if (!path.empty()) path.pop_back();
      continue;
    }
    const auto& [key, value] = *step.next;
    ++step.next;
    if (const auto* leaf = std::get_if<Leaf>(&value)) {
      path.push_back(key);
      visitor(path, *leaf);
      path.pop_back();
    } else if (const auto* dict = std::get_if<TensorDict>(&value)) {
      path.push_back(key);
      stack.push_back({dict->node_.get(), dict->node_->children.begin()});
    }
  }
}

void TensorDict::Visit(
    absl::FunctionRef<void(const NestedKey& path, const at::Tensor& leaf)> visitor) const {
  VisitKind<at::Tensor>(visitor);
}

void TensorDict::VisitNonTensors(
    absl::FunctionRef<void(const NestedKey& path, const NonTensor& value)> visitor) const {
  VisitKind<NonTensor>(visitor);
}

std::vector<TensorDict::Child> TensorDict::Children() const {
  std::vector<Child> children;
  children.reserve(node_->children.size());
  for (const auto& [key, value] : node_->children) children.push_back({key, value});
  return children;
}

size_t TensorDict::size() const { return node_->children.size(); }

size_t TensorDict::num_leaves() const {
  size_t count = 0;
  std::vector<const Node*> pending = {node_.get()};
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    count += node->children.size() - node->num_dicts;
    if (node->num_dicts == 0) continue;
    for (const auto& [key, value] : node->children) {
      if (const auto* dict = std::get_if<TensorDict>(&value)) pending.push_back(dict->node_.get());
    }
  }
  return count;
}

at::IntArrayRef TensorDict::batch_size() const { return node_->batch_size; }

absl::Status TensorDict::SetBatchSize(at::IntArrayRef batch_size) {
  if (node_->locks > 0) return LockedError("set the batch size of", NestedKey());
  // Nodes that get the new batch size: this one, and those below that have fewer dimensions.
  struct Step {
    Node* node;
    Node::ChildMap::const_iterator next;
  };
  NestedKey path;
  std::vector<Step> stack = {{node_.get(), node_->children.begin()}};
  std::vector<Node*> changed = {node_.get()};
  while (!stack.empty()) {
    Step& step = stack.back();
    if (step.next == step.node->children.end()) {
      stack.pop_back();
      if (!path.empty()) path.pop_back();
      continue;
    }
    const auto& [key, value] = *step.next;
    ++step.next;
    at::IntArrayRef sizes;
    const auto* dict = std::get_if<TensorDict>(&value);
    if (dict != nullptr) {
      sizes = dict->batch_size();
      if (sizes.size() < batch_size.size()) {
        path.push_back(key);
        if (dict->node_->locks > 0) return LockedError("set the batch size of", path);
        changed.push_back(dict->node_.get());
        stack.push_back({dict->node_.get(), dict->node_->children.begin()});
        continue;
      }
    } else if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
      if (!leaf->defined()) continue;
      sizes = leaf->sizes();
    } else {
      continue;
    }
    if (!BeginsWith(sizes, batch_size)) {
      const NestedKey child = path.Child(key);
      return internal::AtPath(
          absl::InvalidArgumentError(absl::StrCat(
              "the batch size cannot be ", SizesToString(batch_size), ": the ",
              dict != nullptr ? "batch size of " : "shape of ", child.ToString(), " is ",
              SizesToString(sizes))),
          child);
    }
  }
  for (Node* node : changed) {
    node->batch_size.assign(batch_size.begin(), batch_size.end());
    if (!node->names.empty()) node->names.resize(batch_size.size());
    node->version = Node::NextVersion();
  }
  return absl::OkStatus();
}

const std::vector<std::string>& TensorDict::names() const { return node_->names; }

absl::Status TensorDict::SetNames(std::vector<std::string> names) {
  const size_t dimensions = node_->batch_size.size();
  if (!names.empty() && names.size() != dimensions) {
    return absl::InvalidArgumentError(absl::StrCat(names.size(), " names for ", dimensions,
                                                   " batch dimensions: there must be one for each"));
  }
  names.resize(dimensions);
  absl::Status status;
  std::vector<std::pair<Node*, std::vector<std::string>>> renamed;
  node_->ForEachNode([&](Node& node) {
    absl::StatusOr<std::vector<std::string>> merged =
        MergeNames(names, node.names, node.batch_size.size());
    if (!merged.ok()) status = merged.status();
    if (!status.ok()) return;
    const bool named = std::any_of(merged->begin(), merged->end(),
                                   [](const std::string& name) { return !name.empty(); });
    if (!named) merged->clear();
    renamed.emplace_back(&node, *std::move(merged));
  });
  if (!status.ok()) return status;
  for (auto& [node, merged] : renamed) {
    node->names = std::move(merged);
    node->version = Node::NextVersion();
  }
  return absl::OkStatus();
}

std::optional<c10::Device> TensorDict::device() const { return node_->device; }

void TensorDict::ClearDevice() {
  node_->ForEachNode([](Node& node) { node.device = std::nullopt; });
}

void TensorDict::Lock() {
  if (node_->is_lock_owner) return;
  node_->is_lock_owner = true;
  node_->ForEachNode([](Node& node) { ++node.locks; });
}

absl::Status TensorDict::Unlock() {
  if (node_->locks > (node_->is_lock_owner ? 1U : 0U)) {
    return absl::FailedPreconditionError(
        "cannot unlock: a node above this one is locked; unlock that one");
  }
  if (!node_->is_lock_owner) return absl::OkStatus();
  node_->is_lock_owner = false;
  node_->ForEachNode([](Node& node) { --node.locks; });
  return absl::OkStatus();
}

bool TensorDict::is_locked() const { return node_->locks > 0; }

}  // namespace leafpack
