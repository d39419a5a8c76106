// Faults that a rank brings upon itself or another one, for tests.
#ifndef LEAFPACK_TESTING_FAULTS_H_
#define LEAFPACK_TESTING_FAULTS_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <thread>

#include "absl/time/time.h"

namespace leafpack {

// Ends this process at once by a signal, without destructors or exit handlers. Ends it even where
// the signal is caught.
[[noreturn]] void KillSelf(int signal = SIGKILL);

// Stops this process (SIGSTOP); a helper process continues it after `duration`, if nobody did before
// (SIGCONT). Returns then.
void StopSelfFor(absl::Duration duration);

// Does something, a fault as a rule, after a time, from a thread of its own. The destructor waits
// for it.
class Later {
 public:
  Later(absl::Duration delay, std::function<void()> action);
  Later(const Later&) = delete;
  Later& operator=(const Later&) = delete;
  ~Later() { thread_.join(); }

 private:
  std::thread thread_;
};

// True while `pid` is a process that has not ended (a zombie has).
bool IsAlive(pid_t pid);

// True while `pid` is stopped by a signal.
bool IsStopped(pid_t pid);

// Open descriptors of this process, and its threads: for tests that nothing is left behind.
int CountDescriptors();
int CountThreads();

}  // namespace leafpack

#endif  // LEAFPACK_TESTING_FAULTS_H_
