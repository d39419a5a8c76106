#include "distributed/tree/tree_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include <c10/core/GradMode.h>

#include "absl/strings/str_cat.h"
#include "xxhash.h"

#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/sparse_leaves.h"
#include "tensordict/bucket/packer.h"

namespace leafpack::internal {
namespace {

constexpr size_t kMaxEntries = 16;
// Bytes that one step moves to each peer, unless one leaf is larger: large enough that messages cost
// nothing beside their bytes, small enough that packing overlaps transfers.
constexpr int64_t kStepBytes = int64_t{4} << 20;

absl::uint128 DigestOf(absl::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::MakeUint128(hash.high64, hash.low64);
}

// How many elements sparse leaves have changes from call to call, and is told with them.
absl::StatusOr<std::string> Encode(const TreeSpec& spec) {
  const auto is_sparse = [](const TreeSpec::Leaf& leaf) { return leaf.kind == LeafKind::kSparse; };
  if (std::none_of(spec.leaves.begin(), spec.leaves.end(), is_sparse)) return EncodeTreeSpec(spec);
  TreeSpec bare = spec;
  for (TreeSpec::Leaf& leaf : bare.leaves) {
    leaf.nnz = 0;
    leaf.coalesced = false;
  }
  return EncodeTreeSpec(bare);
}

bool HasValues(const LeafInfo& leaf) {
  return leaf.kind == LeafKind::kDense && leaf.alias_of < 0 && leaf.numel > 0;
}

// The bytes between the first and the last element of a leaf.
struct Extent {
  size_t leaf = 0;
  const char* begin = nullptr;
  const char* end = nullptr;
};

std::vector<Extent> Extents(const Layout& layout, const FlatTree& tree) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (!HasValues(layout.leaf(i))) continue;
    const at::Tensor& leaf = tree.leaves[i];
    int64_t last = 0;
    for (int64_t d = 0; d < leaf.dim(); ++d) last += (leaf.size(d) - 1) * leaf.stride(d);
    const auto* begin = static_cast<const char*>(leaf.const_data_ptr());
    extents.push_back({i, begin, begin + (last + 1) * static_cast<int64_t>(leaf.itemsize())});
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  return extents;
}

// Whether a leaf of one tree may lie in the memory of one of the other, but for the very same leaf.
bool Overlap(const Layout& layout, const FlatTree& from, const FlatTree& to) {
  const std::vector<Extent> sources = Extents(layout, from);
  const std::vector<Extent> targets = Extents(layout, to);
  size_t first = 0;  // those before it end before any target that is left
  for (const Extent& target : targets) {
    while (first < sources.size() && sources[first].end <= target.begin) ++first;
    for (size_t k = first; k < sources.size() && sources[k].begin < target.end; ++k) {
      const Extent& source = sources[k];
      if (source.end <= target.begin) continue;
      const bool same = source.leaf == target.leaf && source.begin == target.begin &&
                        from.leaves[source.leaf].strides() == to.leaves[target.leaf].strides();
      if (!same) return true;
    }
  }
  return false;
}

absl::Status CopySparse(const Layout& layout, const FlatTree& from, const FlatTree& to) {
  const c10::AutoGradMode no_grad(false);
  struct Elements {
    size_t leaf;
    at::Tensor indices, values;
    bool coalesced;
  };
  std::vector<Elements> all;  // copied before any is written: a tensor may stand in both trees
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (leaf.kind != LeafKind::kSparse || leaf.alias_of >= 0) continue;
    const at::Tensor& source = from.leaves[i];
    if (source.is_same(to.leaves[i])) continue;
    try {
      all.push_back({i, source._indices().clone(),
                     source._values().resolve_conj().resolve_neg().clone(), source.is_coalesced()});
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("leaf ", layout.path(i).ToString(), ": ", e.what()));
    }
  }
  for (const Elements& each : all) {
    SetSparseElements(to.leaves[each.leaf], each.indices, each.values, each.coalesced);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LayoutPlan>> MakeLayoutPlan(Layout layout,
                                                                 const Engine& engine) {
  if (absl::Status status = CheckMovable(layout, engine.backend()); !status.ok()) return status;
  auto plan = std::make_shared<LayoutPlan>();
  plan->layout = std::move(layout);
  plan->digest = absl::MakeUint128(plan->layout.digest().hi, plan->layout.digest().lo);
  const BackendCost cost = engine.backend().Cost(engine.size());
  PlanParams params;
  params.max_packed_bucket_bytes = kStepBytes;
  // The messages of a step are under way together, so one more costs a part of a lone one.
  params.costs.message_ns = std::llround(cost.per_message * 1e9 / 4);
  params.costs.wire_ps_per_byte = std::llround(cost.per_byte * 1e12);
  params.costs.pack_ps_per_byte = std::llround(cost.pack_per_byte * 1e12);
  absl::StatusOr<BucketPlan> buckets = MakeBucketPlan(plan->layout, Bucketing::Auto(), params);
  if (!buckets.ok()) return buckets.status();
  plan->buckets = *std::move(buckets);
  size_t first = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < plan->buckets.buckets.size(); ++i) {
    const int64_t more = plan->buckets.buckets[i].bytes;
    if (i > first && bytes + more > kStepBytes) {
      plan->steps.emplace_back(first, i);
      first = i;
      bytes = 0;
    }
    bytes += more;
  }
  if (first < plan->buckets.buckets.size()) {
    plan->steps.emplace_back(first, plan->buckets.buckets.size());
  }
  return plan;
}

absl::StatusOr<std::shared_ptr<const TreePlan>> TreePlanCache::Get(const TreeArg& tree,
                                                                   const Engine& engine) {
  const bool from_dict = tree.dict().has_value();
  std::shared_ptr<const LayoutPlan> known;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->plan->layout().paths() != tree.flat().paths) continue;
      if (!it->plan->layout().Matches(tree.flat())) continue;
      if (tree.spec() == nullptr ? it->from_dict == from_dict && it->plan->spec != nullptr
                                 : it->plan->spec == tree.spec()) {
        std::rotate(entries_.begin(), it, it + 1);
        return entries_.front().plan;
      }
      known = it->plan->plan;
    }
  }
  if (known == nullptr) {
    absl::StatusOr<Layout> layout = Layout::Of(tree.flat());
    if (!layout.ok()) return layout.status();
    absl::StatusOr<std::shared_ptr<const LayoutPlan>> made =
        MakeLayoutPlan(*std::move(layout), engine);
    if (!made.ok()) return made.status();
    known = *std::move(made);
  }
  auto plan = std::make_shared<TreePlan>();
  plan->plan = std::move(known);
  plan->spec = tree.spec();
  if (plan->spec == nullptr) {
    absl::StatusOr<TreeSpec> spec =
        from_dict ? DescribeTree(*tree.dict()) : DescribeTree(tree.flat(), plan->layout());
    if (!spec.ok()) return spec.status();
    plan->spec = std::make_shared<const TreeSpec>(*std::move(spec));
  }
  absl::StatusOr<std::string> encoded = Encode(*plan->spec);
  if (!encoded.ok()) return encoded.status();
  plan->encoded = *std::move(encoded);
  plan->spec_digest = DigestOf(plan->encoded);
  absl::MutexLock lock(&mutex_);
  // A plan of leaves that have moved will not be asked for again; neither will a binding's description.
  std::erase_if(entries_, [&](const Entry& old) {
    return old.plan->layout().paths() == tree.flat().paths && old.from_dict == from_dict &&
           old.plan->spec_digest == plan->spec_digest;
  });
  entries_.insert(entries_.begin(), {from_dict, plan});
  if (entries_.size() > kMaxEntries) entries_.pop_back();
  return plan;
}

absl::Status AppendValues(const Layout& layout, const FlatTree& tree, std::string& out) {
  size_t at = out.size();
  out.resize(at + static_cast<size_t>(layout.total_bytes()));
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (!HasValues(leaf)) continue;
    absl::Status status = PackLeaf(tree.leaves[i], PackOrder::kLogical, out.data() + at);
    if (!status.ok()) return status;
    at += static_cast<size_t>(leaf.bytes);
  }
  return absl::OkStatus();
}

absl::Status WriteValues(const Layout& layout, absl::string_view bytes, const FlatTree& tree) {
  if (static_cast<int64_t>(bytes.size()) != layout.total_bytes()) {
    return absl::InternalError(absl::StrCat("there are ", bytes.size(), " bytes for a tree of ",
                                            layout.total_bytes()));
  }
  const char* at = bytes.data();
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (!HasValues(leaf)) continue;
    absl::Status status = UnpackLeaf(at, PackOrder::kLogical, tree.leaves[i]);
    if (!status.ok()) return status;
    at += leaf.bytes;
  }
  return absl::OkStatus();
}

absl::Status CopyValues(const Layout& layout, const FlatTree& from, const FlatTree& to) {
  if (absl::Status status = CopySparse(layout, from, to); !status.ok()) return status;
  if (Overlap(layout, from, to)) {
    // Leaf by leaf, one that is written could be one that is yet to be read.
    std::string values;
    if (absl::Status status = AppendValues(layout, from, values); !status.ok()) return status;
    return WriteValues(layout, values, to);
  }
  std::vector<char> packed;
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (!HasValues(leaf)) continue;
    const at::Tensor& source = from.leaves[i];
    const void* run = nullptr;
    if (source.device().is_cpu() && source.is_contiguous() && !source.is_conj() &&
        !source.is_neg()) {
      run = source.const_data_ptr();
      if (run == to.leaves[i].const_data_ptr() && to.leaves[i].is_contiguous()) continue;
    } else {
      packed.resize(static_cast<size_t>(leaf.bytes));
      absl::Status status = PackLeaf(source, PackOrder::kLogical, packed.data());
      if (!status.ok()) return status;
      run = packed.data();
    }
    if (absl::Status status = UnpackLeaf(run, PackOrder::kLogical, to.leaves[i]); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace leafpack::internal
