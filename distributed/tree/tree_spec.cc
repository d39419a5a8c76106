#include "distributed/tree/tree_spec.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

using Dims = std::vector<int64_t>;

int64_t Numel(absl::Span<const int64_t> sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return numel;
}

Dims ContiguousStrides(absl::Span<const int64_t> sizes) {
  Dims strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

// Takes the gaps out of the memory of a leaf, and tells where each of its elements comes to lie.
class GaplessMemory {
 public:
  GaplessMemory(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] > 1) digits_.push_back({strides[d], sizes[d], 0});
    }
    std::sort(digits_.begin(), digits_.end(),
              [](const Digit& a, const Digit& b) { return a.stride < b.stride; });
    int64_t place = 1;
    for (Digit& digit : digits_) {
      digit.place = place;
      place *= digit.size;
    }
  }

  // Where the element lies that had this offset (elements) from the first one, or -1.
  int64_t Place(int64_t offset) const {
    int64_t place = 0;
    for (auto digit = digits_.rbegin(); digit != digits_.rend(); ++digit) {
      const int64_t count = std::min(offset / digit->stride, digit->size - 1);
      place += count * digit->place;
      offset -= count * digit->stride;
    }
    return offset == 0 ? place : -1;
  }

  // The strides of a leaf over the same elements; nullopt if strides cannot say it.
  std::optional<Dims> StridesOf(absl::Span<const int64_t> sizes,
                                absl::Span<const int64_t> strides) const {
    Dims result(sizes.size(), 1);
    int64_t last = 0;
    int64_t last_place = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 1) continue;
      const int64_t step = Place(strides[d]);
      if (step < 0 || Place((sizes[d] - 1) * strides[d]) != (sizes[d] - 1) * step) {
        return std::nullopt;
      }
      result[d] = step;
      last += (sizes[d] - 1) * strides[d];
      last_place += (sizes[d] - 1) * step;
    }
    if (Place(last) != last_place || last_place != Numel(sizes) - 1) return std::nullopt;
    return result;
  }

 private:
  struct Digit {
    int64_t stride;
    int64_t size;
    int64_t place;
  };
  std::vector<Digit> digits_;
};

absl::Span<const int64_t> Span(const LeafInfo::Dims& dims) { return {dims.data(), dims.size()}; }

absl::Status DescribeLeaves(const FlatTree& tree, const Layout& layout, TreeSpec& spec) {
  spec.paths = tree.paths;
  spec.leaves.resize(layout.size());
  std::vector<bool> shared(layout.size(), false);
  for (const LeafInfo& info : layout.leaves()) {
    if (info.alias_of >= 0) shared[static_cast<size_t>(info.alias_of)] = true;
  }
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& info = layout.leaf(i);
    TreeSpec::Leaf& leaf = spec.leaves[i];
    leaf.kind = info.kind;
    if (info.kind == LeafKind::kUndefined) continue;
    if (info.kind == LeafKind::kNonTensor) {
      leaf.value = info.value;
      continue;
    }
    leaf.dtype = info.dtype;
    leaf.sizes.assign(info.sizes.begin(), info.sizes.end());
    leaf.alias_of = info.alias_of;
    if (leaf.sizes.size() > kMaxSpecDims) {
      return absl::InvalidArgumentError(
          absl::StrCat("leaf ", layout.path(i).ToString(), " has ", leaf.sizes.size(),
                       " dimensions, more than the limit of ", kMaxSpecDims));
    }
    if (DtypeOfCode(DtypeCode(info.dtype)) != info.dtype) {
      return absl::UnimplementedError(absl::StrCat("leaf ", layout.path(i).ToString(), " is ",
                                                   DtypeName(info.dtype),
                                                   ", a dtype that cannot be sent"));
    }
    if (info.kind == LeafKind::kSparse) {
      leaf.sparse_dim = info.sparse_dim;
      leaf.nnz = tree.leaves[i]._nnz();
      leaf.coalesced = tree.leaves[i].is_coalesced();
    }
    if (info.kind != LeafKind::kDense || (info.alias_of < 0 && !shared[i])) continue;
    const LeafInfo& first =
        info.alias_of < 0 ? info : layout.leaf(static_cast<size_t>(info.alias_of));
    const GaplessMemory memory(Span(first.sizes), Span(first.strides));
    std::optional<Dims> strides = memory.StridesOf(Span(info.sizes), Span(info.strides));
    if (!strides.has_value()) {
      return absl::UnimplementedError(absl::StrCat(
          "leaf ", layout.path(i).ToString(), " lies in the memory of ",
          layout.path(static_cast<size_t>(std::max<int64_t>(info.alias_of, 0))).ToString(),
          " in a way that cannot be described"));
    }
    if (*strides != ContiguousStrides(leaf.sizes)) leaf.strides = *std::move(strides);
  }
  return absl::OkStatus();
}

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

// Fresh memory of many megabytes costs its page faults more than its bytes; huge pages have 512 times fewer. Only
// whole ones, which what is received fills.
at::Tensor WithHugePages(at::Tensor leaf) {
  const auto begin = reinterpret_cast<uintptr_t>(leaf.data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + leaf.storage().nbytes()) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  return leaf;
}

absl::StatusOr<at::Tensor> AllocateLeaf(const TreeSpec::Leaf& leaf, const TreeSpec& spec,
                                        const std::vector<at::Tensor>& before) {
  const auto options = at::TensorOptions().dtype(leaf.dtype).device(at::kCPU);
  const auto alias = static_cast<size_t>(leaf.alias_of);
  switch (leaf.kind) {
    case LeafKind::kUndefined:
    case LeafKind::kNonTensor:
      return at::Tensor();
    case LeafKind::kDense:
      if (leaf.alias_of >= 0) {
        return before[alias].as_strided(
            leaf.sizes, leaf.strides.empty() ? ContiguousStrides(leaf.sizes) : leaf.strides);
      }
      return WithHugePages(leaf.strides.empty()
                               ? at::empty(leaf.sizes, options)
                               : at::empty_strided(leaf.sizes, leaf.strides, options));
    case LeafKind::kSparse: {
      if (leaf.alias_of >= 0) return before[alias];
      Dims values = {leaf.nnz};
      values.insert(values.end(), leaf.sizes.begin() + leaf.sparse_dim, leaf.sizes.end());
      return at::_sparse_coo_tensor_unsafe(
          at::empty({leaf.sparse_dim, leaf.nnz}, options.dtype(at::kLong)),
          at::empty(values, options), leaf.sizes, options.layout(at::kSparse), leaf.coalesced);
    }
  }
  return absl::UnimplementedError(absl::StrCat("leaf ", (*spec.paths)[before.size()].ToString(),
                                               " is ", LeafKindName(leaf.kind),
                                               ", which cannot be made"));
}

}  // namespace

std::string_view NodeKindName(NodeKind kind) {
  switch (kind) {
    case NodeKind::kTree:
      return "tree";
    case NodeKind::kTensorDict:
      return "tensordict";
    case NodeKind::kDict:
      return "dict";
    case NodeKind::kList:
      return "list";
    case NodeKind::kTuple:
      return "tuple";
  }
  return "of no known kind";
}

int64_t TreeSpec::total_bytes() const {
  int64_t total = 0;
  for (const Leaf& leaf : leaves) {
    if (leaf.alias_of >= 0) continue;
    const auto element = [&] { return static_cast<int64_t>(c10::elementSize(leaf.dtype)); };
    if (leaf.kind == LeafKind::kDense) {
      total += Numel(leaf.sizes) * element();
    } else if (leaf.kind == LeafKind::kSparse) {
      const auto dense = absl::MakeConstSpan(leaf.sizes).subspan(
          static_cast<size_t>(leaf.sparse_dim));
      total += leaf.nnz * (leaf.sparse_dim * int64_t{8} + Numel(dense) * element());
    }
  }
  return total;
}

absl::StatusOr<TreeSpec> DescribeTree(const TensorDict& tree) {
  const FlatTree flat = Flatten(tree);
  absl::StatusOr<Layout> layout = Layout::Of(flat);
  if (!layout.ok()) return layout.status();
  TreeSpec spec;
  if (absl::Status s = DescribeLeaves(flat, *layout, spec); !s.ok()) return s;
  struct Pending {
    NestedKey path;
    TensorDict node;
  };
  std::vector<Pending> stack = {{NestedKey(), tree}};
  while (!stack.empty()) {
    const Pending now = std::move(stack.back());
    stack.pop_back();
    const at::IntArrayRef batch = now.node.batch_size();
    if (batch.size() > kMaxSpecDims) {
      return absl::InvalidArgumentError(
          absl::StrCat("the batch size of ", now.path.ToString(), " has ", batch.size(),
                       " dimensions, more than the limit of ", kMaxSpecDims));
    }
    spec.nodes.push_back({now.path, batch.vec(), NodeKind::kTree, now.node.names()});
    std::vector<TensorDict::Child> children = now.node.Children();
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      if (!std::holds_alternative<TensorDict>(child->value)) continue;
      stack.push_back({now.path.Child(child->key), std::get<TensorDict>(child->value)});
    }
  }
  return spec;
}

absl::StatusOr<TreeSpec> DescribeTree(const FlatTree& tree, const Layout& layout) {
  if (tree.size() != layout.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a tree of ", tree.size(),
                                                   " leaves with a layout of ", layout.size()));
  }
  TreeSpec spec;
  if (absl::Status s = DescribeLeaves(tree, layout, spec); !s.ok()) return s;
  if (tree.size() == 1 && (*tree.paths)[0].empty()) return spec;
  spec.nodes.push_back({NestedKey(), {}, NodeKind::kDict});
  std::vector<size_t> above = {0};  // nodes from the root to the last leaf
  for (size_t i = 0; i < tree.size(); ++i) {
    const NestedKey& path = (*tree.paths)[i];
    while (!spec.nodes[above.back()].path.IsPrefixOf(path)) above.pop_back();
    while (true) {
      TreeSpec::Node& parent = spec.nodes[above.back()];
      const size_t depth = parent.path.size();
      if (path[depth].is_position()) parent.kind = NodeKind::kList;
      if (depth + 1 == path.size()) break;
      NestedKey child = parent.path.Child(path[depth]);
      above.push_back(spec.nodes.size());
      spec.nodes.push_back({std::move(child), {}, NodeKind::kDict});
    }
  }
  return spec;
}

absl::StatusOr<FlatTree> AllocateLeaves(const TreeSpec& spec) {
  FlatTree tree;
  tree.paths = spec.paths;
  tree.leaves.reserve(spec.leaves.size());
  for (const TreeSpec::Leaf& leaf : spec.leaves) {
    const auto failed = [&](std::string_view why) {
      return absl::ResourceExhaustedError(
          absl::StrCat("leaf ", (*spec.paths)[tree.leaves.size()].ToString(),
                       " cannot be allocated: ", why));
    };
    try {
      absl::StatusOr<at::Tensor> made = AllocateLeaf(leaf, spec, tree.leaves);
      if (!made.ok()) return made.status();
      if (leaf.kind == LeafKind::kNonTensor) {
        tree.non_tensors.push_back({tree.leaves.size(), leaf.value});
      }
      tree.leaves.push_back(*std::move(made));
    } catch (const c10::Error& e) {
      return failed(e.what_without_backtrace());
    } catch (const std::exception& e) {
      return failed(e.what());
    }
  }
  return tree;
}

absl::StatusOr<TensorDict> BuildTensorDict(const TreeSpec& spec,
                                           absl::Span<const at::Tensor> leaves) {
  if (spec.nodes.empty()) {
    return absl::InvalidArgumentError("the tree is one leaf, which no TensorDict can hold");
  }
  if (leaves.size() != spec.leaves.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a tree of ", spec.leaves.size(),
                                                   " leaves was given ", leaves.size()));
  }
  // Children are set at their parent, so that deep trees take time in proportion to their nodes.
  const auto make = [](const TreeSpec::Node& node) -> absl::StatusOr<TensorDict> {
    TensorDict made(at::IntArrayRef(node.batch_size));
    if (!node.names.empty()) {
      if (absl::Status s = made.SetNames(node.names); !s.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("at ", node.path.ToString(), ": ", s.message()));
      }
    }
    return made;
  };
  absl::StatusOr<TensorDict> root = make(spec.nodes[0]);
  if (!root.ok()) return root;
  std::vector<std::pair<const NestedKey*, TensorDict>> above;
  size_t node = 1;
  size_t leaf = 0;
  above.emplace_back(&spec.nodes[0].path, *root);
  const auto at_parent_of = [&](const NestedKey& path) -> absl::StatusOr<TensorDict*> {
    while (!above.empty() && !above.back().first->IsPrefixOf(path)) above.pop_back();
    if (above.empty() || above.back().first->size() + 1 != path.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no node for ", path.ToString(), " to stand in"));
    }
    return &above.back().second;
  };
  while (node < spec.nodes.size() || leaf < leaves.size()) {
    const bool next_is_node = leaf == leaves.size() || (node < spec.nodes.size() &&
                                                        spec.nodes[node].path < (*spec.paths)[leaf]);
    const NestedKey& path = next_is_node ? spec.nodes[node].path : (*spec.paths)[leaf];
    absl::StatusOr<TensorDict*> parent = at_parent_of(path);
    if (!parent.ok()) return parent.status();
    absl::Status set;
    if (next_is_node) {
      absl::StatusOr<TensorDict> made = make(spec.nodes[node++]);
      if (!made.ok()) return made;
      set = (*parent)->Set(path.back(), *made);
      above.emplace_back(&path, *std::move(made));
    } else if (spec.leaves[leaf].kind == LeafKind::kNonTensor) {
      set = (*parent)->Set(path.back(), spec.leaves[leaf++].value);
    } else {
      set = (*parent)->Set(path.back(), leaves[leaf++]);
    }
    if (!set.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("at ", path.ToString(), ": ", set.message()));
    }
  }
  return root;
}

}  // namespace leafpack
