#include "tensordict/ops/keys.h"

#include <c10/core/GradMode.h>

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tensordict/dtype.h"
#include "tensordict/ops/items.h"
#include "tensordict/ops/walk.h"
#include "tensordict/ops/writable.h"

namespace leafpack {
namespace {

using internal::CaughtAt;
using internal::ErrorAt;
using internal::Node;
using internal::TreeAccess;
using internal::Value;
using internal::WalkItems;

const Value* FindValue(const TensorDict& tree, const NestedKey& key) {
  const Node* node = &TreeAccess::node(tree);
  for (size_t i = 0; i < key.size(); ++i) {
    const auto it = node->children.find(key[i]);
    if (it == node->children.end()) return nullptr;
    if (i + 1 == key.size()) return &it->second;
    const auto* dict = std::get_if<TensorDict>(&it->second);
    if (dict == nullptr) return nullptr;
    node = &TreeAccess::node(*dict);
  }
  return nullptr;
}

// Whether `value` can be copied into `leaf`, which stands at `key` in a node of this batch size.
absl::Status CheckCopy(std::string_view op, const NestedKey& key, at::IntArrayRef batch,
                       const at::Tensor& leaf, const at::Tensor& value, Cast cast) {
  if (!leaf.defined()) return ErrorAt(op, key, "the tensor there is undefined");
  if (!value.defined()) return ErrorAt(op, key, "the new value is undefined");
  const at::IntArrayRef from = value.sizes();
  const at::IntArrayRef to = leaf.sizes();
  bool fits = from.size() >= batch.size() && from.size() <= to.size() &&
              from.slice(0, batch.size()) == batch;
  for (size_t i = 0; fits && i < from.size() - batch.size(); ++i) {
    const int64_t size = from[from.size() - 1 - i];
    fits = size == 1 || size == to[to.size() - 1 - i];
  }
  // A value of fewer dimensions would put its batch sizes elsewhere.
  if (fits && from.size() < to.size() && !batch.empty()) fits = false;
  if (!fits) {
    return ErrorAt(op, key,
                   absl::StrCat("values of shape ", internal::ToText(from),
                                " do not fit a leaf of shape ", internal::ToText(to),
                                batch.empty() ? std::string()
                                              : absl::StrCat(" with batch size ",
                                                             internal::ToText(batch))));
  }
  if (cast == Cast::kRefuse && leaf.scalar_type() != value.scalar_type()) {
    return ErrorAt(op, key,
                   absl::StrCat("values are ", DtypeName(value.scalar_type()), ", the leaf is ",
                                DtypeName(leaf.scalar_type()),
                                "; ask for a cast if it is meant"));
  }
  return internal::CheckWritable(op, key, leaf);
}

absl::Status Copy(std::string_view op, const NestedKey& key, const at::Tensor& leaf,
                  const at::Tensor& value) {
  try {
    leaf.copy_(value);
  } catch (...) {
    return CaughtAt(op, &key);
  }
  return absl::OkStatus();
}

// Calls visit(path, value).
template <typename Visit>
void Walk(const TensorDict& tree, const KeysOptions& options, const Visit& visit) {
  NestedKey path;
  WalkItems(tree, options.nested, [&](size_t depth, const KeyComponent& key, const Value& value) {
    while (path.size() > depth) path.pop_back();
    path.push_back(key);
    if (!options.leaves_only || !std::holds_alternative<TensorDict>(value)) visit(path, value);
  });
}

}  // namespace

absl::StatusOr<TreeValue> GetValue(const TensorDict& tree, const NestedKey& key) {
  if (key.empty()) return TreeValue(tree);
  if (const Value* value = FindValue(tree, key)) return TreeValue(*value);
  return tree.Get(key).status();  // says which component is missing
}

absl::StatusOr<at::Tensor> GetOr(const TensorDict& tree, const NestedKey& key,
                                 at::Tensor fallback) {
  if (FindValue(tree, key) == nullptr && !key.empty()) return fallback;
  return tree.Get(key);
}

absl::Status SetValue(TensorDict& tree, const NestedKey& key, TreeValue value) {
  return std::visit([&](auto& v) { return tree.Set(key, std::move(v)); }, value);
}

absl::Status SetInPlace(TensorDict& tree, const NestedKey& key, const at::Tensor& value,
                        Cast cast) {
  constexpr std::string_view kOp = "set in place";
  absl::StatusOr<at::Tensor> leaf = tree.Get(key);
  if (!leaf.ok()) return leaf.status();
  NestedKey above = key;
  above.pop_back();
  const absl::StatusOr<TensorDict> node = tree.GetDict(above);
  if (!node.ok()) return node.status();
  if (absl::Status s = CheckCopy(kOp, key, node->batch_size(), *leaf, value, cast); !s.ok()) {
    return s;
  }
  return Copy(kOp, key, *leaf, value);
}

absl::StatusOr<TreeValue> Pop(TensorDict& tree, const NestedKey& key) {
  absl::StatusOr<TreeValue> value = GetValue(tree, key);
  if (!value.ok()) return value;
  if (absl::Status s = tree.Erase(key); !s.ok()) return s;
  return value;
}

absl::Status RenameKey(TensorDict& tree, const NestedKey& from, const NestedKey& to, bool safe) {
  constexpr std::string_view kOp = "rename";
  if (from.empty() || to.empty()) return ErrorAt(kOp, NestedKey(), "the root has no name");
  absl::StatusOr<TreeValue> value = GetValue(tree, from);
  if (!value.ok()) return value.status();
  if (from == to) return absl::OkStatus();
  if (from.IsPrefixOf(to)) {
    return ErrorAt(kOp, from, absl::StrCat("it cannot be moved below itself, to ", to.ToString()));
  }
  if (safe && tree.Contains(to)) {
    return ErrorAt(kOp, from, absl::StrCat("there is something at ", to.ToString()));
  }
  NestedKey above = from;
  above.pop_back();
  if (tree.GetDict(above)->is_locked()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rename: ", from.ToString(), ": the tree is locked"));
  }
  if (absl::Status s = SetValue(tree, to, *std::move(value)); !s.ok()) return s;
  if (to.IsPrefixOf(from)) return absl::OkStatus();  // what stood above it is gone, and it too
  return tree.Erase(from);
}

std::vector<NestedKey> Keys(const TensorDict& tree, KeysOptions options) {
  std::vector<NestedKey> keys;
  Walk(tree, options, [&](const NestedKey& path, const Value&) { keys.push_back(path); });
  return keys;
}

std::vector<TreeValue> Values(const TensorDict& tree, KeysOptions options) {
  std::vector<TreeValue> values;
  Walk(tree, options, [&](const NestedKey&, const Value& value) { values.push_back(value); });
  return values;
}

std::vector<std::pair<NestedKey, TreeValue>> Items(const TensorDict& tree, KeysOptions options) {
  std::vector<std::pair<NestedKey, TreeValue>> items;
  Walk(tree, options,
       [&](const NestedKey& path, const Value& value) { items.emplace_back(path, value); });
  return items;
}

void VisitItems(const TensorDict& tree, bool nested,
                absl::FunctionRef<void(size_t depth, const KeyComponent& key,
                                       const TreeValue& value)> visit) {
  WalkItems(tree, nested, visit);
}

StructureMark::StructureMark(const TensorDict& tree, bool nested) {
  std::vector<const Node*> pending = {&TreeAccess::node(tree)};
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    nodes_.emplace_back(node, node->version);
    if (!nested || node->num_dicts == 0) continue;
    for (const auto& [key, value] : node->children) {
      if (const auto* dict = std::get_if<TensorDict>(&value)) {
        pending.push_back(&TreeAccess::node(*dict));
      }
    }
  }
}

bool StructureMark::Holds(const TensorDict& tree) const {
  if (nodes_[0].first != &TreeAccess::node(tree)) return false;
  for (const auto& [node, version] : nodes_) {
    if (static_cast<const Node*>(node)->version != version) return false;
  }
  return true;
}

absl::Status Update(TensorDict& tree, const TensorDict& source) {
  if (tree.IsSame(source)) return absl::OkStatus();
  struct Step {
    NestedKey path;
    TensorDict source;
  };
  std::vector<Step> pending = {{NestedKey(), source}};
  while (!pending.empty()) {
    const Step step = std::move(pending.back());
    pending.pop_back();
    if (step.path.size() > static_cast<size_t>(kMaxTreeDepth)) {
      return ErrorAt("update", NestedKey(),
                     absl::StrCat("a path has more than ", kMaxTreeDepth, " components"));
    }
    std::vector<Step> nodes;
    for (auto& [key, value] : step.source.Children()) {
      NestedKey path = step.path.Child(key);
      const auto* dict = std::get_if<TensorDict>(&value);
      const Value* old = FindValue(tree, path);
      const auto* old_dict = old == nullptr ? nullptr : std::get_if<TensorDict>(old);
      if (dict != nullptr && old_dict != nullptr) {
        if (!dict->IsSame(*old_dict)) nodes.push_back({std::move(path), *dict});
        continue;
      }
      if (absl::Status s = SetValue(tree, path, std::move(value)); !s.ok()) return s;
    }
    pending.insert(pending.end(), nodes.rbegin(), nodes.rend());
  }
  return absl::OkStatus();
}

absl::Status UpdateInPlace(TensorDict& tree, const TensorDict& source, Cast cast) {
  constexpr std::string_view kOp = "update in place";
  struct Change {
    NestedKey path;
    at::Tensor leaf, value;
    Value* slot = nullptr;  // for a value that is no tensor
    NonTensor new_value;
  };
  std::vector<Change> changes;
  absl::Status status;
  Walk(source, {.nested = true, .leaves_only = true},
       [&](const NestedKey& path, const Value& value) {
         if (!status.ok()) return;
         const Value* old = FindValue(tree, path);
         if (old == nullptr) {
           status = tree.Get(path).status();
           return;
         }
         if (old->index() != value.index()) {
           status = ErrorAt(kOp, path, "the two are of different kinds");
           return;
         }
         if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
           const at::Tensor& leaf = std::get<at::Tensor>(*old);
           if (!leaf.defined() && !tensor->defined()) return;
           NestedKey above = path;
           above.pop_back();
           status = CheckCopy(kOp, path, tree.GetDict(above)->batch_size(), leaf, *tensor, cast);
           changes.push_back({path, leaf, *tensor, nullptr, NonTensor()});
         } else {
           changes.push_back({path, at::Tensor(), at::Tensor(), const_cast<Value*>(old),
                              std::get<NonTensor>(value)});
         }
       });
  if (!status.ok()) return status;
  for (Change& change : changes) {
    if (change.slot != nullptr) {
      *change.slot = std::move(change.new_value);
    } else if (absl::Status s = Copy(kOp, change.path, change.leaf, change.value); !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status Load(TensorDict& tree, const TensorDict& state, const LoadOptions& options) {
  constexpr std::string_view kOp = "load";
  constexpr KeysOptions kLeaves = {.nested = true, .leaves_only = true};
  struct Change {
    NestedKey path;
    Value* slot;
    Value value;
  };
  std::vector<Change> changes;
  absl::Status status;
  const c10::NoGradGuard no_grad;
  Walk(tree, kLeaves, [&](const NestedKey& path, const Value& old) {
    if (!status.ok()) return;
    const Value* value = FindValue(state, path);
    if (value == nullptr || std::holds_alternative<TensorDict>(*value)) {
      if (options.strict) {
        status = absl::NotFoundError(
            absl::StrCat(kOp, ": ", path.ToString(), ": the tree has it, the state has not"));
      }
      return;
    }
    if (value->index() != old.index()) {
      status = ErrorAt(kOp, path, "the two are of different kinds");
      return;
    }
    if (const auto* from = std::get_if<at::Tensor>(value)) {
      const at::Tensor& to = std::get<at::Tensor>(old);
      const auto text = [](const at::Tensor& tensor) {
        return tensor.defined() ? absl::StrCat("the shape ", internal::ToText(tensor.sizes()))
                                : std::string("an undefined tensor");
      };
      if (from->defined() != to.defined() || (to.defined() && from->sizes() != to.sizes())) {
        status = ErrorAt(kOp, path,
                         absl::StrCat("the state has ", text(*from), ", the tree ", text(to)));
        return;
      }
      if (!to.defined()) return;
      if (from->scalar_type() != to.scalar_type() && options.cast == Cast::kRefuse) {
        status = ErrorAt(kOp, path,
                         absl::StrCat("the state is ", DtypeName(from->scalar_type()),
                                      ", the tree ", DtypeName(to.scalar_type()),
                                      "; ask for a cast if it is meant"));
        return;
      }
      if (!options.assign) {
        status = internal::CheckWritable(kOp, path, to);
        if (!status.ok()) return;
      }
    }
    changes.push_back({path, const_cast<Value*>(&old), *value});
  });
  if (!status.ok()) return status;
  if (options.strict) {
    Walk(state, kLeaves, [&](const NestedKey& path, const Value&) {
      const Value* own = FindValue(tree, path);
      if (status.ok() && (own == nullptr || std::holds_alternative<TensorDict>(*own))) {
        status = ErrorAt(kOp, path, "the state has it, the tree has not");
      }
    });
    if (!status.ok()) return status;
  }
  if (options.assign && tree.is_locked() && !changes.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(kOp, ": ", changes.front().path.ToString(), ": the tree is locked"));
  }
  for (Change& change : changes) {
    const auto* from = std::get_if<at::Tensor>(&change.value);
    if (from == nullptr) {
      *change.slot = std::move(change.value);
    } else if (options.assign) {
      if (absl::Status s = tree.Set(change.path, *from); !s.ok()) return s;
    } else if (absl::Status s = Copy(kOp, change.path, std::get<at::Tensor>(*change.slot), *from);
               !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace leafpack
