#include "distributed/core/channel/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack {

absl::StatusOr<std::thread> StartThread(const char* name, absl::AnyInvocable<void() &&> body) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);  // a new thread inherits it
  absl::StatusOr<std::thread> result = absl::UnavailableError("");
  try {
    result = std::thread([run = std::move(body)]() mutable { std::move(run)(); });
    pthread_setname_np(result->native_handle(), name);
  } catch (const std::system_error& error) {
    result = absl::UnavailableError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return result;
}

}  // namespace leafpack
