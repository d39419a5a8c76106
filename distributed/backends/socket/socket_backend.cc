#include "distributed/backends/socket/socket_backend.h"

#include "distributed/backends/socket/socket_link.h"
#include "distributed/messages/message_context.h"

namespace leafpack {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("socket", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
      return std::make_unique<SocketBackend>();
    });

}  // namespace

absl::Status SocketBackend::SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                              c10::DeviceType device) const {
  return messages::SupportsAllReduce(name(), dtype, op, device);
}

absl::Status SocketBackend::SupportsExchange(at::ScalarType /*dtype*/, c10::DeviceType device) const {
  return messages::SupportsExchange(name(), device);
}

// Reckoned from what GlooBackend::Cost measured, less the wake-ups of an I/O thread; not measured itself.
BackendCost SocketBackend::Cost(int ranks) const {
  if (ranks <= 1) return {};
  return {.per_message = 0.1e-3 * (ranks - 1), .per_byte = 0.6e-9 * (ranks - 1) / ranks};
}

absl::StatusOr<std::shared_ptr<DataContext>> SocketBackend::Open(const DataContextOptions& options,
                                                                 absl::Time deadline) {
  return messages::Open(name(), options, [&] {
    return socket_internal::SocketLink::Connect(options, deadline);
  });
}

}  // namespace leafpack
