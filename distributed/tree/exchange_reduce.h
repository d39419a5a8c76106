// ExchangeReduce: the data phase of reduce and reduce_scatter. Ranks send each other the elements that
// the other is to reduce (DataContext::Exchange), reduce in rank order with the kernels of
// distributed/core/reduce, and, where the result belongs to a root, send it there. So each rank sends
// each byte of its input once at most, and the bits are those of all_reduce. Sparse leaves go first.
#ifndef LEAFPACK_DISTRIBUTED_TREE_EXCHANGE_REDUCE_H_
#define LEAFPACK_DISTRIBUTED_TREE_EXCHANGE_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/data_wait.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/operation.h"
#include "distributed/tree/reduce_rounds.h"
#include "distributed/tree/sparse_reduce.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/bucket/packer.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

class ExchangeReduce : public DataPhase {
 public:
  struct Options {
    ReduceOp op;
    PackOrder order = PackOrder::kLogical;
    // Leaves keep their values until Commit.
    bool stage = false;
    // Of the buckets that are open at a time; equal on all ranks. A larger bucket goes alone.
    int64_t max_in_flight_bytes = 0;
    InterruptCheck interrupt{};
    // This rank's leaves that take the result; the others are only read.
    LeafRange written;
    int rank = 0;
    int ranks = 1;
    int root = -1;  // where parts go that were reduced elsewhere; -1: nowhere
  };

  // References outlive the phase; `buckets` are those that `rounds` was made from.
  ExchangeReduce(const CallPlan& plan, const BucketPlan& buckets, std::vector<ReduceRound> rounds,
                 const FlatTree& tree, SparseReduce& sparse, std::shared_ptr<BufferPool> pool,
                 Call& call, DataContext& context, Options options, CollectiveStats& stats);

  absl::Status Run() override;
  absl::Status Commit() override;
  void Close(bool ran, bool ok) override;
  std::vector<std::string> PathsDone() const override;
  bool TreeUnchanged() const override;

 private:
  // A bucket with a round under way, or staged.
  struct Open {
    std::shared_ptr<PackedBucket> packed;
    int64_t elements_left = 0;
    bool touched = false;  // leaves that were handed out directly may hold anything
  };
  struct Flight {
    const ReduceRound* round;
    std::shared_ptr<BufferPool::Buffer> scratch;  // of what the other ranks sent, chunk by chunk
    std::unique_ptr<DataWork> work;
  };

  bool HasRoom(const ReduceRound& round) const;
  bool IsWritten(size_t bucket) const;
  absl::StatusOr<Open*> OpenBucket(size_t bucket);
  // Sends of a round what others reduce, and receives what this rank does.
  absl::Status Start(const ReduceRound& round);
  // Waits for it, reduces, and sends results to the root.
  absl::Status ReduceFront();
  // Waits for the results and closes what is complete.
  absl::Status FinishFront();
  absl::Status FinishRound(const ReduceRound& round);
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives);

  const CallPlan& plan_;
  const BucketPlan& buckets_;
  const std::vector<ReduceRound> rounds_;
  const FlatTree& tree_;
  SparseReduce& sparse_;
  Packer packer_;
  DataContext& context_;
  Call& call_;
  const Options options_;
  CollectiveStats& stats_;
  DataWaiter waiter_;
  std::map<size_t, Open> open_;
  std::deque<Flight> reducing_;    // until their result is on its way
  std::deque<Flight> forwarding_;  // until it is there
  int64_t in_flight_bytes_ = 0;    // of open buckets
  std::vector<std::pair<size_t, std::shared_ptr<PackedBucket>>> staged_;
  std::vector<size_t> done_;  // buckets whose leaves hold their result
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_EXCHANGE_REDUCE_H_
