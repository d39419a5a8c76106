// Waiting for the transfers of a group before it is shut down.
#ifndef LEAFPACK_DISTRIBUTED_P2P_AWAIT_TRANSFERS_H_
#define LEAFPACK_DISTRIBUTED_P2P_AWAIT_TRANSFERS_H_

#include "absl/time/time.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"

namespace leafpack {

// Waits until no send of `group`, and no receive that has found its send, is under way, at most until
// `until`: what Group::Shutdown does first, but for `interrupt`, which is asked every kWaitSlice and whose
// true ends the wait. Says whether none is under way. Thread-safe.
bool AwaitTransfers(const Group& group, absl::Time until, const InterruptCheck& interrupt);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_P2P_AWAIT_TRANSFERS_H_
