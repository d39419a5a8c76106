#include "distributed/tree/joined_tree.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "distributed/core/error.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/tree_spec.h"
#include "tensordict/dtype.h"
#include "tensordict/layout.h"

namespace leafpack::internal {
namespace {

absl::Status Bad(const NestedKey& path, std::string_view text) {
  ErrorDetails details;
  details.path = path.ToString();
  return WithErrorDetails(
      absl::InvalidArgumentError(absl::StrCat("leaf ", details.path, ": ", text)), details);
}

std::vector<int64_t> JoinedSizes(absl::Span<const int64_t> sizes, Joining joining, int ranks) {
  std::vector<int64_t> joined(sizes.begin(), sizes.end());
  if (joining == Joining::kStack) {
    joined.insert(joined.begin(), ranks);
  } else if (!joined.empty()) {
    joined[0] *= ranks;
  }
  return joined;
}

std::string Describe(at::ScalarType dtype, absl::Span<const int64_t> sizes) {
  std::string text = absl::StrCat(std::string(DtypeName(dtype)), " [");
  for (size_t i = 0; i < sizes.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", sizes[i]);
  return absl::StrCat(text, "]");
}

// The description of the joined tree.
absl::StatusOr<TreeSpec> JoinSpec(TreeSpec spec, Joining joining, int ranks) {
  for (TreeSpec::Node& node : spec.nodes) {
    node.batch_size = JoinedSizes(node.batch_size, joining, ranks);
    // The new dimension has no name.
    if (joining == Joining::kStack && !node.names.empty()) node.names.insert(node.names.begin(), "");
  }
  for (size_t i = 0; i < spec.leaves.size(); ++i) {
    TreeSpec::Leaf& leaf = spec.leaves[i];
    if (leaf.kind != LeafKind::kDense) continue;
    if (joining == Joining::kConcat && leaf.sizes.empty()) {
      return Bad((*spec.paths)[i], "has no dimension to concatenate along; stack it");
    }
    if (!leaf.strides.empty()) {
      if (joining == Joining::kConcat) {
        return Bad((*spec.paths)[i],
                   "shares memory with another leaf in an order that cannot be concatenated");
      }
      int64_t numel = 1;
      for (const int64_t size : leaf.sizes) numel *= size;
      leaf.strides.insert(leaf.strides.begin(), numel);
    }
    leaf.sizes = JoinedSizes(leaf.sizes, joining, ranks);
  }
  return spec;
}

absl::Status CheckOut(const TreeSpec& joined, const FlatTree& tree, const FlatTree& out) {
  // Paths first: what is missing, or too much.
  const std::vector<NestedKey>& want = joined.paths->paths();
  const std::vector<NestedKey>& have = out.paths->paths();
  for (size_t i = 0; i < std::max(want.size(), have.size()); ++i) {
    if (i < want.size() && i < have.size() && want[i] == have[i]) continue;
    const bool missing = i < want.size() && (i >= have.size() || want[i] < have[i]);
    return Bad(missing ? want[i] : have[i], missing ? "is missing in the tree to be written"
                                                    : "is only in the tree to be written");
  }
  for (size_t i = 0; i < want.size(); ++i) {
    const TreeSpec::Leaf& leaf = joined.leaves[i];
    const at::Tensor& given = out.leaves[i];
    if (leaf.kind != LeafKind::kDense && !given.defined()) continue;
    if (leaf.kind != LeafKind::kDense || !given.defined()) {
      return Bad(want[i], "is undefined in one of the trees, but not in the other");
    }
    if (given.layout() != at::kStrided) {
      return Bad(want[i], "is sparse in the tree to be written; it must be dense");
    }
    if (given.device() != tree.leaves[i].device()) {
      return Bad(want[i], absl::StrCat("is on ", given.device().str(),
                                       " in the tree to be written; it must be on ",
                                       tree.leaves[i].device().str()));
    }
    if (given.scalar_type() == leaf.dtype && given.sizes() == at::IntArrayRef(leaf.sizes)) continue;
    return Bad(want[i], absl::StrCat("is ", Describe(given.scalar_type(), given.sizes()),
                                     " in the tree to be written; it must be ",
                                     Describe(leaf.dtype, leaf.sizes)));
  }
  return absl::OkStatus();
}

// That what comes from other ranks does not overwrite `tree` while it is sent. A leaf may lie in its own
// place of `out`, `place`.
absl::Status CheckApart(const FlatTree& tree, const FlatTree& place, const FlatTree& out) {
  std::vector<NestedKey> paths;
  FlatTree both;
  const auto add = [&](std::string_view side, size_t i, const at::Tensor& leaf) {
    paths.push_back(NestedKey{KeyComponent(side)}.Join((*tree.paths)[i]));
    both.leaves.push_back(leaf);
  };
  for (size_t i = 0; i < out.size(); ++i) add("out", i, out.leaves[i]);
  for (size_t i = 0; i < tree.size(); ++i) {
    const at::Tensor& leaf = tree.leaves[i];
    if (!leaf.defined() || leaf.numel() == 0) continue;
    const at::Tensor& own = place.leaves[i];
    if (leaf.const_data_ptr() == own.const_data_ptr() && leaf.strides() == own.strides()) continue;
    add("tree", i, leaf);
  }
  both.paths = std::make_shared<const PathList>(std::move(paths));
  const absl::StatusOr<Layout> layout = Layout::Of(both);
  if (!layout.ok()) return layout.status();
  for (size_t i = out.size(); i < both.size(); ++i) {
    const int64_t first = layout->leaf(i).alias_of;
    if (first < 0 || first >= static_cast<int64_t>(out.size())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("leaves ", (*both.paths)[static_cast<size_t>(first)].ToString(), " and ",
                     (*both.paths)[i].ToString(), " share their memory"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JoinedTree> MakeJoinedTree(const TreeArg& tree, Joining joining,
                                          const std::optional<TreeArg>& out, int rank, int ranks) {
  absl::StatusOr<Layout> layout = Layout::Of(tree.flat());
  if (!layout.ok()) return layout.status();
  if (absl::Status status = CheckJoinable(*layout); !status.ok()) return status;
  absl::StatusOr<TreeSpec> spec = tree.spec() != nullptr ? *tree.spec()
                                  : tree.dict().has_value()
                                      ? DescribeTree(*tree.dict())
                                      : DescribeTree(tree.flat(), *layout);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<TreeSpec> joined = JoinSpec(*std::move(spec), joining, ranks);
  if (!joined.ok()) return joined.status();
  JoinedTree result;
  if (out.has_value()) {
    if (absl::Status status = CheckOut(*joined, tree.flat(), out->flat()); !status.ok()) return status;
    absl::StatusOr<Layout> of_out = Layout::Of(out->flat());
    if (!of_out.ok()) return of_out.status();
    for (size_t i = 0; i < layout->size(); ++i) {
      if (layout->leaf(i).alias_of == of_out->leaf(i).alias_of) continue;
      return Bad(layout->path(i), "shares its memory with another leaf in one of the trees only");
    }
    result.tree.flat = out->flat();
    result.tree.dict = out->dict();
  } else {
    absl::StatusOr<FlatTree> fresh = AllocateLeaves(*joined);
    if (!fresh.ok()) return fresh.status();
    result.tree.flat = *std::move(fresh);
  }
  result.tree.spec = std::make_shared<const TreeSpec>(*std::move(joined));
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (int r = 0; r < ranks; ++r) {
      FlatTree part(tree.flat().paths, {});
      part.leaves.reserve(tree.flat().size());
      for (size_t i = 0; i < tree.flat().size(); ++i) {
        const at::Tensor& leaf = result.tree.flat.leaves[i];
        if (!leaf.defined()) {
          part.leaves.emplace_back();
        } else if (joining == Joining::kStack) {
          part.leaves.push_back(leaf.select(0, r));
        } else {
          const int64_t rows = tree.flat().leaves[i].size(0);
          part.leaves.push_back(leaf.narrow(0, r * rows, rows));
        }
      }
      result.parts.push_back(std::move(part));
    }
  } catch (const c10::Error& e) {
    return absl::InternalError(e.what_without_backtrace());
  }
  if (out.has_value()) {
    absl::Status status =
        CheckApart(tree.flat(), result.parts[static_cast<size_t>(rank)], out->flat());
    if (!status.ok()) return status;
  }
  return result;
}

}  // namespace leafpack::internal
