// All-reduce of a whole tree: every leaf is reduced in place over all ranks of a group, with few
// large messages in place of many small ones.
//
//   leafpack::TensorDict grads;  // same paths, shapes and dtypes on every rank
//   absl::Status s = leafpack::AllReduce(grads, group, {.op = leafpack::ReduceOp::kAvg});
//
// Before a leaf changes, the ranks compare a digest of the whole call over the group's control
// channel. If it differs every rank gets FailedPrecondition that names the first differing path, what
// each side has, and the ranks; no leaf has changed and the group is usable at once. What this rank
// finds wrong with its own tree (a leaf that overlaps itself or another, a dtype that the op does not
// allow, ...) is refused for the whole tree before anything moves: this rank gets InvalidArgument or
// Unimplemented with the path, the others FailedPrecondition that names this rank and the reason.
#ifndef LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_H_
#define LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/core/group.h"
#include "distributed/tree/all_reduce_options.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/flat_tree.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// Reduces every tensor in place; returns when all leaves hold the result, equal on all ranks to the
// bit. Leaves may be strided, permuted, empty, 0-dim; a region that stands under several paths is
// reduced once. A sparse COO leaf (SUM, AVG and PREMUL_SUM) may have other elements on each rank; it
// stays the tensor object that it is and gets new indices and values, coalesced, the union of the ranks'.
// Leaves that are no tensors must be equal on all ranks and stay as they are. Leaves
// that require grad are written without a record and their version counter is bumped; in grad mode a
// leaf with a grad_fn is refused. Errors: see the top of this file, and DeadlineExceeded /
// Cancelled / Unavailable with the ranks in their details (distributed/core/error.h).
// Calls on one group come from one thread at a time, in one order on all ranks.
absl::Status AllReduce(const TensorDict& tree, const Group& group,
                       const AllReduceOptions& options = {});
absl::Status AllReduce(const FlatTree& tree, const Group& group,
                       const AllReduceOptions& options = {});

// Starts the same and returns at once. Results are in the leaves when Wait returns; before that the
// leaves are in flight and must not be read or written. The tree's structure may change meanwhile.
// An error of this rank's own tree is returned here; others by Wait.
absl::StatusOr<TreeWork> AllReduceAsync(const TensorDict& tree, const Group& group,
                                        const AllReduceOptions& options = {});
absl::StatusOr<TreeWork> AllReduceAsync(const FlatTree& tree, const Group& group,
                                        const AllReduceOptions& options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_H_
