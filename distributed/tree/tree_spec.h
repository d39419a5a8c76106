// TreeSpec: all about a tree but its values, in a form that travels: for receivers that have no tree
// yet. They decode it, allocate the leaves, and build the same kind of tree around them.
//
//   ASSIGN_OR_RETURN(TreeSpec spec, DescribeTree(tree));             // one rank
//   ASSIGN_OR_RETURN(std::string bytes, EncodeTreeSpec(spec));
//
//   ASSIGN_OR_RETURN(TreeSpec spec, DecodeTreeSpec(bytes));          // another
//   ASSIGN_OR_RETURN(FlatTree fresh, AllocateLeaves(spec));
//   ... receive into fresh.leaves ...
//   ASSIGN_OR_RETURN(TensorDict tree, BuildTensorDict(spec, fresh.leaves));
//
// Layout(fresh) of the receiver has the digest of the sender's layout. The encoding is described in
// docs/wire_formats.md. Pure functions; threads: any.
#ifndef LEAFPACK_DISTRIBUTED_TREE_TREE_SPEC_H_
#define LEAFPACK_DISTRIBUTED_TREE_TREE_SPEC_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// What a node was where it came from, so that a binding can make the same again. C++ makes a
// TensorDict of all of them. The numbers are wire format.
enum class NodeKind : uint8_t {
  kTree = 0,        // a leafpack TensorDict
  kTensorDict = 1,  // a Python tensordict
  kDict = 2,        // a Python dict
  kList = 3,        // a Python list
  kTuple = 4,       // a Python tuple
};
// "tree", "tensordict", "dict", "list", "tuple".
std::string_view NodeKindName(NodeKind kind);

struct TreeSpec {
  struct Node {
    NestedKey path;
    std::vector<int64_t> batch_size;
    NodeKind kind = NodeKind::kTree;
    std::vector<std::string> names = {};  // of the batch dimensions; empty: they have none
    // For the binding that described the tree (names of dimensions, a stack dimension): opaque here.
    // At most kMaxNoteBytes.
    std::string note = {};
  };

  struct Leaf {
    LeafKind kind = LeafKind::kDense;
    at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined for what is no tensor
    std::vector<int64_t> sizes;                        // elements
    // Index of the first leaf that has the same elements in memory, or -1; never chains.
    int64_t alias_of = -1;
    // Elements; of dense leaves that share their memory with another one: how each lies in the memory
    // of the first, which is without gaps. Else empty: the leaf is contiguous.
    std::vector<int64_t> strides;
    // kSparse only.
    int64_t sparse_dim = 0;
    int64_t nnz = 0;
    bool coalesced = false;
    NonTensor value;  // kNonTensor only; such a leaf has nothing else
  };

  // In canonical order, the root first; also nodes without leaves. Empty if the tree is one leaf, whose
  // path is empty.
  std::vector<Node> nodes;
  // Of the leaves, in canonical order; never null.
  std::shared_ptr<const PathList> paths = FlatTree().paths;
  std::vector<Leaf> leaves;

  // Bytes of dense leaves and of the values and indices of sparse ones, each alias group once.
  int64_t total_bytes() const;
};

inline constexpr size_t kMaxNoteBytes = 4 << 10;
inline constexpr size_t kMaxSpecDims = 64;

struct TreeSpecLimits {
  // Of the encoded description.
  size_t max_bytes = size_t{64} << 20;
  // Components of all paths together: what bounds the memory that a description can ask for.
  int64_t max_path_components = int64_t{8} << 20;
  // Of all leaves, alias groups once.
  int64_t max_leaf_bytes = std::numeric_limits<int64_t>::max();
};

// The description of a tree; its nodes are kTree. Errors of Layout::Of. InvalidArgument, naming the
// path, for a leaf of more than kMaxSpecDims dimensions; Unimplemented for a dtype that has no number
// (quantized), and for a leaf that lies in the memory of another one in a way that strides cannot say.
absl::StatusOr<TreeSpec> DescribeTree(const TensorDict& tree);

// The same from leaves and their layout. The nodes are those that stand above the leaves: kList where
// the components are positions, else kDict, with an empty batch size; the caller may change kinds,
// notes, batch sizes, and add nodes without leaves.
absl::StatusOr<TreeSpec> DescribeTree(const FlatTree& tree, const Layout& layout);

// InvalidArgument if the description contradicts itself (a leaf without its node, nodes out of order,
// wrong batch sizes, ...) or passes a limit.
absl::StatusOr<std::string> EncodeTreeSpec(const TreeSpec& spec, const TreeSpecLimits& limits = {});

// InvalidArgument, saying where, for bytes that are no description. Every count and length is checked
// against what remains, and every size for overflow, before anything is allocated for it.
absl::StatusOr<TreeSpec> DecodeTreeSpec(std::string_view bytes, const TreeSpecLimits& limits = {});

// Fresh CPU tensors with undefined values, at spec.paths, and the values that are no tensors; leaves
// that share memory share it.
// ResourceExhausted when there is not enough memory.
absl::StatusOr<FlatTree> AllocateLeaves(const TreeSpec& spec);

// A tree of all nodes, with `leaves` in the order of spec.paths; where no tensor stands, the value of the
// description. Nodes are on no device and not locked. InvalidArgument for another number of
// leaves, a leaf that does not fit the batch size of its node, or a tree that is one leaf.
absl::StatusOr<TensorDict> BuildTensorDict(const TreeSpec& spec,
                                           absl::Span<const at::Tensor> leaves);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_TREE_SPEC_H_
