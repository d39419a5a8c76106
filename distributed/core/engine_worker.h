// A thread that runs tasks one after the other; made by the first task.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ENGINE_WORKER_H_
#define LEAFPACK_DISTRIBUTED_CORE_ENGINE_WORKER_H_

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace leafpack {

// Thread-safe. The thread is detached and owns what it needs, so the queue may be destroyed by one of
// its own tasks.
class WorkerQueue {
 public:
  WorkerQueue() : shared_(std::make_shared<Shared>()) {}
  ~WorkerQueue();
  WorkerQueue(const WorkerQueue&) = delete;
  WorkerQueue& operator=(const WorkerQueue&) = delete;

  // Queues `task`. After Stop, or when the system refuses a thread, the caller runs it at once.
  void Run(absl::AnyInvocable<void()> task);
  // Takes no more tasks and waits until those that are queued have run, or until `until`; false when
  // some are left (they still run). From a task of its own it does not wait.
  bool Stop(absl::Time until);

 private:
  struct Shared {
    absl::Mutex mu;
    absl::CondVar changed;
    std::deque<absl::AnyInvocable<void()>> tasks ABSL_GUARDED_BY(mu);
    bool started ABSL_GUARDED_BY(mu) = false;
    bool stopped ABSL_GUARDED_BY(mu) = false;
    bool finished ABSL_GUARDED_BY(mu) = false;  // the thread is through
    std::thread::id thread ABSL_GUARDED_BY(mu);
  };
  static void Loop(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ENGINE_WORKER_H_
