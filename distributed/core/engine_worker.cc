#include "distributed/core/engine_worker.h"

#include <memory>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/core/channel/thread.h"

namespace leafpack {

WorkerQueue::~WorkerQueue() {
  absl::MutexLock lock(&shared_->mu);
  shared_->stopped = true;
  shared_->changed.SignalAll();
}

void WorkerQueue::Run(absl::AnyInvocable<void()> task) {
  {
    absl::MutexLock lock(&shared_->mu);
    if (!shared_->stopped) {
      if (!shared_->started) {
        absl::StatusOr<std::thread> thread =
            StartThread("leafpack-work", [shared = shared_] { Loop(shared); });
        if (thread.ok()) thread->detach();
        shared_->started = thread.ok();
      }
      if (shared_->started) {
        shared_->tasks.push_back(std::move(task));
        shared_->changed.SignalAll();
        return;
      }
    }
  }
  task();
}

bool WorkerQueue::Stop(absl::Time until) {
  absl::MutexLock lock(&shared_->mu);
  shared_->stopped = true;
  shared_->changed.SignalAll();
  if (shared_->thread == std::this_thread::get_id()) return true;
  while (shared_->started && !shared_->finished) {
    if (shared_->changed.WaitWithDeadline(&shared_->mu, until)) {
      return !shared_->started || shared_->finished;
    }
  }
  return true;
}

void WorkerQueue::Loop(const std::shared_ptr<Shared>& shared) {
  absl::AnyInvocable<void()> task;
  shared->mu.Lock();
  shared->thread = std::this_thread::get_id();
  while (true) {
    while (shared->tasks.empty() && !shared->stopped) shared->changed.Wait(&shared->mu);
    if (shared->tasks.empty()) break;
    task = std::move(shared->tasks.front());
    shared->tasks.pop_front();
    shared->mu.Unlock();
    std::move(task)();
    task = nullptr;  // what it held is freed here, without the lock
    shared->mu.Lock();
  }
  shared->finished = true;
  shared->changed.SignalAll();
  shared->mu.Unlock();
}

}  // namespace leafpack
