#include "distributed/store/group_testutil.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"

namespace leafpack {
namespace {

CallSpec SpecOf(int64_t count) {
  CallSpec spec;
  spec.name = "test sum";
  spec.digest = absl::MakeUint128(0x7e57, static_cast<uint64_t>(count));
  spec.describe = [] { return std::vector<DescriptionEntry>(); };
  return spec;
}

}  // namespace

absl::StatusOr<int64_t> FrameSum(const Group& group, int64_t value) {
  CallSpec spec = SpecOf(0);
  spec.is_frame = true;
  spec.payload.assign(reinterpret_cast<const char*>(&value), sizeof(value));
  spec.reduce = [](absl::Span<const absl::Span<const char>> payloads, absl::Span<char> out) {
    int64_t sum = 0;
    for (absl::Span<const char> payload : payloads) {
      int64_t one = 0;
      std::memcpy(&one, payload.data(), sizeof(one));
      sum += one;
    }
    std::memcpy(out.data(), &sum, sizeof(sum));
  };
  absl::StatusOr<std::shared_ptr<Call>> call = group.engine().Post(std::move(spec));
  if (!call.ok()) return call.status();
  if (absl::Status status = (*call)->AwaitDecision(); !status.ok()) return status;
  int64_t sum = 0;
  std::memcpy(&sum, (*call)->frame_result().data(), sizeof(sum));
  return sum;
}

absl::StatusOr<int64_t> DataSum(const Group& group, int64_t value, int64_t count) {
  absl::StatusOr<std::shared_ptr<Call>> posted = group.engine().Post(SpecOf(count));
  if (!posted.ok()) return posted.status();
  Call& call = **posted;
  if (absl::Status status = call.AwaitDecision(); !status.ok()) return status;
  auto numbers = std::make_shared<std::vector<int64_t>>(count, value);
  const auto run = [&]() -> absl::Status {
    absl::StatusOr<std::shared_ptr<DataContext>> context = call.EnterData();
    if (!context.ok()) return context.status();
    LeafView view;
    view.data = numbers->data();
    view.dtype = at::ScalarType::Long;
    view.sizes = {count};
    view.strides = {1};
    view.keep_alive = numbers;
    absl::StatusOr<std::unique_ptr<DataWork>> work = (*context)->AllReduce({view}, ReduceOp::kSum);
    call.LeaveTurnstile();
    if (!work.ok()) return work.status();
    while (true) {
      absl::StatusOr<bool> done = (*work)->WaitFor(kWaitSlice);
      if (!done.ok()) return done.status();
      if (*done) return absl::OkStatus();
      if (absl::Status status = call.Poll(); !status.ok()) return status;
    }
  };
  if (absl::Status status = call.FinishData(run(), {}); !status.ok()) return status;
  for (int64_t number : *numbers) {
    if (number != numbers->front()) return absl::InternalError("elements differ");
  }
  return numbers->front();
}

}  // namespace leafpack
