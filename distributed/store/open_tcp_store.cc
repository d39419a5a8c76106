#include "distributed/store/open_tcp_store.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "distributed/core/channel/thread.h"
#include "distributed/core/interrupted.h"
#include "distributed/store/c10d_errors.h"

namespace leafpack::store_internal {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// How often `interrupt` is asked.
constexpr absl::Duration kAskAgain = absl::Milliseconds(20);

// Shared with the thread, which may outlive the call.
struct Opening {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;
  absl::StatusOr<StorePtr> store ABSL_GUARDED_BY(mutex) = absl::UnknownError("not opened");
};

}  // namespace

absl::StatusOr<StorePtr> OpenTcpStore(const std::string& host,
                                      const c10d::TCPStoreOptions& options, std::string_view what,
                                      absl::Duration timeout, const InterruptCheck& interrupt) {
  const absl::Time deadline = absl::Now() + timeout;
  auto opening = std::make_shared<Opening>();
  absl::StatusOr<std::thread> thread =
      StartThread("leafpack-store", [opening, host, options, what = std::string(what)] {
        absl::StatusOr<StorePtr> store = CatchC10d(what, [&]() -> absl::StatusOr<StorePtr> {
          return c10::make_intrusive<c10d::TCPStore>(host, options);
        });
        absl::MutexLock lock(&opening->mutex);
        opening->store = std::move(store);
        opening->done = true;
      });
  if (!thread.ok()) return thread.status();
  thread->detach();
  absl::MutexLock lock(&opening->mutex);
  while (!opening->done) {
    const absl::Time until = interrupt ? std::min(deadline, absl::Now() + kAskAgain) : deadline;
    if (opening->mutex.AwaitWithDeadline(absl::Condition(&opening->done), until)) break;
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": no answer within ", absl::FormatDuration(timeout)));
    }
    opening->mutex.Unlock();
    const bool interrupted = IsInterrupted(interrupt);
    opening->mutex.Lock();
    if (interrupted) return absl::CancelledError(absl::StrCat(what, ": interrupted"));
  }
  return std::move(opening->store);  // the thread may live on for a moment, and must not hold the server
}

}  // namespace leafpack::store_internal
