// Opens the listening and connecting sockets of the control channel.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_SOCKETS_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_SOCKETS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/handshake.h"

namespace leafpack {

// All sockets are non-blocking and CLOEXEC. Errors of the system are Unavailable.

// Numeric addresses (port 0) on which rank 0 listens: of the interface, if one is named
// (InvalidArgument lists the interfaces that exist); else, unless `loopback_only`, the address from
// which this host reaches others, if there is one; then loopback.
absl::StatusOr<std::vector<TcpAddress>> ListenAddresses(std::string_view interface_name, bool loopback_only);

// Listens on an abstract Unix name.
absl::StatusOr<TrackedFd> ListenUnix(std::string_view name, int backlog);
// Listens on `address`; a port of 0 is replaced by the one that the system chose.
absl::StatusOr<TrackedFd> ListenTcp(TcpAddress& address, int backlog);

// Takes one connection; an empty TrackedFd when there is none (or the one there was has gone).
TrackedFd Accept(int listener);

// Begins to connect. `pending` true: wait until the socket is writable, then ask ConnectError.
// ResourceExhausted: somebody listens there, but has too many others to take first.
struct Connecting {
  TrackedFd fd;
  bool pending = false;
};
absl::StatusOr<Connecting> ConnectUnix(std::string_view name);
absl::StatusOr<Connecting> ConnectTcp(const TcpAddress& address);
// The outcome of a pending connect.
absl::Status ConnectError(int fd);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_SOCKETS_H_
