// Backends that can do little, and say so: one sums and averages float32 alone and moves everything, the
// other moves few dtypes.
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"
#include "distributed/core/testing/fake_backend.h"
#include "distributed/distributed.h"
#include "testing/conformance/suite.h"

namespace leafpack::conformance {
namespace {

class NarrowBackend : public testing::FakeBackend {
 public:
  std::string_view name() const override { return "narrow"; }
  absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const override {
    if (dtype == at::kFloat || dtype == at::kByte) return FakeBackend::SupportsExchange(dtype, device);
    return absl::UnimplementedError(
        absl::StrCat("the narrow backend moves float32 and uint8, not ", c10::toString(dtype)));
  }
};

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("narrow", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
      return std::make_unique<NarrowBackend>();
    });

absl::StatusOr<std::vector<Group>> Fake(int ranks) {
  testing::RegisterFakeBackend();
  return LocalGroups(ranks, {.backend = "fake", .timeout = absl::Minutes(1)});
}

absl::StatusOr<std::vector<Group>> Narrow(int ranks) {
  return LocalGroups(ranks, {.backend = "narrow", .timeout = absl::Minutes(1)});
}

}  // namespace
}  // namespace leafpack::conformance

LEAFPACK_CONFORMANCE(Fake, {.make_groups = Fake, .complete = false, .max_ranks = 2})
LEAFPACK_CONFORMANCE(Narrow, {.make_groups = Narrow, .complete = false, .max_ranks = 3})
