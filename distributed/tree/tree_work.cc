#include "distributed/tree/tree_work.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/interrupted.h"
#include "distributed/tree/device_work.h"
#include "distributed/tree/tree_work_state.h"

namespace leafpack {
namespace internal {

OperationRun::OperationRun(Group group, std::shared_ptr<TreeOperation> operation)
    : group_(std::move(group)),
      operation_(std::move(operation)),
      bucket_done_(operation_->num_buckets(), false) {}

std::optional<absl::Status> OperationRun::WaitUntil(absl::Time until,
                                                    const InterruptCheck& interrupt,
                                                    bool may_drive) {
  if (forked()) return ProcessCheck::ForkedError();
  bool cancelled = false;
  mutex_.Lock();
  while (!result_.has_value()) {
    if (may_drive && !driven_) {
      driven_ = true;
      mutex_.Unlock();
      std::optional<absl::Status> result = operation_->RunUntil(until, interrupt);
      mutex_.Lock();
      driven_ = false;
      result_ = std::move(result);
      changed_.SignalAll();
      break;
    }
    const absl::Time now = absl::Now();
    if (now >= until) break;
    changed_.WaitWithDeadline(&mutex_, std::min(until, now + kWaitSlice));
    if (result_.has_value() || cancelled || !interrupt) continue;
    mutex_.Unlock();
    if (IsInterrupted(interrupt)) {
      operation_->Cancel();
      cancelled = true;
      until = absl::InfiniteFuture();  // the end is near: the call's own deadline bounds it
    }
    mutex_.Lock();
  }
  std::optional<absl::Status> result = result_;
  mutex_.Unlock();
  return result;
}

std::optional<absl::Status> OperationRun::WaitForBucket(size_t index, absl::Time until,
                                                        const InterruptCheck& interrupt,
                                                        bool may_drive) {
  if (forked()) return ProcessCheck::ForkedError();
  if (may_drive) {
    if (IsBucketDone(index)) return absl::OkStatus();
    return WaitUntil(until, interrupt, may_drive);
  }
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const absl::Time now = absl::Now();
      if (!result_.has_value() && !bucket_done_[index] && now < until) {
        changed_.WaitWithDeadline(&mutex_, std::min(until, now + kWaitSlice));
      }
      if (bucket_done_[index]) return absl::OkStatus();
      if (result_.has_value()) return result_;
      if (absl::Now() >= until) return std::nullopt;
    }
    if (interrupt && IsInterrupted(interrupt)) {
      operation_->Cancel();
      return WaitUntil(absl::InfiniteFuture(), nullptr, may_drive);
    }
  }
}

bool OperationRun::IsDone(bool may_drive) {
  if (forked()) return true;
  {
    absl::MutexLock lock(&mutex_);
    if (result_.has_value()) return true;
    if (!may_drive || driven_) return false;
  }
  return WaitUntil(absl::InfinitePast(), nullptr, may_drive).has_value();
}

bool OperationRun::IsBucketDone(size_t index) {
  if (forked()) return true;
  absl::MutexLock lock(&mutex_);
  return result_.has_value() || bucket_done_[index];
}

void OperationRun::MarkBucketDone(size_t index) {
  absl::MutexLock lock(&mutex_);
  bucket_done_[index] = true;
  changed_.SignalAll();
}

void OperationRun::DriveInWorker(const std::shared_ptr<OperationRun>& run) {
  // Backends that enqueue on devices do so after what is on the streams of the thread that made the call.
  CallerStreams streams;
  if (run->group_.engine().backend().MustEnqueueInCallerThread()) streams = CallerStreams::Capture();
  run->group_.engine().RunInWorker([run, streams = std::move(streams)] {
    const CallerStreams::Guard on_callers_streams(streams);
    (void)run->WaitUntil(absl::InfiniteFuture(), nullptr, /*may_drive=*/true);
    run->TellGroupIfNobodyAsked();
  });
}

void OperationRun::Cancel() {
  if (!forked()) operation_->Cancel();
}

void OperationRun::MarkObserved() {
  if (forked()) return;
  absl::MutexLock lock(&mutex_);
  observed_ = true;
}

void OperationRun::Abandon() {
  {
    absl::MutexLock lock(&mutex_);
    abandoned_ = true;
  }
  TellGroupIfNobodyAsked();
}

const TreeResult& OperationRun::Result() {
  static const TreeResult* const kNothing = new TreeResult();
  if (forked()) return *kNothing;
  absl::MutexLock lock(&mutex_);
  return result_.has_value() && result_->ok() ? operation_->result() : *kNothing;
}

void OperationRun::TellGroupIfNobodyAsked() {
  absl::Status error;
  {
    absl::MutexLock lock(&mutex_);
    if (!abandoned_ || observed_ || !result_.has_value() || result_->ok()) return;
    observed_ = true;
    error = *result_;
  }
  group_.engine().RememberError(std::move(error));
}

TreeWork TreeWorkState::Start(std::shared_ptr<OperationRun> run, bool in_worker) {
  if (in_worker) OperationRun::DriveInWorker(run);
  return TreeWork(std::make_shared<TreeWorkState>(std::move(run), in_worker));
}

TreeWorkState::~TreeWorkState() {
  if (run_->forked()) {
    // To end the call would take its locks. It is the parent's: the child leaves its copy alone.
    new std::shared_ptr<OperationRun>(run_);
    return;
  }
  if (!in_worker_ && !run_->IsDone(/*may_drive=*/false)) OperationRun::DriveInWorker(run_);
  run_->Abandon();
}

absl::Status TreeWorkState::Wait(std::optional<size_t> bucket, absl::Duration timeout,
                                 const InterruptCheck& interrupt) {
  const absl::Time until = absl::Now() + timeout;
  const std::optional<absl::Status> result =
      bucket.has_value() ? run_->WaitForBucket(*bucket, until, interrupt, may_drive())
                         : run_->WaitUntil(until, interrupt, may_drive());
  if (result.has_value()) {
    run_->MarkObserved();
    return *result;
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "the collective is not over after a wait of ", absl::FormatDuration(timeout),
      "; it goes on, and its own deadline still holds"));
}

}  // namespace internal

absl::Status TreeWork::Wait(absl::Duration timeout, const InterruptCheck& interrupt) const {
  return state_->Wait(std::nullopt, timeout, interrupt);
}

bool TreeWork::IsDone() const { return state_->run().IsDone(state_->may_drive()); }

void TreeWork::Cancel() const { state_->run().Cancel(); }

size_t TreeWork::size() const { return state_->run().operation().num_buckets(); }

BucketWork TreeWork::bucket(size_t index) const { return BucketWork(state_, index); }

std::vector<std::string> TreeWork::skipped_paths() const {
  return state_->run().operation().skipped_paths();
}

CollectiveStats TreeWork::stats() const { return state_->run().operation().stats(); }

const TreeResult& TreeWork::result() const { return state_->run().Result(); }

int64_t BucketWork::bytes() const { return state_->run().operation().bucket_bytes(index_); }

std::vector<std::string> BucketWork::paths() const {
  return state_->run().operation().bucket_paths(index_);
}

bool BucketWork::IsDone() const { return state_->run().IsBucketDone(index_); }

absl::Status BucketWork::Wait(absl::Duration timeout, const InterruptCheck& interrupt) const {
  return state_->Wait(index_, timeout, interrupt);
}

}  // namespace leafpack
