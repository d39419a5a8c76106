// The encoding of a TreeSpec: see docs/wire_formats.md.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/casts.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "distributed/core/byte_io.h"
#include "distributed/tree/tree_spec.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"

namespace leafpack {
namespace {

constexpr uint8_t kVersion = 1;
constexpr uint8_t kNodeTag = 0;
constexpr uint8_t kLeafTag = 1;
constexpr uint8_t kPositionTag = 0;
constexpr uint8_t kNameTag = 1;
// Tag, component without a name, kind: what a child takes at least.
constexpr size_t kMinChildBytes = 1 + 1 + 4 + 1;
constexpr uint32_t kNoAlias = std::numeric_limits<uint32_t>::max();

absl::Status At(const NestedKey& path, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("bad description of a tree, at ", path.ToString(), ": ", what));
}

// False where it does not fit an int64.
bool Multiply(int64_t& product, int64_t factor) {
  return !__builtin_mul_overflow(product, factor, &product);
}

// Elements; nullopt for a negative size, or where even the sizes without their zeros overflow (so
// that strides cannot either).
std::optional<int64_t> CheckedNumel(absl::Span<const int64_t> sizes) {
  int64_t numel = 1;
  bool zero = false;
  for (const int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    zero = zero || size == 0;
    if (!Multiply(numel, std::max<int64_t>(size, 1))) return std::nullopt;
  }
  return zero ? 0 : numel;
}

bool BeginsWith(absl::Span<const int64_t> sizes, absl::Span<const int64_t> batch) {
  return sizes.size() >= batch.size() && std::equal(batch.begin(), batch.end(), sizes.begin());
}

// That the strides lead into a memory of `numel` elements, and to its last one.
bool FillsMemory(const TreeSpec::Leaf& leaf, int64_t numel) {
  if (leaf.strides.empty()) return true;
  if (leaf.strides.size() != leaf.sizes.size() || numel == 0) return false;
  int64_t last = 0;
  for (size_t d = 0; d < leaf.sizes.size(); ++d) {
    int64_t way = leaf.strides[d];
    if (way < 1 || way > numel || !Multiply(way, leaf.sizes[d] - 1)) return false;
    if (__builtin_add_overflow(last, way, &last)) return false;
  }
  return last == numel - 1;
}

// That the strides are those of a contiguous tensor with its dimensions in another order.
bool IsGapless(const TreeSpec::Leaf& leaf) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t d = 0; d < leaf.strides.size(); ++d) {
    if (leaf.sizes[d] > 1) dims.emplace_back(leaf.strides[d], leaf.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

// Everything about leaf `index` but its path: the rules that both directions keep. Adds its bytes to
// `total_bytes`.
absl::Status CheckLeaf(const TreeSpec::Leaf& leaf, size_t index, absl::Span<const TreeSpec::Leaf> all,
                       absl::Span<const int64_t> batch, const NestedKey& path,
                       const TreeSpecLimits& limits, int64_t& total_bytes) {
  if (leaf.kind == LeafKind::kUndefined || leaf.kind == LeafKind::kNonTensor) {
    return absl::OkStatus();
  }
  if (leaf.kind != LeafKind::kDense && leaf.kind != LeafKind::kSparse) {
    return At(path, "a leaf of an unknown kind");
  }
  if (DtypeOfCode(DtypeCode(leaf.dtype)) != leaf.dtype ||
      leaf.dtype == at::ScalarType::Undefined) {
    return At(path, "no dtype that can be sent");
  }
  if (leaf.sizes.size() > kMaxSpecDims) return At(path, "too many dimensions");
  const std::optional<int64_t> numel = CheckedNumel(leaf.sizes);
  if (!numel.has_value()) return At(path, "sizes that are negative or overflow");
  if (!BeginsWith(leaf.sizes, batch)) return At(path, "sizes do not begin with the batch size");
  const auto element = static_cast<int64_t>(c10::elementSize(leaf.dtype));
  // Of the sizes without their zeros, so that nothing that is computed from them overflows.
  int64_t widest = element;
  for (const int64_t size : leaf.sizes) {
    if (!Multiply(widest, std::max<int64_t>(size, 1))) return At(path, "more bytes than there can be");
  }
  int64_t bytes = *numel * element;
  if (leaf.kind == LeafKind::kSparse) {
    if (!leaf.strides.empty()) return At(path, "a sparse leaf with strides");
    if (leaf.sparse_dim < 0 || static_cast<size_t>(leaf.sparse_dim) > leaf.sizes.size() ||
        leaf.nnz < 0) {
      return At(path, "wrong sparse dimensions");
    }
    bytes = element;
    for (size_t d = static_cast<size_t>(leaf.sparse_dim); d < leaf.sizes.size(); ++d) {
      bytes *= leaf.sizes[d];
    }
    if (__builtin_add_overflow(bytes, leaf.sparse_dim * 8, &bytes) || !Multiply(bytes, leaf.nnz)) {
      return At(path, "more sparse elements than there can be");
    }
  }
  if (!FillsMemory(leaf, *numel)) return At(path, "strides that lead elsewhere");
  if (leaf.alias_of >= 0) {
    if (static_cast<size_t>(leaf.alias_of) >= index) return At(path, "shares no earlier leaf");
    const TreeSpec::Leaf& first = all[static_cast<size_t>(leaf.alias_of)];
    if (first.alias_of >= 0 || first.kind != leaf.kind || first.dtype != leaf.dtype ||
        CheckedNumel(first.sizes) != numel || *numel == 0) {
      return At(path, "shares a leaf that is of another kind");
    }
    if (leaf.kind == LeafKind::kSparse &&
        (first.sizes != leaf.sizes || first.sparse_dim != leaf.sparse_dim ||
         first.nnz != leaf.nnz || first.coalesced != leaf.coalesced)) {
      return At(path, "shares a sparse leaf that is another one");
    }
  } else if (leaf.alias_of != -1) {
    return At(path, "shares a leaf before the first");
  } else {
    if (!IsGapless(leaf)) return At(path, "memory with gaps");
    if (__builtin_add_overflow(total_bytes, bytes, &total_bytes) ||
        total_bytes > limits.max_leaf_bytes) {
      return At(path, absl::StrCat("the leaves have more than ", limits.max_leaf_bytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNode(const TreeSpec::Node& node, absl::Span<const int64_t> parent_batch) {
  if (NodeKindName(node.kind) == "of no known kind") return At(node.path, "a node of unknown kind");
  if (node.note.size() > kMaxNoteBytes) return At(node.path, "a note that is too long");
  if (node.batch_size.size() > kMaxSpecDims) return At(node.path, "too many batch dimensions");
  if (!node.names.empty() && node.names.size() != node.batch_size.size()) {
    return At(node.path, "another number of names than of batch dimensions");
  }
  if (!CheckedNumel(node.batch_size).has_value()) return At(node.path, "a wrong batch size");
  if (!BeginsWith(node.batch_size, parent_batch)) {
    return At(node.path, "a batch size that does not begin with that of the node above");
  }
  return absl::OkStatus();
}

// ---- Encoding.

void PutDims(ByteWriter& out, absl::Span<const int64_t> dims) {
  out.U8(static_cast<uint8_t>(dims.size()));
  for (const int64_t dim : dims) out.I64(dim);
}

void PutComponent(ByteWriter& out, const KeyComponent& component) {
  if (component.is_position()) {
    out.U8(kPositionTag);
    out.I64(component.position());
  } else {
    out.U8(kNameTag);
    out.String(component.name());
  }
}

void PutValue(ByteWriter& out, const NonTensor& value) {
  out.U8(static_cast<uint8_t>(value.kind()));
  switch (value.kind()) {
    case NonTensor::Kind::kNone:
      break;
    case NonTensor::Kind::kString:
      out.String(*value.AsString());
      break;
    case NonTensor::Kind::kBytes:
      out.String(*value.AsBytes());
      break;
    case NonTensor::Kind::kInt:
      out.I64(*value.AsInt());
      break;
    case NonTensor::Kind::kFloat:
      out.U64(absl::bit_cast<uint64_t>(*value.AsFloat()));
      break;
    case NonTensor::Kind::kBool:
      out.U8(*value.AsBool() ? 1 : 0);
      break;
    case NonTensor::Kind::kList:
      out.U32(static_cast<uint32_t>(value.AsList()->size()));
      for (const NonTensor& item : *value.AsList()) PutValue(out, item);
      break;
  }
}

void PutLeaf(ByteWriter& out, const TreeSpec::Leaf& leaf) {
  out.U8(static_cast<uint8_t>(leaf.kind));
  if (leaf.kind == LeafKind::kUndefined) return;
  if (leaf.kind == LeafKind::kNonTensor) return PutValue(out, leaf.value);
  out.U8(DtypeCode(leaf.dtype));
  PutDims(out, leaf.sizes);
  out.U32(leaf.alias_of < 0 ? kNoAlias : static_cast<uint32_t>(leaf.alias_of));
  if (leaf.kind == LeafKind::kSparse) {
    out.U8(static_cast<uint8_t>(leaf.sparse_dim));
    out.I64(leaf.nnz);
    out.U8(leaf.coalesced ? 1 : 0);
  } else {
    PutDims(out, leaf.strides);
  }
}

// ---- Decoding.

bool GetDims(ByteReader& in, std::vector<int64_t>& dims) {
  const size_t count = in.U8();
  if (count > kMaxSpecDims || count * sizeof(int64_t) > in.remaining()) return false;
  dims.resize(count);
  for (int64_t& dim : dims) dim = in.I64();
  return in.ok();
}

bool GetComponent(ByteReader& in, KeyComponent& component) {
  switch (in.U8()) {
    case kPositionTag:
      component = KeyComponent(in.I64());
      break;
    case kNameTag:
      component = KeyComponent(in.String());
      break;
    default:
      return false;
  }
  return in.ok();
}

// `depth`: lists above it; `items`: how many values there may still be.
bool GetValue(ByteReader& in, int depth, int64_t& items, NonTensor& value) {
  if (depth > NonTensor::kMaxDepth || --items < 0) return false;
  switch (static_cast<NonTensor::Kind>(in.U8())) {
    case NonTensor::Kind::kNone:
      value = NonTensor();
      return in.ok();
    case NonTensor::Kind::kString:
      value = NonTensor(in.String());
      return in.ok();
    case NonTensor::Kind::kBytes:
      value = NonTensor::Bytes(in.String());
      return in.ok();
    case NonTensor::Kind::kInt:
      value = NonTensor(in.I64());
      return in.ok();
    case NonTensor::Kind::kFloat: {
      const uint64_t bits = in.U64();
      value = NonTensor(absl::bit_cast<double>(bits));
      return in.ok() && absl::bit_cast<uint64_t>(*value.AsFloat()) == bits;  // there is one NaN
    }
    case NonTensor::Kind::kBool: {
      const uint8_t flag = in.U8();
      value = NonTensor(flag == 1);
      return in.ok() && flag <= 1;
    }
    case NonTensor::Kind::kList: {
      const uint32_t count = in.U32();
      if (!in.ok() || count > in.remaining()) return false;
      std::vector<NonTensor> list;
      list.reserve(std::min<size_t>(count, 1024));
      for (uint32_t i = 0; i < count; ++i) {
        NonTensor item;
        if (!GetValue(in, depth + 1, items, item)) return false;
        list.push_back(std::move(item));
      }
      absl::StatusOr<NonTensor> made = NonTensor::List(std::move(list));
      if (!made.ok()) return false;
      value = *std::move(made);
      return true;
    }
  }
  return false;
}

bool GetLeaf(ByteReader& in, TreeSpec::Leaf& leaf) {
  leaf.kind = static_cast<LeafKind>(in.U8());
  if (!in.ok()) return false;
  if (leaf.kind == LeafKind::kUndefined) return true;
  if (leaf.kind == LeafKind::kNonTensor) {
    int64_t items = NonTensor::kMaxItems;
    return GetValue(in, 0, items, leaf.value);
  }
  if (leaf.kind != LeafKind::kDense && leaf.kind != LeafKind::kSparse) return false;
  leaf.dtype = DtypeOfCode(in.U8());
  if (!GetDims(in, leaf.sizes)) return false;
  const uint32_t alias = in.U32();
  leaf.alias_of = alias == kNoAlias ? -1 : static_cast<int64_t>(alias);
  if (leaf.kind == LeafKind::kSparse) {
    leaf.sparse_dim = in.U8();
    leaf.nnz = in.I64();
    const uint8_t coalesced = in.U8();
    leaf.coalesced = coalesced == 1;
    return in.ok() && coalesced <= 1;
  }
  return GetDims(in, leaf.strides);
}

}  // namespace

absl::StatusOr<std::string> EncodeTreeSpec(const TreeSpec& spec, const TreeSpecLimits& limits) {
  if (spec.paths == nullptr || spec.paths->size() != spec.leaves.size()) {
    return At({}, "another number of paths than of leaves");
  }
  // A node says how many children follow it, so they are counted first.
  const bool one_leaf = spec.nodes.empty();
  if (one_leaf && (spec.leaves.size() != 1 || !(*spec.paths)[0].empty())) {
    return At({}, "there is no root");
  }
  if (!one_leaf && !spec.nodes[0].path.empty()) return At({}, "the first node is not the root");
  struct Entry {
    size_t index;
    bool is_node;
    size_t parent;  // index of a node
  };
  std::vector<Entry> entries;
  entries.reserve(spec.nodes.size() + spec.leaves.size());
  std::vector<uint32_t> children(spec.nodes.size(), 0);
  std::vector<size_t> above;
  size_t node = 0;
  size_t leaf = 0;
  const NestedKey* previous = nullptr;
  while (node < spec.nodes.size() || leaf < spec.leaves.size()) {
    const bool is_node =
        leaf == spec.leaves.size() ||
        (node < spec.nodes.size() && spec.nodes[node].path < (*spec.paths)[leaf]);
    const NestedKey& path = is_node ? spec.nodes[node].path : (*spec.paths)[leaf];
    if (previous != nullptr && !(*previous < path)) return At(path, "out of order, or twice");
    if (path.size() > static_cast<size_t>(kMaxTreeDepth)) return At(path, "too deep");
    previous = &path;
    size_t parent = 0;
    if (!path.empty()) {
      while (!above.empty() && !spec.nodes[above.back()].path.IsPrefixOf(path)) above.pop_back();
      if (above.empty() || spec.nodes[above.back()].path.size() + 1 != path.size()) {
        return At(path, "there is no node for it to stand in");
      }
      parent = above.back();
      ++children[parent];
    }
    entries.push_back({is_node ? node : leaf, is_node, parent});
    if (is_node) {
      above.push_back(node++);
    } else {
      ++leaf;
    }
  }

  ByteWriter out;
  out.Reserve(64 * entries.size());
  out.U8(kVersion);
  int64_t total_bytes = 0;
  int64_t components = 0;
  for (const Entry& entry : entries) {
    const NestedKey& path =
        entry.is_node ? spec.nodes[entry.index].path : (*spec.paths)[entry.index];
    components += static_cast<int64_t>(path.size());
    const absl::Span<const int64_t> batch =
        path.empty() ? absl::Span<const int64_t>() : spec.nodes[entry.parent].batch_size;
    out.U8(entry.is_node ? kNodeTag : kLeafTag);
    if (!path.empty()) PutComponent(out, path.back());
    if (entry.is_node) {
      const TreeSpec::Node& described = spec.nodes[entry.index];
      if (absl::Status s = CheckNode(described, batch); !s.ok()) return s;
      out.U8(static_cast<uint8_t>(described.kind));
      PutDims(out, described.batch_size);
      out.U8(static_cast<uint8_t>(described.names.size()));
      for (const std::string& name : described.names) out.String(name);
      out.String(described.note);
      out.U32(children[entry.index]);
    } else {
      const TreeSpec::Leaf& described = spec.leaves[entry.index];
      if (absl::Status s = CheckLeaf(described, entry.index, spec.leaves, batch, path, limits,
                                     total_bytes);
          !s.ok()) {
        return s;
      }
      PutLeaf(out, described);
    }
    if (out.size() > limits.max_bytes || components > limits.max_path_components) {
      return At(path, absl::StrCat("the tree has too many leaves to be described in ",
                                   limits.max_bytes, " bytes and ", limits.max_path_components,
                                   " components of paths"));
    }
  }
  return std::move(out).Take();
}

absl::StatusOr<TreeSpec> DecodeTreeSpec(std::string_view bytes, const TreeSpecLimits& limits) {
  if (bytes.size() > limits.max_bytes) {
    return At({}, absl::StrCat(bytes.size(), " bytes, more than the limit of ", limits.max_bytes));
  }
  ByteReader in(bytes);
  if (const uint8_t version = in.U8(); version != kVersion) {
    return At({}, absl::StrCat("version ", version, ", only ", kVersion, " is known"));
  }
  struct Open {
    size_t node;
    uint32_t children_left;
    bool has_child;
    KeyComponent last;
  };
  TreeSpec spec;
  std::vector<NestedKey> leaf_paths;
  std::vector<Open> open;
  NestedKey path;
  int64_t total_bytes = 0;
  int64_t components = 0;
  bool at_root = true;
  while (at_root || !open.empty()) {
    if (!at_root) {
      Open& parent = open.back();
      if (parent.children_left == 0) {
        open.pop_back();
        if (!path.empty()) path.pop_back();
        continue;
      }
      --parent.children_left;
    }
    const uint8_t tag = in.U8();
    if (!in.ok() || tag > kLeafTag) return At(path, "cut off, or neither a node nor a leaf");
    if (!at_root) {
      KeyComponent component;
      if (!GetComponent(in, component)) return At(path, "a name that is cut off");
      if (path.size() >= static_cast<size_t>(kMaxTreeDepth)) return At({}, "too deep");
      Open& parent = open.back();
      if (parent.has_child && !(parent.last < component)) {
        return At(path.Child(std::move(component)), "out of order, or twice");
      }
      parent.has_child = true;
      parent.last = component;
      path.push_back(std::move(component));
    }
    components += static_cast<int64_t>(path.size());
    if (components > limits.max_path_components) return At({}, "paths that are too long");
    const std::vector<int64_t> no_batch;
    const std::vector<int64_t>& batch = at_root ? no_batch : spec.nodes[open.back().node].batch_size;
    if (tag == kNodeTag) {
      TreeSpec::Node node;
      node.path = path;
      node.kind = static_cast<NodeKind>(in.U8());
      if (!GetDims(in, node.batch_size)) return At(path, "a batch size that is cut off");
      const size_t names = in.U8();
      if (names > 0 && names != node.batch_size.size()) {
        return At(path, "another number of names than of batch dimensions");
      }
      for (size_t i = 0; i < names; ++i) node.names.emplace_back(in.String());
      const std::string_view note = in.String();
      if (note.size() > kMaxNoteBytes) return At(path, "a note that is too long");
      node.note = note;
      const uint32_t children = in.U32();
      if (!in.ok() || children > in.remaining() / kMinChildBytes) {
        return At(path, "more children than bytes");
      }
      if (absl::Status s = CheckNode(node, batch); !s.ok()) return s;
      spec.nodes.push_back(std::move(node));
      open.push_back({spec.nodes.size() - 1, children, false, {}});
    } else {
      TreeSpec::Leaf leaf;
      if (!GetLeaf(in, leaf)) return At(path, "a leaf that is cut off or of an unknown kind");
      if (absl::Status s = CheckLeaf(leaf, spec.leaves.size(), spec.leaves, batch, path, limits,
                                     total_bytes);
          !s.ok()) {
        return s;
      }
      spec.leaves.push_back(std::move(leaf));
      leaf_paths.push_back(path);
      if (!path.empty()) path.pop_back();
    }
    at_root = false;
  }
  if (in.remaining() > 0) return At({}, "bytes behind the end");
  spec.paths = std::make_shared<PathList>(std::move(leaf_paths));
  return spec;
}

}  // namespace leafpack
