// Signals as bytes in a pipe, so that a poll loop sees them; the former actions come back at the end.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_SIGNALS_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_SIGNALS_H_

#include <signal.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace leafpack {

// At most one at a time in a process.
class SignalPipe {
 public:
  // Catches SIGCHLD always, ignores SIGPIPE, and with `pass_signals` catches those that a launcher
  // passes on, but for those that the process was started to ignore (nohup).
  static absl::StatusOr<std::unique_ptr<SignalPipe>> Make(bool pass_signals);
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  ~SignalPipe();

  int fd() const { return read_; }  // to poll
  int write_fd() const { return write_; }
  // The signals that came since the last call, oldest first. Never blocks.
  std::vector<int> Take();
  // What was in force before: for child processes.
  const std::vector<std::pair<int, struct sigaction>>& former() const { return former_; }

 private:
  SignalPipe() = default;
  int read_ = -1;
  int write_ = -1;
  std::vector<std::pair<int, struct sigaction>> former_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_SIGNALS_H_
