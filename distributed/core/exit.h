// The end of groups, for hosts that end before exit() does, or whose user may lose patience.
#ifndef LEAFPACK_DISTRIBUTED_CORE_EXIT_H_
#define LEAFPACK_DISTRIBUTED_CORE_EXIT_H_

#include <functional>

#include "absl/time/time.h"

namespace leafpack {

class Group;

// Waits until no collective call of `group` is in flight, at most until `until`: what Group::Shutdown does
// first, but for `interrupt`, which is asked every kWaitSlice (engine.h) and whose true ends the wait. Says
// whether none is in flight. The caller's thread does the I/O; thread-safe.
bool AwaitIdle(const Group& group, absl::Time until, const std::function<bool()>& interrupt);

// Shuts down every group that is open, as Group::Shutdown: also those that nothing holds any more but calls
// in flight. Together they drain for at most `patience`; then their calls are given up. At exit() this
// happens by itself, but an interpreter is gone by then, and with it what frees its tensors: it calls this
// while it is whole. Blocks; thread-safe.
void ShutdownAllGroups(absl::Duration patience);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_EXIT_H_
