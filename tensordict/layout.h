// Layout: all about the leaves of a tree except the values in tensors. Ranks compare it before they move data.
//
//   FlatTree flat = Flatten(tree);
//   ASSIGN_OR_RETURN(Layout layout, Layout::Of(flat));
//   layout.digest();            // equal on two ranks: same paths, dtypes, sizes, devices, kinds, aliases
//   layout.Matches(flat);       // still valid for a later call? (a few nanoseconds per leaf)
#ifndef LEAFPACK_TENSORDICT_LAYOUT_H_
#define LEAFPACK_TENSORDICT_LAYOUT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tensordict/digest128.h"
#include "tensordict/flat_tree.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"

namespace leafpack {

// What a leaf is. The numbers are part of the digest.
enum class LeafKind : uint8_t {
  kDense = 0,      // strided, any strides
  kSparse = 1,     // sparse COO
  kUndefined = 2,  // an undefined tensor: a gradient that does not exist
  kNonTensor = 3,  // a value that is no tensor
};

// "dense", "sparse", "undefined", "non-tensor".
std::string_view LeafKindName(LeafKind kind);

struct LeafInfo {
  using Dims = c10::SmallVector<int64_t, 5>;

  at::ScalarType dtype = at::ScalarType::Undefined;
  LeafKind kind = LeafKind::kDense;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // The conjugate or negative bit is set: memory holds not the values but their conjugates or
  // negatives. Such a leaf must be read and written by at::Tensor operations.
  bool lazy_conj_or_neg = false;
  // Distinct elements, no gap between them: memory order is a permutation of logical order.
  bool dense_in_memory = false;
  // Logical order is memory order, without gaps.
  bool contiguous = false;
  // Sparse: number of sparse dimensions; else 0.
  int32_t sparse_dim = 0;
  Dims sizes;    // elements
  Dims strides;  // elements; empty unless kDense
  int64_t storage_offset = 0;  // elements; 0 unless kDense
  int64_t numel = 0;
  // numel times the element size; 0 unless kDense.
  int64_t bytes = 0;
  // Index of the first leaf that has exactly the same elements in memory, or -1. Never chains: the
  // leaf it names has -1.
  int64_t alias_of = -1;
  // Index of the leaf that ends in memory where this one begins: the last one before it (in canonical
  // order) of the same dtype and device type, if both are dense_in_memory parts of one storage with
  // neither a lazy bit nor an alias; else -1.
  int64_t follows = -1;
  // Address of the first element at the time of Layout::Of (0 if it has none). Not in any digest.
  uintptr_t address = 0;
  // kNonTensor: the value, which the digest covers. Such a leaf has no dtype, sizes or bytes.
  NonTensor value;
};

// Immutable; copies share one body. Holds no reference to any tensor. Threads: any.
class Layout {
 public:
  // One line of the printable description of a layout.
  struct Entry {
    std::string path;   // NestedKey::ToString
    std::string value;  // "float32 [3, 4] cpu", "float32 [3, 4] cpu, the memory of a.b"
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  // The layout of no leaves.
  Layout();

  // InvalidArgument, naming each path concerned, if
  // - a leaf overlaps itself (two indices, one element: an expanded tensor);
  // - two leaves share some bytes but are not the same set of elements of one dtype (the test is
  //   exact: m[:, :2] beside m[:, 2:] is fine; x beside x.t() is an alias);
  // - a path has more than kMaxTreeDepth components.
  // Unimplemented, naming the path, for a tensor that is neither strided nor sparse COO, or has no
  // memory of its own (nested, CSR, batched by a transform).
  // Also InvalidArgument if `non_tensors` does not fit the leaves.
  // Leaves without elements and undefined ones never overlap. Memory of sparse leaves is not looked
  // at, except that the same sparse tensor under two paths is an alias.
  static absl::StatusOr<Layout> Of(const FlatTree& tree);

  size_t size() const { return rep_->leaves.size(); }
  const std::vector<LeafInfo>& leaves() const { return rep_->leaves; }
  const LeafInfo& leaf(size_t i) const { return rep_->leaves[i]; }
  const std::shared_ptr<const PathList>& paths() const { return rep_->paths; }
  const NestedKey& path(size_t i) const { return (*rep_->paths)[i]; }

  // Of what ranks must agree on, for every leaf in canonical order: path, dtype, sizes, device type,
  // kind, alias group, and the value of what is no tensor. Not strides, offsets, addresses or device numbers. The same in every process
  // and on every platform.
  const Digest128& digest() const { return rep_->digest; }

  // Of how the elements lie in memory: equal on two ranks with equal digest() means that memory order
  // is the same order on both, and that the same leaves lie back to back. A difference is no error.
  const Digest128& stride_digest() const { return rep_->stride_digest; }

  // Bytes of all dense leaves, each alias group once.
  int64_t total_bytes() const { return rep_->total_bytes; }

  // Number of leaves that are no tensors.
  size_t num_non_tensors() const { return rep_->non_tensors.size(); }

  // True if digest and plans of this layout hold for `tree`: the same `paths` pointer, and every leaf
  // with the same address, dtype, sizes, strides, device and kind, or the same value. False is always safe: take a new
  // Layout::Of. (Other tensor objects over the same memory do match.)
  bool Matches(const FlatTree& tree) const;

  // Equal digests.
  friend bool operator==(const Layout& a, const Layout& b) { return a.digest() == b.digest(); }

  // The first difference in canonical order, with the path and what each side has, the sides called
  // `a_name` and `b_name`; nullopt if a == b.
  static std::optional<std::string> Difference(const Layout& a, const Layout& b,
                                               std::string_view a_name = "one side",
                                               std::string_view b_name = "the other");

  // What the digest covers, one entry per leaf in canonical order: the manifest that is sent when
  // digests differ. Two layouts have equal descriptions exactly if they are equal.
  std::vector<Entry> Describe() const;

 private:
  struct Rep {
    std::shared_ptr<const PathList> paths;
    std::vector<LeafInfo> leaves;
    // What Matches compares, packed: see layout.cc.
    std::vector<int64_t> seen;
    std::vector<NonTensorLeaf> non_tensors;
    Digest128 digest;
    Digest128 stride_digest;
    int64_t total_bytes = 0;
  };

  explicit Layout(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_LAYOUT_H_
