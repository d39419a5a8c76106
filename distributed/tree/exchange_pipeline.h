// ExchangePipeline: moves whole trees between ranks in steps of one exchange each, packing and unpacking
// while other steps are under way.
#ifndef LEAFPACK_DISTRIBUTED_TREE_EXCHANGE_PIPELINE_H_
#define LEAFPACK_DISTRIBUTED_TREE_EXCHANGE_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/tree/data_wait.h"
#include "distributed/tree/tree_plan.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/bucket/packer.h"
#include "tensordict/flat_tree.h"

namespace leafpack::internal {

// One tree on its way to or from a peer; what it points to outlives the pipeline.
struct TreeTransfer {
  int peer = 0;
  const LayoutPlan* plan = nullptr;
  const FlatTree* tree = nullptr;
};

// Used by one thread, for one call.
class ExchangePipeline {
 public:
  struct Options {
    // Received trees keep their values until Commit.
    bool stage = false;
    int64_t max_in_flight_bytes = 0;  // packed; a step that has more goes alone
    // Asked about every kWaitSlice; true ends the run with Cancelled.
    InterruptCheck interrupt{};
  };

  // All references outlive the pipeline.
  ExchangePipeline(Packer& packer, Call& call, DataContext& context, Options options,
                   CollectiveStats& stats)
      : packer_(packer),
        call_(call),
        context_(context),
        options_(std::move(options)),
        stats_(stats),
        waiter_(call, options_.interrupt, stats.communicate) {}

  // Sends and receives these bytes (by rising peer) and waits. Sizes are as the ranks agreed.
  struct Bytes {
    int peer = 0;
    void* data = nullptr;
    size_t size = 0;
  };
  absl::Status ExchangeBytes(const std::vector<Bytes>& sends, const std::vector<Bytes>& receives,
                             std::shared_ptr<const void> keep_alive);

  // Moves the trees, by rising peer and each peer once, in `steps` steps (the most that any rank has).
  // Leaves the turnstile when all is enqueued. After an error nothing more is written by this thread.
  absl::Status Run(const std::vector<TreeTransfer>& sends,
                   const std::vector<TreeTransfer>& receives, size_t steps);

  // Moves one tree from `root` to all others, of `ranks` > 2 (see spread_schedule.h): from `tree` on the
  // root, into it elsewhere. Otherwise as Run; some runs of about 4 MiB are in flight at least.
  absl::Status Spread(const LayoutPlan& plan, const FlatTree& tree, int rank, int ranks, int root);

  // With `stage`, after all ranks got through: writes what was received.
  absl::Status Commit();

  // After an error, when the epoch was aborted: waits (bounded) until the backend has let go of memory.
  void Settle();

  // Received leaves that hold their values, by tree; and whether a leaf may hold something between.
  const std::vector<std::pair<const FlatTree*, size_t>>& leaves_done() const { return done_; }
  bool wrote() const { return wrote_; }

 private:
  struct Received {
    const TreeTransfer* transfer;
    size_t bucket;
    std::shared_ptr<PackedBucket> packed;
  };
  struct Step {
    std::unique_ptr<DataWork> work;
    std::vector<Received> received;
    int64_t owned_bytes = 0;
  };
  // What was packed for one peer serves all that are sent the same tree.
  using PackedOnce = std::map<std::pair<const FlatTree*, size_t>, std::shared_ptr<PackedBucket>>;

  // What a step may pack at most.
  static int64_t MostPacked(const std::vector<TreeTransfer>& sends,
                            const std::vector<TreeTransfer>& receives, size_t step);
  absl::Status Enqueue(const std::vector<TreeTransfer>& sends,
                       const std::vector<TreeTransfer>& receives, size_t step);
  // The buckets of one step, to be sent or to be received into.
  absl::StatusOr<std::shared_ptr<PackedBucket>> ToSend(const TreeTransfer& send, size_t bucket,
                                                       Step& step);
  absl::StatusOr<std::shared_ptr<PackedBucket>> ToReceive(const TreeTransfer& receive,
                                                          size_t bucket, Step& step);
  absl::Status Start(Step step, std::vector<Transfer> sends, std::vector<Transfer> receives);
  absl::Status FinishFront();
  absl::Status FinishWhatIsDone();
  absl::Status Write(const Received& received);

  Packer& packer_;
  Call& call_;
  DataContext& context_;
  const Options options_;
  CollectiveStats& stats_;
  DataWaiter waiter_;
  std::deque<Step> in_flight_;
  int64_t in_flight_bytes_ = 0;  // of owned buffers
  std::vector<Received> staged_;
  TreeTransfer spread_;
  std::vector<std::pair<const FlatTree*, size_t>> done_;
  std::vector<std::unique_ptr<DataWork>> bytes_;  // an exchange of bytes that failed
  bool wrote_ = false;
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_EXCHANGE_PIPELINE_H_
