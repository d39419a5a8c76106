#include "distributed/launch/exit_status.h"

#include <sys/wait.h>

#include <csignal>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace leafpack {
namespace {

struct NamedSignal {
  int number;
  absl::string_view name;  // without SIG
};

constexpr NamedSignal kSignals[] = {
    {SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGQUIT, "QUIT"}, {SIGILL, "ILL"},   {SIGTRAP, "TRAP"},
    {SIGABRT, "ABRT"}, {SIGBUS, "BUS"},   {SIGFPE, "FPE"},   {SIGKILL, "KILL"}, {SIGUSR1, "USR1"},
    {SIGSEGV, "SEGV"}, {SIGUSR2, "USR2"}, {SIGPIPE, "PIPE"}, {SIGALRM, "ALRM"}, {SIGTERM, "TERM"},
    {SIGCHLD, "CHLD"}, {SIGCONT, "CONT"}, {SIGSTOP, "STOP"}, {SIGTSTP, "TSTP"}, {SIGTTIN, "TTIN"},
    {SIGTTOU, "TTOU"}, {SIGXCPU, "XCPU"}, {SIGXFSZ, "XFSZ"}, {SIGSYS, "SYS"},
};

}  // namespace

std::string SignalName(int signal) {
  for (const NamedSignal& s : kSignals) {
    if (s.number == signal) return absl::StrCat("SIG", s.name);
  }
  return absl::StrCat("signal ", signal);
}

std::string ExitStatus::ToString() const {
  if (signal != 0) return absl::StrCat("was killed by ", SignalName(signal));
  return absl::StrCat("exited with code ", code);
}

absl::StatusOr<ExitStatus> ParseExitStatus(absl::string_view text) {
  int code = 0;
  if (absl::SimpleAtoi(text, &code)) {
    if (code < 0 || code > 255) {
      return absl::InvalidArgumentError(
          absl::StrCat("exit code ", code, " is not between 0 and 255"));
    }
    return ExitStatus{code, 0};
  }
  const absl::string_view name = absl::StripPrefix(text, "SIG");
  for (const NamedSignal& s : kSignals) {
    if (s.name == name) return ExitStatus{0, s.number};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is neither an exit code nor the name of a signal"));
}

ExitStatus ExitStatusFromWait(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {0, WTERMSIG(wait_status)};
  return {WEXITSTATUS(wait_status), 0};
}

}  // namespace leafpack
