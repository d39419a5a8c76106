#include "tensordict/layout.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "tensordict/digest_builder.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/overlap.h"
#include "tensordict/path_payload.h"

namespace leafpack {
namespace {

// ---- What Matches compares: per leaf a word with all that is small, an address, sizes, strides.

constexpr int64_t kUndefinedWord = -1;

int64_t GeometryWord(const c10::TensorImpl& impl, bool sparse) {
  const c10::Device device = impl.device();
  const c10::DispatchKeySet keys = impl.key_set();
  const bool lazy = keys.has(c10::DispatchKey::Conjugate) || keys.has(c10::DispatchKey::Negative);
  const auto dtype = static_cast<uint64_t>(c10::typeMetaToScalarType(impl.dtype()));
  return static_cast<int64_t>(dtype | static_cast<uint64_t>(impl.dim()) << 8 |
                              static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 24 |
                              static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 32 |
                              static_cast<uint64_t>(lazy) << 40 |
                              static_cast<uint64_t>(sparse) << 41);
}

bool IsStrided(const c10::TensorImpl& impl) { return impl.layout() == c10::kStrided; }

int64_t AddressOf(const c10::TensorImpl& impl) {
  const auto storage = reinterpret_cast<intptr_t>(impl.unsafe_storage().data());
  return storage + impl.storage_offset() * static_cast<int64_t>(impl.itemsize());
}

int64_t IdentityOf(const c10::TensorImpl& impl) { return reinterpret_cast<intptr_t>(&impl); }

// ---- Reading leaves.

std::string SizesToString(absl::Span<const int64_t> sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

absl::Span<const int64_t> Span(const LeafInfo::Dims& dims) { return {dims.data(), dims.size()}; }

absl::Status Unsupported(const NestedKey& path, std::string_view what) {
  return internal::AtPath(
      absl::UnimplementedError(absl::StrCat("leaf ", path.ToString(), " is ", what,
                                            "; only strided and sparse COO tensors can be used")),
      path);
}

// Fills all but aliases. May throw what torch throws.
absl::Status ReadLeaf(const at::Tensor& tensor, const NestedKey& path, LeafInfo& info,
                      std::vector<int64_t>& seen) {
  if (!tensor.defined()) {
    info.kind = LeafKind::kUndefined;
    seen.push_back(kUndefinedWord);
    return absl::OkStatus();
  }
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (tensor.is_nested()) return Unsupported(path, "a nested tensor");
  const bool sparse = impl.layout() == c10::kSparse;
  if (!sparse && !IsStrided(impl)) {
    return Unsupported(path,
                       absl::StrCat("a tensor of another layout (", c10::str(impl.layout()), ")"));
  }
  if (!sparse && !impl.has_storage()) {
    return Unsupported(path, "a tensor without memory of its own (wrapped by a transform)");
  }
  info.dtype = tensor.scalar_type();
  info.device = tensor.device();
  info.numel = tensor.numel();
  const at::IntArrayRef sizes = tensor.sizes();
  info.sizes.assign(sizes.begin(), sizes.end());
  seen.push_back(GeometryWord(impl, sparse));
  if (sparse) {
    info.kind = LeafKind::kSparse;
    info.sparse_dim = static_cast<int32_t>(tensor.sparse_dim());
    seen.push_back(IdentityOf(impl));
    seen.insert(seen.end(), sizes.begin(), sizes.end());
    return absl::OkStatus();
  }
  // A copy-on-write tensor gets memory of its own here, before addresses are compared.
  if (info.numel > 0) (void)tensor.mutable_data_ptr();
  if (info.numel > 0 && impl.unsafe_storage().data() == nullptr && !tensor.is_meta()) {
    return Unsupported(path, "a tensor whose memory is not allocated");
  }
  const at::IntArrayRef strides = tensor.strides();
  info.strides.assign(strides.begin(), strides.end());
  info.storage_offset = tensor.storage_offset();
  info.bytes = info.numel * static_cast<int64_t>(tensor.itemsize());
  info.lazy_conj_or_neg = tensor.is_conj() || tensor.is_neg();
  info.dense_in_memory = tensor.is_non_overlapping_and_dense();
  info.contiguous = tensor.is_contiguous();
  const int64_t address = AddressOf(impl);
  // Meta tensors have elements but no memory.
  const bool in_memory = info.numel > 0 && impl.unsafe_storage().data() != nullptr;
  info.address = in_memory ? static_cast<uintptr_t>(address) : 0;
  seen.push_back(address);
  seen.insert(seen.end(), sizes.begin(), sizes.end());
  seen.insert(seen.end(), strides.begin(), strides.end());
  return absl::OkStatus();
}

// Sets alias_of, or says which leaves overlap.
absl::Status FindAliases(const FlatTree& tree, std::vector<LeafInfo>& leaves) {
  std::vector<RegionClaim> claims;
  std::vector<size_t> claimants;
  claims.reserve(leaves.size());
  claimants.reserve(leaves.size());
  std::unordered_map<int64_t, size_t> sparse;
  for (size_t i = 0; i < leaves.size(); ++i) {
    LeafInfo& info = leaves[i];
    if (info.kind == LeafKind::kSparse) {
      const auto [it, inserted] =
          sparse.try_emplace(IdentityOf(*tree.leaves[i].unsafeGetTensorImpl()), i);
      if (!inserted) info.alias_of = static_cast<int64_t>(it->second);
    }
    if (info.address == 0) continue;
    RegionClaim claim;
    claim.type = static_cast<int32_t>(info.dtype);
    claim.space = static_cast<int32_t>(info.device.type()) * 256 + info.device.index();
    const int64_t element = info.bytes / info.numel;
    if (info.dense_in_memory) {
      claim.region.begin = info.address;
      claim.region.end = info.address + static_cast<uintptr_t>(info.bytes);
      claim.region.bytes = info.bytes;
      if (info.bytes > 1) claim.region.dims.push_back({1, info.bytes});
    } else {
      claim.region = Region::Of(info.address, element, Span(info.sizes), Span(info.strides));
      if (OverlapsItself(claim.region)) {
        const NestedKey& path = (*tree.paths)[i];
        return internal::AtPath(
            absl::InvalidArgumentError(absl::StrCat(
                "leaf ", path.ToString(),
                " overlaps itself: several indices lead to one element (sizes ",
                SizesToString(Span(info.sizes)), ", strides ", SizesToString(Span(info.strides)),
                "); expanded tensors must be cloned")),
            path);
      }
    }
    claims.push_back(std::move(claim));
    claimants.push_back(i);
  }
  std::vector<size_t> owners;
  if (const std::optional<Clash> clash = FindMeetings(claims, owners)) {
    const size_t a = claimants[clash->a];
    const size_t b = claimants[clash->b];
    const std::string pair =
        absl::StrCat("leaves ", (*tree.paths)[a].ToString(), " and ", (*tree.paths)[b].ToString());
    return internal::AtPath(
        absl::InvalidArgumentError(
            clash->types_differ
                ? absl::StrCat(pair, " share their memory, but as ", DtypeName(leaves[a].dtype),
                               " and ", DtypeName(leaves[b].dtype))
                : absl::StrCat(pair, " overlap in memory, but are not the same elements")),
        (*tree.paths)[std::min(a, b)]);
  }
  for (size_t c = 0; c < claimants.size(); ++c) {
    if (owners[c] != c) {
      leaves[claimants[c]].alias_of = static_cast<int64_t>(claimants[owners[c]]);
    }
  }
  return absl::OkStatus();
}

// Sets `follows`.
void FindNeighbours(const FlatTree& tree, std::vector<LeafInfo>& leaves) {
  struct Last {
    c10::ScalarType dtype;
    c10::DeviceType device;
    size_t leaf;
  };
  std::vector<Last> lasts;
  for (size_t i = 0; i < leaves.size(); ++i) {
    LeafInfo& info = leaves[i];
    if (info.kind != LeafKind::kDense || info.numel == 0 || info.alias_of >= 0) continue;
    auto last = std::find_if(lasts.begin(), lasts.end(), [&](const Last& l) {
      return l.dtype == info.dtype && l.device == info.device.type();
    });
    if (last == lasts.end()) {
      lasts.push_back({info.dtype, info.device.type(), i});
      continue;
    }
    const LeafInfo& before = leaves[last->leaf];
    const auto storage = [&](size_t leaf) {
      return tree.leaves[leaf].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    };
    if (info.address != 0 &&
        before.address + static_cast<uintptr_t>(before.bytes) == info.address &&
        info.dense_in_memory && before.dense_in_memory && !info.lazy_conj_or_neg &&
        !before.lazy_conj_or_neg && before.device == info.device &&
        storage(i) == storage(last->leaf)) {
      info.follows = static_cast<int64_t>(last->leaf);
    }
    last->leaf = i;
  }
}

Digest128 DigestOf(const PathList& paths, const std::vector<LeafInfo>& leaves) {
  DigestBuilder builder("leafpack layout 1");
  builder.Reserve(64 + leaves.size() * 48);
  builder.Digest(paths.digest());
  builder.U64(leaves.size());
  for (const LeafInfo& info : leaves) {
    builder.U8(static_cast<uint8_t>(info.kind));
    builder.U8(DtypeCode(info.dtype));
    builder.U8(static_cast<uint8_t>(info.device.type()));
    builder.U32(static_cast<uint32_t>(info.sparse_dim));
    builder.I64(info.alias_of);
    builder.U32(static_cast<uint32_t>(info.sizes.size()));
    for (const int64_t size : info.sizes) builder.I64(size);
    if (info.kind == LeafKind::kNonTensor) info.value.AppendTo(builder);
  }
  return builder.Finish();
}

Digest128 StrideDigestOf(const std::vector<LeafInfo>& leaves) {
  DigestBuilder builder("leafpack strides 1");
  builder.Reserve(64 + leaves.size() * 40);
  for (const LeafInfo& info : leaves) {
    // Aliases too: one may stand for its group in a plan that leaves the first out.
    if (info.kind != LeafKind::kDense) continue;
    builder.U8(info.lazy_conj_or_neg ? 1 : 0);
    builder.U8(info.follows >= 0 ? 1 : 0);
    // A stride says something only if there is a second index.
    for (size_t k = 0; k < info.sizes.size(); ++k) {
      if (info.sizes[k] > 1 && info.numel > 0) builder.I64(info.strides[k]);
    }
  }
  return builder.Finish();
}

std::string Describe(const LeafInfo& info, const PathList& paths) {
  if (info.kind == LeafKind::kUndefined) return "undefined (no tensor)";
  if (info.kind == LeafKind::kNonTensor) {
    return absl::StrCat("the value ", info.value.ToString());
  }
  std::string text = absl::StrCat(DtypeName(info.dtype), " ", SizesToString(Span(info.sizes)), " ",
                                  c10::DeviceTypeName(info.device.type(), /*lower_case=*/true));
  if (info.kind == LeafKind::kSparse) {
    absl::StrAppend(&text, ", sparse in ", info.sparse_dim, " dimensions");
  }
  if (info.alias_of >= 0) {
    absl::StrAppend(&text, ", the memory of ",
                    paths[static_cast<size_t>(info.alias_of)].ToString());
  }
  return text;
}

}  // namespace

std::string_view LeafKindName(LeafKind kind) {
  switch (kind) {
    case LeafKind::kDense:
      return "dense";
    case LeafKind::kSparse:
      return "sparse";
    case LeafKind::kUndefined:
      return "undefined";
    case LeafKind::kNonTensor:
      return "non-tensor";
  }
  return "of no known kind";
}

Layout::Layout() {
  static const auto* const none = new std::shared_ptr<const Rep>([] {
    auto rep = std::make_shared<Rep>();
    rep->paths = FlatTree().paths;
    rep->digest = DigestOf(*rep->paths, {});
    rep->stride_digest = StrideDigestOf({});
    return rep;
  }());
  rep_ = *none;
}

absl::StatusOr<Layout> Layout::Of(const FlatTree& tree) {
  if (tree.paths == nullptr || tree.paths->size() != tree.leaves.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a flat tree of ",
                                                   tree.paths == nullptr ? 0 : tree.paths->size(),
                                                   " paths has ", tree.leaves.size(), " leaves"));
  }
  size_t first_free = 0;
  for (const NonTensorLeaf& n : tree.non_tensors) {
    if (n.leaf < first_free || n.leaf >= tree.leaves.size() || tree.leaves[n.leaf].defined()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a flat tree names leaf ", n.leaf, " of ", tree.leaves.size(),
                       " as no tensor, but it does not exist, is one, or was named before"));
    }
    first_free = n.leaf + 1;
  }
  auto rep = std::make_shared<Rep>();
  rep->paths = tree.paths;
  rep->non_tensors = tree.non_tensors;
  rep->leaves.resize(tree.leaves.size());
  rep->seen.reserve(tree.leaves.size() * 6);
  for (size_t i = 0; i < tree.leaves.size(); ++i) {
    const NestedKey& path = (*tree.paths)[i];
    if (path.size() > static_cast<size_t>(kMaxTreeDepth)) {
      const std::vector<KeyComponent> begin(path.begin(), path.begin() + 4);
      return absl::InvalidArgumentError(
          absl::StrCat("the path ", NestedKey(begin).ToString(), "... has ", path.size(),
                       " components, more than the limit of ", kMaxTreeDepth));
    }
    try {
      if (absl::Status s = ReadLeaf(tree.leaves[i], path, rep->leaves[i], rep->seen); !s.ok()) {
        return s;
      }
    } catch (const c10::Error& e) {
      return Unsupported(
          path, absl::StrCat("a tensor that cannot be read (", e.what_without_backtrace(), ")"));
    } catch (const std::exception& e) {
      return Unsupported(path, absl::StrCat("a tensor that cannot be read (", e.what(), ")"));
    }
  }
  for (const NonTensorLeaf& n : tree.non_tensors) {
    rep->leaves[n.leaf].kind = LeafKind::kNonTensor;
    rep->leaves[n.leaf].value = n.value;
  }
  if (absl::Status s = FindAliases(tree, rep->leaves); !s.ok()) return s;
  FindNeighbours(tree, rep->leaves);
  for (const LeafInfo& info : rep->leaves) {
    if (info.alias_of < 0) rep->total_bytes += info.bytes;
  }
  rep->digest = DigestOf(*rep->paths, rep->leaves);
  rep->stride_digest = StrideDigestOf(rep->leaves);
  return Layout(std::move(rep));
}

bool Layout::Matches(const FlatTree& tree) const {
  if (tree.paths != rep_->paths || tree.leaves.size() != rep_->leaves.size()) return false;
  if (tree.non_tensors != rep_->non_tensors) return false;
  const int64_t* seen = rep_->seen.data();
  for (const at::Tensor& tensor : tree.leaves) {
    if (!tensor.defined()) {
      if (*seen++ != kUndefinedWord) return false;
      continue;
    }
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    const bool sparse = impl.layout() == c10::kSparse;
    if (!sparse && (!IsStrided(impl) || !impl.has_storage())) return false;
    if (seen[0] != GeometryWord(impl, sparse)) return false;
    if (seen[1] != (sparse ? IdentityOf(impl) : AddressOf(impl))) return false;
    seen += 2;
    const at::IntArrayRef sizes = impl.sizes();
    if (!std::equal(sizes.begin(), sizes.end(), seen)) return false;
    seen += sizes.size();
    if (sparse) continue;
    const at::IntArrayRef strides = impl.strides();
    if (!std::equal(strides.begin(), strides.end(), seen)) return false;
    seen += strides.size();
  }
  return true;
}

std::optional<std::string> Layout::Difference(const Layout& a, const Layout& b,
                                              std::string_view a_name, std::string_view b_name) {
  if (a == b) return std::nullopt;
  const PathList& a_paths = *a.paths();
  const PathList& b_paths = *b.paths();
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const bool a_first = i >= b.size() || (i < a.size() && a_paths[i] < b_paths[i]);
    const bool b_first = i >= a.size() || (i < b.size() && b_paths[i] < a_paths[i]);
    if (a_first || b_first) {
      const PathList& paths = a_first ? a_paths : b_paths;
      const PathList& other_paths = a_first ? b_paths : a_paths;
      return absl::StrCat(paths[i].ToString(), ": ", a_first ? a_name : b_name, " has ",
                          leafpack::Describe(a_first ? a.leaf(i) : b.leaf(i), paths), ", ",
                          a_first ? b_name : a_name, " has no such leaf",
                          i < other_paths.size()
                              ? absl::StrCat(" (its next is ", other_paths[i].ToString(), ")")
                              : "");
    }
    const std::string a_text = leafpack::Describe(a.leaf(i), a_paths);
    const std::string b_text = leafpack::Describe(b.leaf(i), b_paths);
    if (a_text != b_text) {
      return absl::StrCat(a_paths[i].ToString(), ": ", a_name, " has ", a_text, ", ", b_name,
                          " has ", b_text);
    }
  }
  return "no leaf differs, but the digests do";
}

std::vector<Layout::Entry> Layout::Describe() const {
  std::vector<Entry> entries;
  entries.reserve(size());
  for (size_t i = 0; i < size(); ++i) {
    entries.push_back({path(i).ToString(), leafpack::Describe(leaf(i), *paths())});
  }
  return entries;
}

}  // namespace leafpack
