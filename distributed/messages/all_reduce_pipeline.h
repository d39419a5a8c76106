// All-reduce of leaves by direct exchange, in stages, on a thread of its own.
//
// The elements of an operation are cut into stages, a stage into one part per rank. Every rank sends part
// q of its data to rank q, reduces its own part in rank order (distributed/core/reduce), and sends the
// result to the others. A part that lies in a row is sent from where it is and received into it, and so is
// one of many leaves where the link takes that (Schedule::min_run_bytes); else it is gathered right before
// it is sent, and what came scattered as soon as it is there, while it is in the processor's cache. The own
// part is reduced straight from the leaves. That moves as many bytes as Gloo's own ring does, in two steps
// in place of 2 (P - 1), and it is the faster of the two on one host (docs/performance.md). Since each
// element is reduced by one rank, in rank order, with the kernels that every leafpack engine uses, every
// dtype and op is exact, all ranks get equal bits, and the bits do not depend on how leaves are bucketed.
// Some stages are under way at once, so that messages of one overlap with the reduction of another.
#ifndef LEAFPACK_DISTRIBUTED_MESSAGES_ALL_REDUCE_PIPELINE_H_
#define LEAFPACK_DISTRIBUTED_MESSAGES_ALL_REDUCE_PIPELINE_H_

#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/messages/message_link.h"
#include "distributed/messages/view_sequence.h"
#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::messages {

// The state that a work handle shares with the thread. Thread-safe.
class Operation {
 public:
  Operation(absl::Span<const LeafView> views, ReduceOpKind op)
      : op_(op), views_(std::make_unique<ViewSequence>(views)) {}

  bool IsDone() const;
  // True when it is over, false when it still runs after `slice`, an error when it failed.
  absl::StatusOr<bool> WaitFor(absl::Duration slice) const;

 private:
  friend class AllReducePipeline;
  // The first status counts; false for a later one. Lets go of the memory.
  bool Finish(absl::Status status);

  const ReduceOpKind op_;
  std::unique_ptr<const ViewSequence> views_;  // of the thread, until done
  int64_t stages_left_ = 0;                    // of the thread

  mutable absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class AllReducePipeline {
 public:
  // `link` has `size` > 1 ranks and must outlive the pipeline.
  AllReducePipeline(MessageLink* link, int rank, int size);
  // Ends what is under way with Cancelled.
  ~AllReducePipeline();

  // Queues an operation; see DataContext::AllReduce. All ranks submit the same operations in the same
  // order. After Abort or a
  // failure it is done at once, with that error. Thread-safe.
  std::shared_ptr<Operation> Submit(absl::Span<const LeafView> views, ReduceOpKind op);

  // Ends every operation with an error soon; see DataContext::Abort. Thread-safe.
  void Abort();

 private:
  struct Portion;
  struct Stage;
  // A block of memory that is used again.
  struct Scratch {
    struct Free {
      void operator()(char* block) const { std::free(block); }
    };
    std::unique_ptr<char, Free> data;
    int64_t bytes = 0;
    // At least `needed` bytes, with undefined contents; null if there is no memory.
    char* Get(int64_t needed);
  };

  void Loop();
  absl::Status Start(Stage& stage);
  absl::Status SendParts(Stage& stage);
  absl::Status ReceiveResults(Stage& stage);
  absl::Status Reduce(Stage& stage);
  absl::Status ReduceOwnPart(Stage& stage);
  absl::Status Complete(Stage& stage);
  void Finish(Operation& operation, const absl::Status& status);
  // Ends everything with `status`.
  void DropAll(const absl::Status& status);
  // Cuts the views of an operation into stages.
  void Split(const std::shared_ptr<Operation>& operation);

  const int rank_;
  const int size_;
  MessageLink* const link_;

  // Of the thread alone.
  uint32_t next_tag_ = 0;
  std::deque<std::unique_ptr<Stage>> waiting_;
  std::deque<std::unique_ptr<Stage>> active_;
  std::vector<std::array<Scratch, 2>> scratch_;  // free ones, of stages that are complete

  absl::Mutex mutex_;
  std::deque<std::shared_ptr<Operation>> submitted_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;  // operations that are not done
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace leafpack::messages

#endif  // LEAFPACK_DISTRIBUTED_MESSAGES_ALL_REDUCE_PIPELINE_H_
