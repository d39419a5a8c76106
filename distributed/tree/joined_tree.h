// JoinedTree: one tree in which the trees of all ranks come to lie, stacked or one behind another.
#ifndef LEAFPACK_DISTRIBUTED_TREE_JOINED_TREE_H_
#define LEAFPACK_DISTRIBUTED_TREE_JOINED_TREE_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "distributed/tree/collectives.h"
#include "distributed/tree/trees.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

struct JoinedTree {
  ReceivedTree tree;
  std::vector<FlatTree> parts;  // by rank: views into `tree`, of the layout of each rank's tree
};

// For `ranks` trees like `tree`: `out` if given, checked against it, else a new tree whose nodes have
// the batch sizes that follow. `tree` is that of `rank`. InvalidArgument names the path of a leaf that
// cannot be joined (Unimplemented for a sparse one), that does not fit in `out`, or that lies in memory of `out` that is another rank's.
absl::StatusOr<JoinedTree> MakeJoinedTree(const TreeArg& tree, Joining joining,
                                          const std::optional<TreeArg>& out, int rank, int ranks);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_JOINED_TREE_H_
