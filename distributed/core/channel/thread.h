// Threads of the channel: named, and with all signals blocked, so that a signal interrupts a caller.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_THREAD_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_THREAD_H_

#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace leafpack {

// `name`: at most 15 bytes. Unavailable when the system refuses a thread.
absl::StatusOr<std::thread> StartThread(const char* name, absl::AnyInvocable<void() &&> body);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_THREAD_H_
