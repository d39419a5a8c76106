// Hands descriptors to another process over a Unix socket (SCM_RIGHTS, unix(7)).
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_RIGHTS_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_RIGHTS_H_

#include <sys/types.h>

#include <string_view>

#include "absl/types/span.h"

#include "distributed/core/channel/fork.h"

namespace leafpack {

// send() without blocking or signals, with the descriptor `rights`; it goes alone if that is < 0.
ssize_t SendWithFd(int socket, std::string_view bytes, int rights);

// recv() without blocking. `rights` becomes the descriptor that came along, CLOEXEC; if none did it stays as it
// is. A process that may open no more descriptors gets the bytes alone.
ssize_t ReceiveWithFd(int socket, absl::Span<char> bytes, TrackedFd& rights);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_RIGHTS_H_
