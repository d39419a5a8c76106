// The end of all groups of a process, for hosts that end before exit() does.
#ifndef LEAFPACK_DISTRIBUTED_CORE_EXIT_H_
#define LEAFPACK_DISTRIBUTED_CORE_EXIT_H_

#include "absl/time/time.h"

namespace leafpack {

// Shuts down every group that is open, as Group::Shutdown: also those that nothing holds any more but calls
// in flight. Together they drain for at most `patience`; then their calls are given up. At exit() this
// happens by itself, but an interpreter is gone by then, and with it what frees its tensors: it calls this
// while it is whole. Blocks; thread-safe.
void ShutdownAllGroups(absl::Duration patience);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_EXIT_H_
