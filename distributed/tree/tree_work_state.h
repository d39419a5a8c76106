// What stands behind TreeWork: one collective in flight, who drives it to its end, and what came out.
#ifndef LEAFPACK_DISTRIBUTED_TREE_TREE_WORK_STATE_H_
#define LEAFPACK_DISTRIBUTED_TREE_TREE_WORK_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/core/process_check.h"
#include "distributed/tree/tree_work.h"

namespace leafpack::internal {

// A collective that was posted. Driven by one thread at a time.
class TreeOperation {
 public:
  virtual ~TreeOperation() = default;
  // Drives the call to its end, or gives up waiting (not the call) at `until`, in the phase before
  // data only: nullopt then. After an engaged result it is not called again.
  virtual std::optional<absl::Status> RunUntil(absl::Time until,
                                               const InterruptCheck& interrupt) = 0;
  virtual void Cancel() = 0;  // from any thread
  virtual CollectiveStats stats() const = 0;     // after the end
  virtual const TreeResult& result() const = 0;  // after an end without an error
  // Messages that can be waited for one by one.
  virtual size_t num_buckets() const { return 0; }
  virtual int64_t bucket_bytes(size_t) const { return 0; }
  virtual std::vector<std::string> bucket_paths(size_t) const { return {}; }
  virtual std::vector<std::string> skipped_paths() const { return {}; }
};

// Shared by the handle and, where it drives, the group's worker. Thread-safe.
//
// In a child forked since it was made there is no worker, and a lock may be held by a thread that the
// child does not have: waits fail there, IsDone is true so that nobody polls for ever,
// and the rest does nothing.
class OperationRun {
 public:
  OperationRun(Group group, std::shared_ptr<TreeOperation> operation);

  bool forked() const { return process_.forked(); }

  // Waits for the end; with `may_drive` this thread drives the operation if no other does. nullopt: not
  // over at `until`. `interrupt` true cancels the operation and then waits for its end, so that no leaf
  // is written after the return.
  std::optional<absl::Status> WaitUntil(absl::Time until, const InterruptCheck& interrupt,
                                        bool may_drive);
  // The same for one bucket: OK as soon as its leaves hold their result.
  std::optional<absl::Status> WaitForBucket(size_t index, absl::Time until,
                                            const InterruptCheck& interrupt, bool may_drive);
  // Whether it is over, or would be without blocking if this thread drove it. Never blocks.
  bool IsDone(bool may_drive);
  bool IsBucketDone(size_t index);
  void MarkBucketDone(size_t index);

  // Drives the operation in the group's worker.
  static void DriveInWorker(const std::shared_ptr<OperationRun>& run);

  // The caller has told its user the result.
  void MarkObserved();
  void Cancel();
  // No handle is left: the group's next call returns the error of an operation that nobody observed.
  void Abandon();

  // What the operation gives; nothing before it ended well.
  const TreeResult& Result();

  TreeOperation& operation() { return *operation_; }

 private:
  void TellGroupIfNobodyAsked();

  const Group group_;
  const std::shared_ptr<TreeOperation> operation_;
  const ProcessCheck process_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool driven_ ABSL_GUARDED_BY(mutex_) = false;    // a thread is in RunUntil
  bool observed_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> result_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> bucket_done_ ABSL_GUARDED_BY(mutex_);
};

// Lives as long as a handle does.
class TreeWorkState {
 public:
  // `in_worker`: the group's worker drives the run. Else whoever waits does, and the worker finishes
  // it if the last handle is dropped first.
  static TreeWork Start(std::shared_ptr<OperationRun> run, bool in_worker);

  TreeWorkState(std::shared_ptr<OperationRun> run, bool in_worker)
      : run_(std::move(run)), in_worker_(in_worker) {}
  ~TreeWorkState();

  OperationRun& run() { return *run_; }
  bool may_drive() const { return !in_worker_; }

  // Waits for all, or for one bucket, and words a time-out.
  absl::Status Wait(std::optional<size_t> bucket, absl::Duration timeout,
                    const InterruptCheck& interrupt);

 private:
  const std::shared_ptr<OperationRun> run_;
  const bool in_worker_;
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_TREE_WORK_STATE_H_
