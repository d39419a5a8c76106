#include "distributed/backends/gloo/gloo_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "distributed/backends/gloo/gloo_link.h"
#include "distributed/messages/message_context.h"

namespace leafpack {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("gloo", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
      return std::make_unique<GlooBackend>();
    });

absl::Status CheckCpu(c10::DeviceType device, std::string_view does) {
  if (device == c10::DeviceType::CPU) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("the gloo backend ", does, " CPU tensors, not ",
                                               c10::DeviceTypeName(device, true)));
}

}  // namespace

absl::Status GlooBackend::SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                            c10::DeviceType device) const {
  if (absl::Status status = CheckCpu(device, "reduces"); !status.ok()) return status;
  return CheckOpAllowed(op, dtype);
}

absl::Status GlooBackend::SupportsExchange(at::ScalarType /*dtype*/, c10::DeviceType device) const {
  return CheckCpu(device, "moves");
}

// Loopback, as measured by //benchmarks:all_reduce on two cores: a message costs a wake-up or two per
// peer; each rank sends, receives and adds (P - 1) / P of the bytes, twice.
BackendCost GlooBackend::Cost(int ranks) const {
  if (ranks <= 1) return {};
  return {.per_message = 0.25e-3 * (ranks - 1), .per_byte = 0.9e-9 * (ranks - 1) / ranks};
}

absl::StatusOr<std::shared_ptr<DataContext>> GlooBackend::Open(const DataContextOptions& options,
                                                               absl::Time deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a group of ", options.size));
  }
  std::unique_ptr<gloo_internal::GlooLink> link;
  if (options.size > 1) {
    absl::StatusOr<std::unique_ptr<gloo_internal::GlooLink>> connected =
        gloo_internal::GlooLink::Connect(options, deadline);
    if (!connected.ok()) return connected.status();
    link = *std::move(connected);
  }
  return std::make_shared<messages::MessageContext>(name(), std::move(link), options.rank,
                                                    options.size);
}

}  // namespace leafpack
