#include "tensordict/ops/apply.h"

#include <memory>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tensordict/non_tensor.h"
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

// Builds the result for one tree; of several trees only after their structures were compared.
class Applier {
 public:
  Applier(NamedFn fn, const ApplyOptions& options) : fn_(fn), options_(options) {}

  absl::Status Apply(const Node& from, Node& to, const PathFrame* above, int depth) {
    if (depth > kMaxTreeDepth) {
      return ErrorAt(kOp, NestedKey(),
                     absl::StrCat("a path has more than ", kMaxTreeDepth, " components"));
    }
    internal::CopyRules(from, to);
    if (options_.batch_size.has_value()) {
      to.batch_size.assign(options_.batch_size->begin(), options_.batch_size->end());
      if (!to.names.empty()) to.names.resize(to.batch_size.size());
    }
    for (const auto& [key, value] : from.children) {
      if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
        std::optional<at::Tensor> made = *leaf;
        if (leaf->defined()) {
          const NestedKey path = PathOf(above, &key);
          try {
            made = fn_(path, *leaf);
          } catch (...) {
            return internal::CaughtAt(kOp, &path);
          }
          if (made.has_value() && made->defined()) {
            const at::IntArrayRef sizes = made->sizes();
            const at::IntArrayRef batch = to.batch_size;
            if (sizes.size() < batch.size() || sizes.slice(0, batch.size()) != batch) {
              return ErrorAt(kOp, path,
                             absl::StrCat("the shape ", internal::ToText(sizes),
                                          " of the result does not begin with the batch size ",
                                          internal::ToText(batch)));
            }
            if (to.device.has_value() && made->device() != *to.device) to.device = std::nullopt;
          }
        }
        if (made.has_value()) {
          to.children.emplace_hint(to.children.end(), key, *std::move(made));
        }
      } else if (const auto* dict = std::get_if<TensorDict>(&value)) {
        const Node& below = TreeAccess::node(*dict);
        const PathFrame frame = {above, &key};
        auto child = std::make_shared<Node>();
        if (absl::Status s = Apply(below, *child, &frame, depth + 1); !s.ok()) return s;
        if (child->children.empty() &&
            (options_.empty_nodes == EmptyNodes::kDrop ||
             (options_.empty_nodes == EmptyNodes::kKeepIfEmptyBefore &&
              !below.children.empty()))) {
          continue;
        }
        to.children.emplace_hint(to.children.end(), key, TreeAccess::Wrap(std::move(child)));
        ++to.num_dicts;
      } else {
        to.children.emplace_hint(to.children.end(), key, std::get<NonTensor>(value));
      }
    }
    return absl::OkStatus();
  }

 private:
  const NamedFn fn_;
  const ApplyOptions& options_;
};

}  // namespace

absl::StatusOr<TensorDict> NamedApply(const TensorDict& tree, NamedFn fn,
                                      const ApplyOptions& options) {
  auto root = std::make_shared<Node>();
  if (absl::Status s = Applier(fn, options).Apply(TreeAccess::node(tree), *root, nullptr, 0);
      !s.ok()) {
    return s;
  }
  return TreeAccess::Wrap(std::move(root));
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
  // Nodes of the tree beside those of the result, which has the same structure.
  std::vector<std::pair<Node*, Node*>> pending = {
      {&TreeAccess::node(tree), &TreeAccess::node(*made)}};
  std::vector<std::pair<at::Tensor*, at::Tensor*>> changes;
  for (size_t i = 0; i < pending.size(); ++i) {
    const auto [to, from] = pending[i];
    auto source = from->children.begin();
    for (auto& [key, value] : to->children) {
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
  }
  for (const auto& [leaf, result] : changes) *leaf = std::move(*result);
  return absl::OkStatus();
}

}  // namespace leafpack
