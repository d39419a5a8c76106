#include "tensordict/ops/apply.h"

#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::ErrorAt;
using internal::Node;
using internal::PathFrame;
using internal::PathOf;
using internal::TreeAccess;
using internal::Value;

constexpr std::string_view kOp = "apply";

// Makes a copy of a tree's structure, which nobody else has, the result. Functions may do to the tree itself what they
// like.
class Applier {
 public:
  Applier(NamedFn fn, const ApplyOptions& options) : fn_(fn), options_(options) {}

  absl::Status Apply(Node& node, const PathFrame* above) {
    if (options_.batch_size.has_value()) {
      node.batch_size.assign(options_.batch_size->begin(), options_.batch_size->end());
      if (!node.names.empty()) node.names.resize(node.batch_size.size());
    }
    for (auto child = node.children.begin(); child != node.children.end();) {
      auto& [key, value] = *child;
      bool keep = true;
      if (auto* leaf = std::get_if<at::Tensor>(&value)) {
        if (leaf->defined()) {
          const NestedKey path = PathOf(above, &key);
          std::optional<at::Tensor> made;
          try {
            made = fn_(path, *leaf);
          } catch (...) {
            return internal::CaughtAt(kOp, &path);
          }
          keep = made.has_value();
          if (keep && made->defined()) {
            const at::IntArrayRef sizes = made->sizes();
            const at::IntArrayRef batch = node.batch_size;
            if (sizes.size() < batch.size() || sizes.slice(0, batch.size()) != batch) {
              return ErrorAt(kOp, path,
                             absl::StrCat("the shape ", internal::ToText(sizes),
                                          " of the result does not begin with the batch size ",
                                          internal::ToText(batch)));
            }
            if (node.device.has_value() && made->device() != *node.device) {
              node.device = std::nullopt;
            }
          }
          if (keep) *leaf = *std::move(made);
        }
      } else if (auto* dict = std::get_if<TensorDict>(&value)) {
        Node& below = TreeAccess::node(*dict);
        const bool was_empty = below.children.empty();
        const PathFrame frame = {above, &key};
        if (absl::Status s = Apply(below, &frame); !s.ok()) return s;
        keep = !below.children.empty() || options_.empty_nodes == EmptyNodes::kKeep ||
               (options_.empty_nodes == EmptyNodes::kKeepIfEmptyBefore && was_empty);
        if (!keep) --node.num_dicts;
      }
      child = keep ? std::next(child) : node.children.erase(child);
    }
    return absl::OkStatus();
  }

 private:
  const NamedFn fn_;
  const ApplyOptions& options_;
};

absl::Status Changed(const KeyComponent& key) {
  return absl::FailedPreconditionError(absl::StrCat(
      "apply in place: ", key.ToString(), ": the function changed the structure of the tree"));
}

}  // namespace

absl::StatusOr<TensorDict> NamedApply(const TensorDict& tree, NamedFn fn,
                                      const ApplyOptions& options) {
  absl::StatusOr<TensorDict> copy =
      internal::MapTree(kOp, tree, [](const at::Tensor& leaf) { return leaf; });
  if (!copy.ok()) return copy;
  if (absl::Status s = Applier(fn, options).Apply(TreeAccess::node(*copy), nullptr); !s.ok()) {
    return s;
  }
  return copy;
}

absl::StatusOr<TensorDict> Apply(const TensorDict& tree, UnaryFn fn, const ApplyOptions& options) {
  return NamedApply(
      tree, [fn](const NestedKey&, const at::Tensor& leaf) { return fn(leaf); }, options);
}

absl::StatusOr<TensorDict> Apply(absl::Span<const TensorDict> trees, ManyFn fn,
                                 const ApplyOptions& options) {
  if (trees.empty()) return ErrorAt(kOp, NestedKey(), "no tree is given");
  // The leaves of all trees, one row per path.
  std::vector<at::Tensor> leaves;
  const absl::StatusOr<TensorDict> zipped = internal::ZipTrees(
      kOp, trees,
      [&](absl::Span<const at::Tensor> row) {
        leaves.insert(leaves.end(), row.begin(), row.end());
        return row[0];
      },
      [](absl::Span<const Node* const>, Node&) { return absl::OkStatus(); });
  if (!zipped.ok()) return zipped.status();
  size_t row = 0;
  return NamedApply(
      trees[0],
      [&](const NestedKey&, const at::Tensor&) {
        const absl::Span<const at::Tensor> all = leaves;
        return fn(all.subspan(trees.size() * row++, trees.size()));
      },
      options);
}

absl::Status ApplyInPlace(TensorDict& tree, UnaryFn fn) {
  const absl::StatusOr<TensorDict> made = NamedApply(
      tree, [fn](const NestedKey&, const at::Tensor& leaf) {
        std::optional<at::Tensor> result = fn(leaf);
        return result.has_value() ? result : leaf;
      },
      {.empty_nodes = EmptyNodes::kKeep});
  if (!made.ok()) return made.status();
  // Nodes of the tree beside those of the result, which has the structure that the tree had.
  std::vector<std::pair<Node*, Node*>> pending = {
      {&TreeAccess::node(tree), &TreeAccess::node(*made)}};
  std::vector<std::pair<at::Tensor*, at::Tensor*>> changes;
  for (size_t i = 0; i < pending.size(); ++i) {
    const auto [to, from] = pending[i];
    auto source = from->children.begin();
    for (auto& [key, value] : to->children) {
      if (source == from->children.end()) return Changed(key);
      if (source->first != key || source->second.index() != value.index()) {
        return Changed(source->first);
      }
      if (auto* leaf = std::get_if<at::Tensor>(&value)) {
        at::Tensor& result = std::get<at::Tensor>(source->second);
        if (!leaf->is_same(result)) {
          if (to->locks > 0) {
            return absl::FailedPreconditionError(absl::StrCat(
                "apply in place: ", key.ToString(), ": the tree is locked; write into the tensor"));
          }
          if (to->device.has_value() && result.defined() && result.device() != *to->device) {
            return ErrorAt("apply in place", NestedKey(key),
                           absl::StrCat("the result lies on ", result.device().str(),
                                        ", but all must lie on ", to->device->str()));
          }
          changes.emplace_back(leaf, &result);
        }
      } else if (auto* dict = std::get_if<TensorDict>(&value)) {
        pending.emplace_back(&TreeAccess::node(*dict),
                             &TreeAccess::node(std::get<TensorDict>(source->second)));
      }
      ++source;
    }
    if (source != from->children.end()) return Changed(source->first);
  }
  for (const auto& [leaf, result] : changes) *leaf = std::move(*result);
  return absl::OkStatus();
}

}  // namespace leafpack
