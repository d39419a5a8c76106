#include "distributed/tree/data_wait.h"

#include "absl/status/statusor.h"

namespace leafpack::internal {

absl::Status DataWaiter::Poll() {
  if (absl::Status status = call_.Poll(); !status.ok() || !interrupt_) return status;
  const absl::Time now = absl::Now();
  if (now - asked_at_ < kWaitSlice) return absl::OkStatus();
  asked_at_ = now;
  return interrupt_() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

absl::Status DataWaiter::Wait(DataWork& work) {
  while (true) {
    const absl::StatusOr<bool> done = [&] {
      ScopedStopwatch watch(communicate_);
      return work.WaitFor(kWaitSlice);
    }();
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
    if (absl::Status status = Poll(); !status.ok()) return status;
  }
}

void Settle(DataWork& work, absl::Time until) {
  // Once at least, also if the process was stopped meanwhile or an earlier work took all the time: a work that has
  // failed lets go of the leaves only when it is asked.
  do {
    const absl::StatusOr<bool> done = work.WaitFor(kWaitSlice);
    if (!done.ok() || *done) return;
  } while (absl::Now() < until);
}

}  // namespace leafpack::internal
