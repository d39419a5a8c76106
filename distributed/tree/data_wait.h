// How the thread of a data phase waits: in slices, serving the channel and the interrupt between them.
#ifndef LEAFPACK_DISTRIBUTED_TREE_DATA_WAIT_H_
#define LEAFPACK_DISTRIBUTED_TREE_DATA_WAIT_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/tree/stopwatch.h"

namespace leafpack::internal {

// Used by one thread.
class DataWaiter {
 public:
  // `communicate`: the time waited is added to it. References outlive the waiter.
  DataWaiter(Call& call, InterruptCheck interrupt, double& communicate)
      : call_(call), interrupt_(std::move(interrupt)), communicate_(communicate) {}

  // Serves the channel; an error when the call was ended or is interrupted. Never blocks.
  absl::Status Poll();
  // Waits until `work` is over.
  absl::Status Wait(DataWork& work);

 private:
  Call& call_;
  const InterruptCheck interrupt_;
  double& communicate_;
  absl::Time asked_at_ = absl::Now();  // when `interrupt_` was asked last
};

// After the epoch was aborted: waits until `work` is over, or until `until`.
void Settle(DataWork& work, absl::Time until);

// How long a phase waits for an aborted backend; it needs about 20 ms.
inline constexpr absl::Duration kSettleTime = absl::Seconds(2);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_DATA_WAIT_H_
