#include "tensordict/ops/lazy_stack.h"

#include <ATen/ops/stack.h>

#include <algorithm>
#include <string_view>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tensordict/ops/combine.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::ErrorAt;
using internal::ToText;

constexpr std::string_view kOp = "lazy stack";

// What TensorDict::Set would find wrong.
absl::Status CheckSet(const TensorDict& tree, const NestedKey& key, const at::Tensor& leaf) {
  if (key.empty() || key.size() > static_cast<size_t>(kMaxTreeDepth)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key of ", key.size(), " components cannot be set"));
  }
  TensorDict node = tree;
  NestedKey path;
  for (size_t i = 0; i + 1 < key.size(); ++i) {
    path.push_back(key[i]);
    if (!tree.Contains(path)) break;
    absl::StatusOr<TensorDict> next = tree.GetDict(path);
    if (!next.ok()) return next.status();
    node = *std::move(next);
  }
  if (node.is_locked()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot set ", key.ToString(), ": the tree is locked"));
  }
  const at::IntArrayRef batch = node.batch_size();
  if (leaf.sizes().size() < batch.size() || leaf.sizes().slice(0, batch.size()) != batch) {
    return ErrorAt("set", key,
                   absl::StrCat("the shape ", ToText(leaf.sizes()),
                                " does not begin with the batch size ", ToText(batch)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LazyStack> LazyStack::Make(std::vector<TensorDict> trees, int64_t dim) {
  if (trees.empty()) return ErrorAt(kOp, NestedKey(), "no tree is given");
  const at::IntArrayRef batch = trees[0].batch_size();
  for (size_t i = 1; i < trees.size(); ++i) {
    if (trees[i].batch_size() != batch) {
      return ErrorAt(kOp, NestedKey(),
                     absl::StrCat("tree 0 has the batch size ", ToText(batch), ", tree ", i, " ",
                                  ToText(trees[i].batch_size())));
    }
  }
  const auto places = static_cast<int64_t>(batch.size()) + 1;
  if (dim < -places || dim >= places) {
    return ErrorAt(kOp, NestedKey(),
                   absl::StrCat("dimension ", dim, " is out of range for the batch size ",
                                ToText(batch)));
  }
  return LazyStack(std::move(trees), dim < 0 ? dim + places : dim);
}

std::vector<int64_t> LazyStack::batch_size() const {
  std::vector<int64_t> batch = trees_[0].batch_size().vec();
  batch.insert(batch.begin() + dim_, static_cast<int64_t>(trees_.size()));
  return batch;
}

std::vector<NestedKey> LazyStack::CommonKeys(KeysOptions options) const {
  std::vector<NestedKey> common;
  for (auto& [key, value] : Items(trees_[0], options)) {
    const bool everywhere =
        std::all_of(trees_.begin() + 1, trees_.end(), [&](const TensorDict& tree) {
          const absl::StatusOr<TreeValue> other = GetValue(tree, key);
          return other.ok() && other->index() == value.index();
        });
    if (everywhere) common.push_back(key);
  }
  return common;
}

absl::StatusOr<std::vector<at::Tensor>> LazyStack::GetList(const NestedKey& key) const {
  std::vector<at::Tensor> leaves;
  leaves.reserve(trees_.size());
  for (size_t i = 0; i < trees_.size(); ++i) {
    absl::StatusOr<at::Tensor> leaf = trees_[i].Get(key);
    if (!leaf.ok()) {
      return absl::Status(leaf.status().code(),
                          absl::StrCat(kOp, ": tree ", i, ": ", leaf.status().message()));
    }
    leaves.push_back(*std::move(leaf));
  }
  return leaves;
}

absl::StatusOr<at::Tensor> LazyStack::Get(const NestedKey& key) const {
  const absl::StatusOr<std::vector<at::Tensor>> leaves = GetList(key);
  if (!leaves.ok()) return leaves.status();
  for (size_t i = 0; i < leaves->size(); ++i) {
    const at::Tensor& leaf = (*leaves)[i];
    if (!leaf.defined()) {
      return ErrorAt(kOp, key, absl::StrCat("tree ", i, " has an undefined tensor"));
    }
    if (leaf.sizes() != (*leaves)[0].sizes()) {
      return ErrorAt(kOp, key,
                     absl::StrCat("tree 0 has the shape ", ToText((*leaves)[0].sizes()), ", tree ",
                                  i, " ", ToText(leaf.sizes()), "; GetList takes both"));
    }
  }
  try {
    return at::stack(*leaves, dim_);
  } catch (...) {
    return internal::CaughtAt(kOp, &key);
  }
}

absl::StatusOr<LazyStack> LazyStack::GetDict(const NestedKey& key) const {
  std::vector<TensorDict> nodes;
  nodes.reserve(trees_.size());
  for (size_t i = 0; i < trees_.size(); ++i) {
    absl::StatusOr<TensorDict> node = trees_[i].GetDict(key);
    if (!node.ok()) {
      return absl::Status(node.status().code(),
                          absl::StrCat(kOp, ": tree ", i, ": ", node.status().message()));
    }
    nodes.push_back(*std::move(node));
  }
  return Make(std::move(nodes), dim_);
}

absl::Status LazyStack::Set(const NestedKey& key, const at::Tensor& leaf) {
  const std::vector<int64_t> batch = batch_size();
  if (!leaf.defined()) return ErrorAt(kOp, key, "the tensor is undefined");
  if (leaf.sizes().size() < batch.size() || leaf.sizes().slice(0, batch.size()) != batch) {
    return ErrorAt(kOp, key,
                   absl::StrCat("its shape ", ToText(leaf.sizes()),
                                " does not begin with the batch size ", ToText(batch)));
  }
  std::vector<at::Tensor> parts;
  try {
    parts = leaf.unbind(dim_);
  } catch (...) {
    return internal::CaughtAt(kOp, &key);
  }
  for (size_t i = 0; i < trees_.size(); ++i) {
    if (absl::Status s = CheckSet(trees_[i], key, parts[i]); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(kOp, ": tree ", i, ": ", s.message()));
    }
  }
  for (size_t i = 0; i < trees_.size(); ++i) {
    TensorDict tree = trees_[i];
    if (absl::Status s = tree.Set(key, parts[i]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<LazyStack> LazyStack::Part(const Slice& slice) const {
  const auto size = static_cast<int64_t>(trees_.size());
  const auto clamp = [size](int64_t end) {
    return std::clamp<int64_t>(end < 0 ? end + size : end, 0, size);
  };
  if (slice.step < 1) {
    return ErrorAt(kOp, NestedKey(), absl::StrCat("the step ", slice.step, " is not positive"));
  }
  std::vector<TensorDict> trees;
  const int64_t stop = clamp(slice.stop.value_or(size));
  for (int64_t i = clamp(slice.start.value_or(0)); i < stop;
       i += std::min(slice.step, size)) {
    trees.push_back(trees_[static_cast<size_t>(i)]);
  }
  return Make(std::move(trees), dim_);
}

absl::StatusOr<LazyStack> LazyStack::Map(
    absl::FunctionRef<absl::StatusOr<TensorDict>(const TensorDict& tree)> fn) const {
  std::vector<TensorDict> trees;
  trees.reserve(trees_.size());
  for (const TensorDict& tree : trees_) {
    absl::StatusOr<TensorDict> made = fn(tree);
    if (!made.ok()) return made.status();
    trees.push_back(*std::move(made));
  }
  return Make(std::move(trees), dim_);
}

absl::StatusOr<TensorDict> LazyStack::Dense() const { return Stack(trees_, dim_); }

TensorDict LazyStack::AsTree() const {
  auto root = std::make_shared<internal::Node>(
      trees_[0].batch_size().slice(0, static_cast<size_t>(dim_)));
  for (size_t i = 0; i < trees_.size(); ++i) {
    root->children.emplace_hint(root->children.end(), KeyComponent(static_cast<int64_t>(i)),
                                trees_[i]);
  }
  root->num_dicts = trees_.size();
  return internal::TreeAccess::Wrap(std::move(root));
}

absl::StatusOr<LazyStack> LazyStack::FromTree(const TensorDict& tree, int64_t dim) {
  std::vector<TensorDict> trees;
  for (const TensorDict::Child& child : tree.Children()) {
    if (child.key != KeyComponent(static_cast<int64_t>(trees.size())) || !child.is_dict()) {
      return ErrorAt(kOp, NestedKey(child.key),
                     absl::StrCat("the node at position ", trees.size(), " should stand here"));
    }
    trees.push_back(child.dict());
  }
  return Make(std::move(trees), dim);
}

}  // namespace leafpack
