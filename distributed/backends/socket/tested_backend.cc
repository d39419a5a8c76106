#include "distributed/messages/testing/tested_backend.h"

#include "distributed/backends/socket/socket_backend.h"

namespace leafpack::testing {

std::unique_ptr<Backend> TestedBackend() { return std::make_unique<SocketBackend>(); }

}  // namespace leafpack::testing
