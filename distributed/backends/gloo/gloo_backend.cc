#include "distributed/backends/gloo/gloo_backend.h"

#include "distributed/backends/gloo/gloo_link.h"
#include "distributed/messages/message_context.h"

namespace leafpack {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("gloo", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
      return std::make_unique<GlooBackend>();
    });

}  // namespace

absl::Status GlooBackend::SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                            c10::DeviceType device) const {
  return messages::SupportsAllReduce(name(), dtype, op, device);
}

absl::Status GlooBackend::SupportsExchange(at::ScalarType /*dtype*/, c10::DeviceType device) const {
  return messages::SupportsExchange(name(), device);
}

// Loopback, as measured by //benchmarks:all_reduce on two cores: a message costs a wake-up or two per
// peer; each rank sends, receives and adds (P - 1) / P of the bytes, twice.
BackendCost GlooBackend::Cost(int ranks) const {
  if (ranks <= 1) return {};
  return {.per_message = 0.25e-3 * (ranks - 1), .per_byte = 0.9e-9 * (ranks - 1) / ranks};
}

absl::StatusOr<std::shared_ptr<DataContext>> GlooBackend::Open(const DataContextOptions& options,
                                                               absl::Time deadline) {
  return messages::Open(name(), options, [&] {
    return gloo_internal::GlooLink::Connect(options, deadline);
  });
}

}  // namespace leafpack
