// Jobs that are moved by the thread that waits for them, and by a thread in the background where nobody
// does. One thread at a time moves all jobs of a runner.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_RUNNER_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace leafpack::shm {

// When the thread in the background takes a job that nobody waits for: kNever, since the caller waits;
// kSoon, since the caller most often waits at once; kNow.
enum class Unattended : uint8_t { kNever, kSoon, kNow };

// What a work of torch stands for. `status` and `source` may be read once over() is true.
class Job {
 public:
  virtual ~Job() = default;
  bool over() const { return over_.load(std::memory_order_acquire); }

  std::string name;     // for errors: "all_reduce number 3"
  absl::Time deadline;  // it fails after this
  Unattended unattended = Unattended::kNow;
  // Called once, by the thread that ended it, without locks.
  std::function<void()> on_end;

  absl::Status status;
  int source = -1;  // the rank that a message came from

 private:
  friend class Runner;
  std::atomic<bool> over_{false};
};

// Thread-safe. Held by std::shared_ptr: the thread in the background keeps it alive until it ends.
class Runner : public std::enable_shared_from_this<Runner> {
 public:
  virtual ~Runner() = default;

  // Returns when `job`, which was added here, is over, or at `until`.
  void Wait(const Job& job, absl::Time until);

  // Ends all jobs with Cancelled within milliseconds, and the thread. Does not wait for them.
  void Close();

 protected:
  struct Ended {
    std::shared_ptr<Job> job;
    absl::Status status;
  };

  // Moves jobs until at least one is over, which it returns, or until `until`. One thread at a time.
  virtual std::vector<Ended> Move(absl::Time until) = 0;
  // Makes Move end all jobs.
  virtual void Abort() = 0;

  // To be called for each job, before Move can end it.
  void Count(const Job& job);
  // After it can be moved: wakes the thread where that is due.
  void Added(const Job& job);

 private:
  // Moves once, with the mutex let go.
  void Drive(absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunInBackground();

  absl::Mutex mutex_;
  absl::CondVar changed_;  // a job is over, or nobody drives
  absl::CondVar wanted_;   // the thread in the background should look
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Jobs that are not over; of those the ones for the thread; of those the ones that it takes at once.
  int jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  int unattended_ ABSL_GUARDED_BY(mutex_) = 0;
  int urgent_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time since_ ABSL_GUARDED_BY(mutex_);  // when unattended_ last became 1
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_RUNNER_H_
