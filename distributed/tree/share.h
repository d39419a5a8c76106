// Share: moves a tree into memory that all ranks of a group map, once; from then on all-reduces of it copy
// nothing into and out of buffers. Each rank reduces its part of the leaves of all ranks where they lie.
//
//   ASSIGN_OR_RETURN(leafpack::TensorDict grads, leafpack::Share(grads, group));   // backend "shm"
//   leafpack::AllReduce(grads, group, {.op = leafpack::ReduceOp::kAvg});
//
// docs/shm.md has what is read and written by whom.
#ifndef LEAFPACK_DISTRIBUTED_TREE_SHARE_H_
#define LEAFPACK_DISTRIBUTED_TREE_SHARE_H_

#include "absl/status/statusor.h"

#include "distributed/core/arena.h"
#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/trees.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// The kind of this call, for refusals.
inline constexpr CollectiveKind kShareCollective{kShareCollectiveNumber};

// Collective: all ranks give trees of one layout (values and strides may differ) and each gets its own tree
// back, of the same nodes, keys, dtypes, shapes and values, whose leaves stand in the arena. A leaf keeps
// the order of its strides, without gaps; leaves that have the same elements stay aliases; leaves that
// require grad still do (a leaf with a grad_fn is refused in grad mode). Values that are no tensors,
// undefined and empty leaves stay as they are. The given tree is not written.
//
// A moved leaf is an ordinary CPU tensor: in-place operations, views and optimizers work as on any other; its
// storage cannot be resized. AllReduce of trees of such leaves in this group uses the arena where all ranks
// have the same leaves at the same places of it; if on some rank a leaf was replaced, the leaves go
// the ordinary way, with the same bits. An all-reduce of kPremulSum or with OnFailure::kRestore works
// on copies.
//
// After an all-reduce of such leaves that failed while data was under way, they are ordinary leaves on
// this rank: at the same addresses, in memory of its own, so that what a late rank still writes does not reach them.
// The next calls go the ordinary way, with the same bits; Share moves the tree anew. Until all ranks have
// dropped the leaves the memory is held twice.
//
// The memory is released when the last rank has dropped its leaves (or died), in any order; it may
// outlive the group.
//
// Errors are the same on all ranks unless one is told of another: FailedPrecondition for layouts
// that differ, naming the path and the ranks; Unimplemented where ranks do not share memory (Gloo, other hosts),
// naming why; ResourceExhausted where the memory cannot be had: pages are reserved here, never later. All ranks
// get their trees, or none does; the group can be used at once unless a rank was lost.
// `options.on_failure` has no meaning here. In a group of one the leaves are copies in ordinary memory.
absl::StatusOr<TensorDict> Share(const TensorDict& tree, const Group& group,
                                 const CallOptions& options = {});
// The same for other trees; gives one.
absl::StatusOr<TreeResult> ShareTree(TreeArg tree, const Group& group,
                                     const CallOptions& options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_SHARE_H_
