// How a process ended, or is expected to end, and the names of signals.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_EXIT_STATUS_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_EXIT_STATUS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace leafpack {

// An exit code, or the signal that killed the process (then `code` is 0).
struct ExitStatus {
  int code = 0;
  int signal = 0;

  bool ok() const { return code == 0 && signal == 0; }
  // As a shell reports it: the code, or 128 + signal.
  int ShellCode() const { return signal != 0 ? 128 + signal : code; }
  // "exited with code 3", "was killed by SIGKILL".
  std::string ToString() const;

  friend bool operator==(const ExitStatus& a, const ExitStatus& b) {
    return a.code == b.code && a.signal == b.signal;
  }
  friend bool operator!=(const ExitStatus& a, const ExitStatus& b) { return !(a == b); }
};

// "3" is an exit code (0 to 255), "SIGKILL" or "KILL" a signal. InvalidArgument otherwise.
absl::StatusOr<ExitStatus> ParseExitStatus(absl::string_view text);

// What waitpid reports.
ExitStatus ExitStatusFromWait(int wait_status);

// "SIGKILL", or "signal 42" where there is no name.
std::string SignalName(int signal);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_EXIT_STATUS_H_
