// What a leaf must be to be reduced in place, and what is owed to autograd.
#ifndef LEAFPACK_DISTRIBUTED_TREE_LEAF_RULES_H_
#define LEAFPACK_DISTRIBUTED_TREE_LEAF_RULES_H_

#include <cstddef>
#include <limits>

#include "absl/status/status.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/core/reduce_op.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"

namespace leafpack::internal {

// Leaves [begin, end) of a tree; by default all.
struct LeafRange {
  size_t begin = 0;
  size_t end = std::numeric_limits<size_t>::max();
  bool Has(size_t leaf) const { return leaf >= begin && leaf < end; }
};

// OK if every tensor's kind, dtype and device type can be reduced with `op` by `collective` over `backend`;
// else InvalidArgument or Unimplemented that names the first path, with kUnsupported in its details.
// Depends on the layout only. Values that are no tensors are passed over: nothing is reduced there.
absl::Status CheckLeafKinds(const Layout& layout, ReduceOpKind op, CollectiveKind collective,
                            const Backend& backend);

// OK if `backend` can move every leaf that has values, sparse ones too; else as CheckLeafKinds. Undefined leaves and values
// that are no tensors have nothing to move.
absl::Status CheckMovable(const Layout& layout, const Backend& backend);

// OK if leaves of this layout can be stacked or concatenated; else Unimplemented that names the first path
// (sparse leaves cannot), with kUnsupported in its details.
absl::Status CheckJoinable(const Layout& layout);

// OK unless grad mode is on and a leaf that is to be written was computed by autograd (has a grad_fn):
// writing it in place would falsify its history. InvalidArgument names the path. Looked at on every call.
absl::Status CheckAutograd(const FlatTree& tree, LeafRange written = {});

// Tells autograd that the leaves were written: bumps each version counter, so that a later backward
// that saved an old value fails instead of being wrong.
void BumpVersions(const FlatTree& tree, LeafRange written = {});

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_LEAF_RULES_H_
