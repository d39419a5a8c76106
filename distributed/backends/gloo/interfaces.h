// Choice of the network interface that Gloo binds to.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_INTERFACES_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_INTERFACES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace leafpack::gloo_internal {

// Names of the interfaces that have an IPv4 or IPv6 address, sorted.
std::vector<std::string> InterfaceNames();

// The interface to use: `requested` if given; else the loopback interface when all ranks are on this
// host; else the first name in the environment variable GLOO_SOCKET_IFNAME; else "", which stands
// for the address that this host's name resolves to. InvalidArgument when a name that was asked for
// does not exist; the text lists those that do.
absl::StatusOr<std::string> ChooseInterface(std::string_view requested, bool all_local);

}  // namespace leafpack::gloo_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_INTERFACES_H_
