// Reduce and ReduceScatter: reductions of whole trees whose result goes to one rank, or in parts to all.
//
// Both agree before data, refuse, and fail as AllReduce does (distributed/tree/all_reduce.h), take the same
// options, and give the same bits. They only move what they must: a rank sends each byte of its
// leaves once at most, and what it reduced for the root once more. Leaves that take no result are read,
// never written: not while the call runs, nor when it fails. Sparse COO leaves are reduced as by
// AllReduce; leaves that are no tensors must be equal on all ranks and stay as they are.
#ifndef LEAFPACK_DISTRIBUTED_TREE_REDUCE_H_
#define LEAFPACK_DISTRIBUTED_TREE_REDUCE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/group.h"
#include "distributed/tree/all_reduce_options.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/flat_tree.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// As those of all_reduce. max_in_flight_bytes is part of the agreement here: it must be equal on all ranks.
using ReduceOptions = AllReduceOptions;

// The leaves of `root` become the reduction of those of all ranks; the leaves of the other ranks do not
// change. The trees have equal layouts; the root's leaves obey what AllReduce asks of a leaf that is
// written. InvalidArgument when there is no such root, on this rank; the others get FailedPrecondition.
absl::Status Reduce(const TensorDict& tree, Root root, const Group& group,
                    const ReduceOptions& options = {});
absl::Status Reduce(const FlatTree& tree, Root root, const Group& group,
                    const ReduceOptions& options = {});

// Starts the same and returns at once; see AllReduceAsync. The other ranks' leaves must not be written
// before Wait returned, either: they are being read.
absl::StatusOr<TreeWork> ReduceAsync(const TensorDict& tree, Root root, const Group& group,
                                     const ReduceOptions& options = {});
absl::StatusOr<TreeWork> ReduceAsync(const FlatTree& tree, Root root, const Group& group,
                                     const ReduceOptions& options = {});

// trees[i] goes to group rank i: the leaves of trees[own rank] become the reduction of those of all
// ranks, the leaves of the other trees do not change. `trees` has one tree for each rank; layouts of
// trees[i] are equal on all ranks, those of different i may differ. Trees must not share memory with
// each other (InvalidArgument names both leaves). Paths in errors begin with the tree: "[1].weight".
absl::Status ReduceScatter(absl::Span<const TensorDict> trees, const Group& group,
                           const ReduceOptions& options = {});
absl::Status ReduceScatter(absl::Span<const FlatTree> trees, const Group& group,
                           const ReduceOptions& options = {});

// Starts the same and returns at once; see AllReduceAsync. No leaf of `trees` may be written before Wait
// returned.
absl::StatusOr<TreeWork> ReduceScatterAsync(absl::Span<const TensorDict> trees, const Group& group,
                                            const ReduceOptions& options = {});
absl::StatusOr<TreeWork> ReduceScatterAsync(absl::Span<const FlatTree> trees, const Group& group,
                                            const ReduceOptions& options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_REDUCE_H_
