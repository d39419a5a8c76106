#include "tensordict/ops/compare.h"

#include <ATen/core/Tensor.h>

#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/non_tensor.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::Node;
using internal::TreeAccess;

// Whether structures and batch sizes are equal, and `same` holds for each pair of tensors.
absl::StatusOr<bool> AllPairs(
    std::string_view op, const TensorDict& a, const TensorDict& b,
    absl::FunctionRef<bool(const at::Tensor& a, const at::Tensor& b)> same) {
  std::vector<std::pair<const Node*, const Node*>> pending = {
      {&TreeAccess::node(a), &TreeAccess::node(b)}};
  while (!pending.empty()) {
    const auto [x, y] = pending.back();
    pending.pop_back();
    if (x->batch_size != y->batch_size || x->children.size() != y->children.size()) return false;
    auto other = y->children.begin();
    for (const auto& [key, value] : x->children) {
      if (key != other->first || value.index() != other->second.index()) return false;
      if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
        const at::Tensor& second = std::get<at::Tensor>(other->second);
        if (leaf->defined() != second.defined()) return false;
        if (leaf->defined()) {
          if (leaf->scalar_type() != second.scalar_type() || leaf->sizes() != second.sizes()) {
            return false;
          }
          try {
            if (!same(*leaf, second)) return false;
          } catch (...) {
            const NestedKey path(key);
            return internal::CaughtAt(op, &path);
          }
        }
      } else if (const auto* dict = std::get_if<TensorDict>(&value)) {
        pending.emplace_back(&TreeAccess::node(*dict),
                             &TreeAccess::node(std::get<TensorDict>(other->second)));
      } else if (std::get<NonTensor>(value) != std::get<NonTensor>(other->second)) {
        return false;
      }
      ++other;
    }
  }
  return true;
}

template <typename Visit>
void ForEachTensor(const TensorDict& tree, const Visit& visit) {
  tree.Visit([&](const NestedKey&, const at::Tensor& leaf) {
    if (leaf.defined()) visit(leaf);
  });
}

}  // namespace

absl::StatusOr<bool> Equal(const TensorDict& a, const TensorDict& b) {
  return AllPairs("equal", a, b,
                  [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

absl::StatusOr<bool> AllClose(const TensorDict& a, const TensorDict& b,
                              const Tolerance& tolerance) {
  return AllPairs("allclose", a, b, [&](const at::Tensor& x, const at::Tensor& y) {
    if (!x.is_floating_point() && !x.is_complex()) return x.equal(y);
    return x.allclose(y, tolerance.relative, tolerance.absolute, tolerance.equal_nan);
  });
}

absl::StatusOr<TensorDict> ElementsEqual(const TensorDict& a, const TensorDict& b) {
  const TensorDict both[] = {a, b};
  return internal::ZipTrees(
      "elements equal", both,
      [](absl::Span<const at::Tensor> leaves) { return leaves[0].eq(leaves[1]); },
      [](absl::Span<const Node* const> from, Node& to) {
        internal::CopyRules(*from[0], to);
        return absl::OkStatus();
      });
}

int64_t BatchNumel(const TensorDict& tree) {
  int64_t numel = 1;
  for (const int64_t size : tree.batch_size()) numel *= size;
  return numel;
}

int64_t Numel(const TensorDict& tree) {
  int64_t numel = 0;
  ForEachTensor(tree, [&](const at::Tensor& leaf) { numel += leaf.numel(); });
  return numel;
}

int64_t Bytes(const TensorDict& tree, bool duplicates) {
  using Place = std::tuple<const void*, int64_t, at::ScalarType, std::vector<int64_t>,
                           std::vector<int64_t>>;
  absl::flat_hash_set<Place> met;
  int64_t bytes = 0;
  ForEachTensor(tree, [&](const at::Tensor& leaf) {
    if (!duplicates && leaf.has_storage()) {
      const void* storage = leaf.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      if (!met.emplace(storage, leaf.storage_offset(), leaf.scalar_type(), leaf.sizes().vec(),
                       leaf.strides().vec())
               .second) {
        return;
      }
    }
    bytes += leaf.numel() * static_cast<int64_t>(leaf.element_size());
  });
  return bytes;
}

bool IsEmpty(const TensorDict& tree) { return tree.num_leaves() == 0; }

absl::StatusOr<Digest128> LayoutDigest(const TensorDict& tree) {
  const absl::StatusOr<Layout> layout = Layout::Of(Flatten(tree));
  if (!layout.ok()) return layout.status();
  return layout->digest();
}

}  // namespace leafpack
