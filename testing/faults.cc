#include "testing/faults.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace leafpack {
namespace {

// The state letter of a process in /proc, or 0.
char StateOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '\0' : stat[end + 2];
}

int CountEntries(const char* directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

}  // namespace

void KillSelf(int number) {
  signal(number, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, number);
  pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  kill(getpid(), number);
  while (true) pause();  // another thread may take the signal a moment later
}

void StopSelfFor(absl::Duration duration) {
  const pid_t self = getpid();
  const timespec wait = absl::ToTimespec(duration);
  const pid_t helper = fork();
  PCHECK(helper >= 0);
  if (helper == 0) {
    // Only async-signal-safe calls: the process may have threads.
    timespec rest = wait;
    while (nanosleep(&rest, &rest) != 0) {
    }
    kill(self, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
  kill(helper, SIGKILL);  // somebody else may have continued this process
  waitpid(helper, nullptr, 0);
}

Later::Later(absl::Duration delay, std::function<void()> action)
    : thread_([delay, action = std::move(action)] {
        absl::SleepFor(delay);
        action();
      }) {}

bool IsAlive(pid_t pid) {
  const char state = StateOf(pid);
  return state != '\0' && state != 'Z' && state != 'X';
}

bool IsStopped(pid_t pid) { return StateOf(pid) == 'T'; }

int CountDescriptors() { return CountEntries("/proc/self/fd") - 1; }  // less the folder's own

int CountThreads() { return CountEntries("/proc/self/task"); }

}  // namespace leafpack
