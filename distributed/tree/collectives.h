// Collectives on whole trees that move leaves and reduce nothing, with few large messages in place of
// many small ones.
//
//   leafpack::Broadcast(tree, leafpack::GlobalRank(0), group);            // in place
//   auto got = leafpack::Broadcast(std::nullopt, leafpack::GlobalRank(0), group);
//   absl::StatusOr<leafpack::TensorDict> tree = got->Dict();              // a rank without a tree
//   auto all = leafpack::AllGather(tree, group);                          // all->Dicts(), by rank
//
// What holds for all of them:
// - Before a leaf moves, the ranks compare the call (collective, name, root) over the group's control
//   channel, and what must fit together of their trees. A difference is FailedPrecondition on every
//   rank, naming the first path that differs, what each side has, and the ranks; nothing has changed
//   and the group is usable at once. What this rank finds wrong with its own arguments is InvalidArgument
//   or Unimplemented here, and FailedPrecondition that names this rank on the others.
// - Leaves that are only sent are not written; what is written in place is each leaf's own elements.
//   Leaves may be strided, permuted, empty, 0-dim, undefined (moved as undefined); one that stands under
//   several paths moves once, and shares its memory in new trees too. Leaves that overlap in part
//   and dtypes that the backend cannot move are refused by path. An empty tree is a tree.
// - A sparse COO leaf may have other elements on each rank; one that is written in place stays the tensor
//   object that it is and gets the sender's indices and values. Joined trees cannot have any: refused by
//   path with Unimplemented.
// - New trees have the root's or sender's nodes, batch sizes, keys, shapes and dtypes, on the CPU, and
//   share nothing with another tree. Nothing that arrives is executed; sizes are checked first.
// - Written leaves that require grad are written without a record and their version counter is bumped; in
//   grad mode a leaf with a grad_fn is refused. New leaves do not require grad.
// - Errors, deadlines, interrupts and asynchronous forms are those of AllReduce (all_reduce.h). Async
//   calls return errors of this rank's own arguments at once, others by Wait; TreeWork::result() is what
//   the synchronous call returns. Until then leaves are in flight: not to be written, and those that are
//   written in place not to be read.
#ifndef LEAFPACK_DISTRIBUTED_TREE_COLLECTIVES_H_
#define LEAFPACK_DISTRIBUTED_TREE_COLLECTIVES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "distributed/core/group.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/tree_work.h"
#include "distributed/tree/trees.h"

namespace leafpack {

// The root's leaves go to every rank. A rank with a tree has it written in place: its layout must be the
// root's. A rank without one gets a new tree. Gives one tree: the root's own on the root, which is not
// written. The root must have a tree.
absl::StatusOr<TreeResult> Broadcast(std::optional<TreeArg> tree, Root root, const Group& group,
                                     const CallOptions& options = {});
absl::StatusOr<TreeWork> BroadcastAsync(std::optional<TreeArg> tree, Root root, const Group& group,
                                        const CallOptions& options = {});

// Every rank gets the trees of all, by rank, each with the layout that it has on its own rank; this
// rank's own comes as a copy.
absl::StatusOr<TreeResult> AllGather(TreeArg tree, const Group& group,
                                     const CallOptions& options = {});
absl::StatusOr<TreeWork> AllGatherAsync(TreeArg tree, const Group& group,
                                        const CallOptions& options = {});

// How trees of one layout become one tree.
enum class Joining : uint8_t {
  kStack,   // a new first dimension, one index per rank: [n, ...] becomes [ranks, n, ...]
  kConcat,  // along the first dimension: [n, ...] becomes [ranks * n, ...]; 0-dim leaves are refused
};

// The same in one tree: all layouts must be equal. With `out` that tree is written in place (paths and
// dtypes of `tree`, sizes as joined), else a new one is made. Gives one tree.
absl::StatusOr<TreeResult> AllGatherJoined(TreeArg tree, Joining joining,
                                           std::optional<TreeArg> out, const Group& group,
                                           const CallOptions& options = {});
absl::StatusOr<TreeWork> AllGatherJoinedAsync(TreeArg tree, Joining joining,
                                              std::optional<TreeArg> out, const Group& group,
                                              const CallOptions& options = {});

// The root gets the trees of all, as AllGather; the others get none.
absl::StatusOr<TreeResult> Gather(TreeArg tree, Root root, const Group& group,
                                  const CallOptions& options = {});
absl::StatusOr<TreeWork> GatherAsync(TreeArg tree, Root root, const Group& group,
                                     const CallOptions& options = {});

// The root gets one new tree, stacked (see Joining::kStack); all layouts must be equal. The others get
// none.
absl::StatusOr<TreeResult> GatherAndStack(TreeArg tree, Root root, const Group& group,
                                          const CallOptions& options = {});
absl::StatusOr<TreeWork> GatherAndStackAsync(TreeArg tree, Root root, const Group& group,
                                             const CallOptions& options = {});

// The root's trees[i] goes to group rank i; layouts may differ. Only the root gives `trees`, one per rank.
// A rank with a `tree` has it written in place: its layout must be that of the tree it is sent. Else it
// gets a new one (the root: a copy of its own). The root's `tree` may lie in the memory of `trees`: what
// is sent is what they held before. Gives one tree.
absl::StatusOr<TreeResult> Scatter(std::optional<TreeArg> tree, std::vector<TreeArg> trees, Root root,
                                   const Group& group, const CallOptions& options = {});
absl::StatusOr<TreeWork> ScatterAsync(std::optional<TreeArg> tree, std::vector<TreeArg> trees,
                                      Root root, const Group& group,
                                      const CallOptions& options = {});

// trees[i] goes to group rank i; every rank gives one per rank and gets one from each, by rank, its own
// as a copy. Layouts may differ.
absl::StatusOr<TreeResult> AllToAll(std::vector<TreeArg> trees, const Group& group,
                                    const CallOptions& options = {});
absl::StatusOr<TreeWork> AllToAllAsync(std::vector<TreeArg> trees, const Group& group,
                                       const CallOptions& options = {});

// The same for plain bytes of any size, in TreeResult::bytes: one string for Broadcast and Scatter, one
// per rank for the gathers (none beside the root of GatherBytes). Only the root's `data` is looked at by
// BroadcastBytes and ScatterBytes.
// The asynchronous forms copy `data` before they return.
absl::StatusOr<TreeResult> BroadcastBytes(std::string_view data, Root root, const Group& group,
                                          const CallOptions& options = {});
absl::StatusOr<TreeWork> BroadcastBytesAsync(std::string_view data, Root root, const Group& group,
                                             const CallOptions& options = {});
absl::StatusOr<TreeResult> AllGatherBytes(std::string_view data, const Group& group,
                                          const CallOptions& options = {});
absl::StatusOr<TreeWork> AllGatherBytesAsync(std::string_view data, const Group& group,
                                             const CallOptions& options = {});
absl::StatusOr<TreeResult> GatherBytes(std::string_view data, Root root, const Group& group,
                                       const CallOptions& options = {});
absl::StatusOr<TreeWork> GatherBytesAsync(std::string_view data, Root root, const Group& group,
                                          const CallOptions& options = {});
absl::StatusOr<TreeResult> ScatterBytes(const std::vector<std::string>& data, Root root,
                                        const Group& group, const CallOptions& options = {});
absl::StatusOr<TreeWork> ScatterBytesAsync(const std::vector<std::string>& data, Root root,
                                           const Group& group, const CallOptions& options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_COLLECTIVES_H_
