#include "distributed/backends/shm/torch/runner.h"

#include <thread>

#include "absl/time/clock.h"

namespace leafpack::shm {
namespace {

// How long the thread leaves a job to its caller, who most often waits for it at once.
constexpr absl::Duration kGrace = absl::Milliseconds(1);
// How long it stays awake after the last job: waking it costs more than its looks.
constexpr absl::Duration kLinger = absl::Milliseconds(20);
constexpr absl::Duration kTurn = absl::Milliseconds(50);

}  // namespace

void Runner::Count(const Job& job) {
  absl::MutexLock lock(&mutex_);
  ++jobs_;
  if (job.unattended == Unattended::kNever) return;
  if (unattended_++ == 0) since_ = absl::Now();
  if (job.unattended == Unattended::kNow) ++urgent_;
}

void Runner::Added(const Job& job) {
  absl::MutexLock lock(&mutex_);
  if (closed_) {
    // Close found it not there yet.
    Abort();
    if (!driving_) Drive(absl::Now());
    return;
  }
  if (job.unattended == Unattended::kNever) return;
  if (!started_) {
    started_ = true;
    // Detached: it must not be waited for where Python's lock is held, which a callback may want.
    std::thread([self = shared_from_this()] { self->RunInBackground(); }).detach();
  } else if (job.unattended == Unattended::kNow || asleep_) {
    wanted_.Signal();
  }
}

void Runner::Drive(absl::Time until) {
  driving_ = true;
  mutex_.Unlock();
  std::vector<Ended> ended = Move(until);
  mutex_.Lock();
  driving_ = false;
  for (Ended& end : ended) {
    --jobs_;
    if (end.job->unattended != Unattended::kNever) --unattended_;
    if (end.job->unattended == Unattended::kNow) --urgent_;
    end.job->status = std::move(end.status);
    end.job->over_.store(true, std::memory_order_release);
  }
  changed_.SignalAll();
  if (ended.empty()) return;
  mutex_.Unlock();
  for (Ended& end : ended) {
    if (const std::function<void()> callback = std::exchange(end.job->on_end, nullptr)) callback();
  }
  ended.clear();
  mutex_.Lock();
}

void Runner::Wait(const Job& job, absl::Time until) {
  if (job.over()) return;
  absl::MutexLock lock(&mutex_);
  while (!job.over() && absl::Now() < until) {
    if (!driving_) {
      Drive(until);
    } else {
      changed_.WaitWithDeadline(&mutex_, until);
    }
  }
}

void Runner::RunInBackground() {
  absl::MutexLock lock(&mutex_);
  absl::Time active = absl::Now();
  while (!closed_ || unattended_ > 0) {
    const absl::Time now = absl::Now();
    if (unattended_ > 0) active = now;
    if (unattended_ > 0 && !driving_ && (urgent_ > 0 || closed_ || now >= since_ + kGrace)) {
      Drive(now + kTurn);
    } else if (now < active + kLinger) {
      wanted_.WaitWithTimeout(&mutex_, kGrace);
    } else {
      asleep_ = true;
      wanted_.Wait(&mutex_);
      asleep_ = false;
      active = absl::Now();
    }
  }
}

void Runner::Close() {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  closed_ = true;
  Abort();
  wanted_.Signal();
}

}  // namespace leafpack::shm
