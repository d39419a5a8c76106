#include "distributed/launch/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace leafpack {
namespace {

std::atomic<int> signal_pipe{-1};

void WriteSignal(int number) {
  const int saved = errno;
  const unsigned char byte = static_cast<unsigned char>(number);
  (void)!write(signal_pipe.load(std::memory_order_relaxed), &byte, 1);
  errno = saved;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalPipe>> SignalPipe::Make(bool pass_signals) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  int none = -1;
  if (!signal_pipe.compare_exchange_strong(none, ends[1])) {
    close(ends[0]);
    close(ends[1]);
    return absl::FailedPreconditionError("a launch is already running in this process");
  }
  std::unique_ptr<SignalPipe> result(new SignalPipe());
  result->read_ = ends[0];
  result->write_ = ends[1];

  std::vector<int> caught = {SIGCHLD};
  if (pass_signals) {
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
      caught.push_back(number);
    }
  }
  struct sigaction action, former;
  std::memset(&action, 0, sizeof(action));
  sigfillset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (int number : caught) {
    if (number != SIGCHLD && sigaction(number, nullptr, &former) == 0 &&
        former.sa_handler == SIG_IGN) {
      continue;
    }
    action.sa_handler = WriteSignal;
    if (sigaction(number, &action, &former) == 0) result->former_.emplace_back(number, former);
  }
  action.sa_handler = SIG_IGN;
  if (sigaction(SIGPIPE, &action, &former) == 0) result->former_.emplace_back(SIGPIPE, former);
  return result;
}

SignalPipe::~SignalPipe() {
  for (const auto& [number, action] : former_) sigaction(number, &action, nullptr);
  signal_pipe.store(-1);
  close(read_);
  close(write_);
}

std::vector<int> SignalPipe::Take() {
  std::vector<int> signals;
  unsigned char bytes[64];
  ssize_t n;
  while ((n = read(read_, bytes, sizeof(bytes))) > 0) signals.insert(signals.end(), bytes, bytes + n);
  return signals;
}

}  // namespace leafpack
