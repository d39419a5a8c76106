#include "distributed/tree/barrier.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

#include "distributed/core/engine.h"
#include "distributed/tree/call_arguments.h"
#include "distributed/tree/operation.h"

namespace leafpack {
namespace internal {
namespace {

// A frame without content.
class BarrierOperation : public Operation {
 public:
  BarrierOperation(const Group& group, const CallOptions& options)
      : Operation(group, CollectiveKind::kBarrier, "barrier", options) {}

 protected:
  absl::Status Prepare(CallSpec& spec) override {
    std::vector<CallArgument> arguments = {{"collective", "barrier"}, {"name", options().name}};
    spec.digest = DigestOfArguments(arguments, "");
    spec.describe = [arguments = std::move(arguments)] { return DescribeArguments(arguments); };
    spec.is_frame = true;
    spec.reduce = [](absl::Span<const absl::Span<const char>>, absl::Span<char>) {};
    return absl::OkStatus();
  }
  absl::Status FinishFrame(absl::Span<const char>) override { return absl::OkStatus(); }
  std::unique_ptr<DataPhase> StartData(DataContext&, const InterruptCheck&) override {
    return nullptr;
  }
};

}  // namespace
}  // namespace internal

absl::Status Barrier(const Group& group, const CallOptions& options) {
  internal::BarrierOperation operation(group, options);
  return internal::RunNow(operation);
}

}  // namespace leafpack
