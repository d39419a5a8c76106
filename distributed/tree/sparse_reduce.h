// SparseReduce: the sparse COO leaves of one collective that reduces. They are in no bucket: the ranks
// tell each other how many elements each has, then send them to the rank that takes the result (to all,
// in an all-reduce), which adds them up in rank order. An index that a rank does not have counts as
// zero there, so the bits are those of an all-reduce of the dense tensors.
#ifndef LEAFPACK_DISTRIBUTED_TREE_SPARSE_REDUCE_H_
#define LEAFPACK_DISTRIBUTED_TREE_SPARSE_REDUCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/data_wait.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

// Used by one thread. References outlive it.
class SparseReduce {
 public:
  // `owner_of`: the rank that takes the result of a leaf, -1: all ranks do.
  SparseReduce(const CallPlan& plan, const FlatTree& tree, const ReduceOp& op, int rank, int ranks,
               const std::function<int(size_t leaf)>& owner_of);

  // Copies this rank's elements, those of one index added up, times its own factor for kPremulSum. An
  // error names the path. Before the call is posted.
  absl::Status Collect();

  // Exchanges the elements and reduces those whose result this rank takes. All ranks call it.
  absl::Status Run(DataContext& context, DataWaiter& waiter);

  // Reduces what is here: all of it, with one rank.
  absl::Status ReduceAll();

  // Writes the results that this rank takes into the leaves: each stays the tensor object that it is, with new indices
  // and values, coalesced.
  absl::Status Write();

  // Printable paths of the leaves that hold their result, aliases too.
  std::vector<std::string> PathsDone() const;
  bool touched() const { return touched_; }

 private:
  // The elements of one leaf on one rank: positions are flat indices into the sparse dimensions, strictly
  // rising; values are one block of the dense dimensions for each.
  struct Part {
    std::vector<int64_t> positions;
    std::vector<char> values;
  };
  struct Shape {
    size_t leaf = 0;
    int owner = -1;           // who takes the result; -1: all
    at::ScalarType dtype = at::ScalarType::Undefined;
    int64_t positions = 1;    // of all sparse dimensions
    int64_t block = 1;        // elements
    int64_t block_bytes = 0;
  };
  // Of all ranks: parts[rank][i]. Views share it, so it lives until the backend is through.
  using Parts = std::vector<std::vector<Part>>;

  static bool GoesTo(const Shape& shape, int rank) {
    return shape.owner < 0 || shape.owner == rank;
  }
  absl::Status CollectLeaf(const Shape& shape, Part& part);
  absl::Status ExchangeCounts(DataContext& context, DataWaiter& waiter);
  absl::Status ExchangeParts(DataContext& context, DataWaiter& waiter);
  absl::Status CheckReceived() const;
  absl::Status ReduceLeaf(size_t index);
  absl::Status AtLeaf(const Shape& shape, const absl::Status& status) const;

  const CallPlan& plan_;
  const FlatTree& tree_;
  const ReduceOp op_;
  const int rank_;
  const int ranks_;
  std::vector<Shape> shapes_;
  std::shared_ptr<Parts> parts_;
  std::vector<Part> results_;
  size_t through_ = 0;        // leaves that Write is through with
  bool touched_ = false;
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_SPARSE_REDUCE_H_
