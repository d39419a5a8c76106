#include "distributed/backends/nccl/nccl_context.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/TensorOptions.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/backends/nccl/reduction_plan.h"

namespace leafpack::nccl_internal {
namespace {

// Between two looks at a mark: short at first, since most reductions take microseconds.
constexpr absl::Duration kFirstPause = absl::Microseconds(5);
constexpr absl::Duration kLongestPause = absl::Microseconds(500);
// How long a work of an aborted context waits for the device to let go of its memory.
constexpr absl::Duration kAbortTime = absl::Seconds(1);
// How long the end of a context waits for the device.
constexpr absl::Duration kDrainTime = absl::Seconds(10);

absl::Status Aborted() { return absl::CancelledError("the data context was aborted"); }

// The memory of a view as a tensor of `dtype`, whose elements are of the same size.
at::Tensor TensorOf(const LeafView& view, at::ScalarType dtype, bool flat) {
  const auto options = at::TensorOptions().dtype(dtype).device(view.device);
  if (flat) return at::from_blob(view.data, {ElementCount(view)}, {1}, [](void*) {}, options, view.device);
  return at::from_blob(view.data, view.sizes, view.strides, [](void*) {}, options, view.device);
}

// Copies of many tensors, those of equal strides apart: only these go in few kernels.
struct Copies {
  std::vector<at::Tensor> slots, leaves;                  // both flat
  std::vector<at::Tensor> shaped_slots, strided_leaves;

  void Pack() const {
    if (!slots.empty()) at::_foreach_copy_(slots, leaves);
    if (!shaped_slots.empty()) at::_foreach_copy_(shaped_slots, strided_leaves);
  }
  void Unpack() const {
    if (!slots.empty()) at::_foreach_copy_(leaves, slots);
    if (!shaped_slots.empty()) at::_foreach_copy_(strided_leaves, shaped_slots);
  }
  bool empty() const { return slots.empty() && shaped_slots.empty(); }
};

// Where a run holds NaN on this rank, then on any.
struct NanMask {
  at::Tensor run;
  at::Tensor mask;  // bytes

  void Take() const { mask.copy_(at::isnan(run)); }
  void PutBack() const {
    run.masked_fill_(mask.view(at::kBool), std::numeric_limits<double>::quiet_NaN());
  }
};

}  // namespace

struct ContextState {
  explicit ContextState(std::unique_ptr<Communicator> of) : communicator(std::move(of)) {}
  bool aborted() const { return abort_at.load() != 0; }
  // Since long enough for the device to have let go of all memory, if ever it does.
  bool aborted_long_ago() const {
    return aborted() && absl::Now() > absl::FromUnixNanos(abort_at.load()) + kAbortTime;
  }

  const std::unique_ptr<Communicator> communicator;
  std::atomic<int64_t> abort_at{0};  // ns since the epoch; 0: it was not aborted
};

class Flight {
 public:
  explicit Flight(std::vector<LeafView> views) : views_(std::move(views)) {}

  const std::vector<LeafView>& views() const { return views_; }
  void set_mark(std::unique_ptr<Mark> mark) {
    absl::MutexLock lock(&mutex_);
    mark_ = std::move(mark);
  }
  absl::StatusOr<bool> IsOver() {
    absl::MutexLock lock(&mutex_);
    if (mark_ == nullptr) return false;
    return mark_->IsReached();
  }
  absl::Status HoldCurrentStream() {
    absl::MutexLock lock(&mutex_);
    return mark_ == nullptr ? absl::OkStatus() : mark_->HoldCurrentStream();
  }

 private:
  const std::vector<LeafView> views_;  // own the memory
  absl::Mutex mutex_;
  std::unique_ptr<Mark> mark_ ABSL_GUARDED_BY(mutex_);  // none: it could not be put on the stream whole
};

namespace {

class NcclWork : public DataWork {
 public:
  NcclWork(std::shared_ptr<ContextState> state, std::shared_ptr<Flight> flight)
      : state_(std::move(state)), flight_(std::move(flight)) {}

  bool IsDone() override {
    const absl::StatusOr<bool> done = Look();
    return !done.ok() || *done;
  }

  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    const absl::Time until = absl::Now() + slice;
    if (absl::Status status = flight_->HoldCurrentStream(); !status.ok()) return status;
    for (absl::Duration pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
      const absl::StatusOr<bool> done = Look();
      if (!done.ok() || *done) return done;
      const absl::Duration left = until - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      absl::SleepFor(std::min(pause, left));
    }
  }

 private:
  // An aborted reduction gets through as well, with garbage, and what is unpacked after it is written to the
  // leaves: the error is told when that is over.
  absl::StatusOr<bool> Look() {
    const absl::StatusOr<bool> over = flight_->IsOver();
    if (state_->aborted()) {
      if (over.ok() && !*over && !state_->aborted_long_ago()) return false;
      return Aborted();
    }
    if (over.ok() && !*over) {
      if (absl::Status status = state_->communicator->Check(); !status.ok()) return status;
    }
    return over;
  }

  const std::shared_ptr<ContextState> state_;
  const std::shared_ptr<Flight> flight_;
};

}  // namespace

NcclContext::NcclContext(std::unique_ptr<Communicator> communicator, c10::Device device)
    : state_(std::make_shared<ContextState>(std::move(communicator))), device_(device) {}

NcclContext::~NcclContext() {
  DropWhatIsOver();
  if (flights_.empty()) return;
  Abort();
  const absl::Time until = absl::Now() + kDrainTime;
  // One mark after all: also for operations that have none of their own.
  absl::StatusOr<std::unique_ptr<Mark>> mark = state_->communicator->MarkStream();
  while (mark.ok() && absl::Now() < until) {
    const absl::StatusOr<bool> reached = (*mark)->IsReached();
    if (!reached.ok()) break;
    if (*reached) return;
    absl::SleepFor(kLongestPause);
  }
  // The device may write there yet.
  new std::deque<std::shared_ptr<Flight>>(std::move(flights_));
}

void NcclContext::DropWhatIsOver() {
  while (!flights_.empty()) {
    const absl::StatusOr<bool> over = flights_.front()->IsOver();
    if (!over.ok() || !*over) return;
    flights_.pop_front();
  }
}

void NcclContext::Abort() {
  int64_t never = 0;
  if (state_->abort_at.compare_exchange_strong(never, absl::ToUnixNanos(absl::Now()))) {
    state_->communicator->Abort();
  }
}

absl::StatusOr<std::unique_ptr<DataWork>> NcclContext::AllReduce(std::vector<LeafView> views,
                                                                 const ReduceOp& op) {
  for (const LeafView& view : views) {
    if (view.device != device_) {
      return absl::UnimplementedError(absl::StrCat("the nccl backend of this rank is on ", device_.str(),
                                                   ", a leaf is on ", view.device.str()));
    }
    if (view.sizes.size() != view.strides.size()) {
      return absl::InternalError(absl::StrCat("a view has ", view.sizes.size(), " sizes and ",
                                              view.strides.size(), " strides"));
    }
    if (absl::Status status = WireOf(view.dtype, op.kind).status(); !status.ok()) return status;
  }
  if (state_->aborted()) return Aborted();
  DropWhatIsOver();
  auto flight = std::make_shared<Flight>(std::move(views));
  flights_.push_back(flight);
  if (absl::Status status = Enqueue(*flight, op.kind); !status.ok()) {
    return state_->aborted() ? Aborted() : status;
  }
  return std::make_unique<NcclWork>(state_, std::move(flight));
}

absl::Status NcclContext::Enqueue(Flight& flight, ReduceOpKind op) {
  Communicator& communicator = *state_->communicator;
  if (absl::Status status = communicator.FollowCurrentStream(); !status.ok()) return status;
  Copies copies;
  std::vector<NanMask> masks;
  std::vector<Reduction> reductions;
  for (const Run& run : PlanRuns(flight.views())) {
    const Wire wire = *WireOf(run.dtype, op);
    const LeafView& first = flight.views()[run.parts.front().view];
    at::Tensor elements;
    if (run.parts.size() == 1 && IsContiguous(first)) {
      elements = TensorOf(first, wire.dtype, /*flat=*/true);
    } else {
      absl::StatusOr<at::Tensor> buffer = communicator.Allocate(run.numel, wire.dtype);
      if (!buffer.ok()) return buffer.status();
      elements = *std::move(buffer);
      for (const Run::Part& part : run.parts) {
        const LeafView& view = flight.views()[part.view];
        at::Tensor slot = elements.narrow(0, part.offset, part.numel);
        if (IsContiguous(view)) {
          copies.slots.push_back(std::move(slot));
          copies.leaves.push_back(TensorOf(view, wire.dtype, /*flat=*/true));
        } else {
          copies.shaped_slots.push_back(slot.view(view.sizes));
          copies.strided_leaves.push_back(TensorOf(view, wire.dtype, /*flat=*/false));
        }
      }
    }
    if (wire.keep_nan) {
      absl::StatusOr<at::Tensor> mask = communicator.Allocate(run.numel, at::kByte);
      if (!mask.ok()) return mask.status();
      masks.push_back({elements, *mask});
      reductions.push_back({*std::move(mask), ReduceOpKind::kMax});
    }
    if (elements.is_complex()) elements = at::view_as_real(elements);
    reductions.push_back({std::move(elements), wire.op});
  }
  if (!copies.empty() || !masks.empty()) {
    absl::Status status = communicator.Run([copies, masks] {
      copies.Pack();
      for (const NanMask& mask : masks) mask.Take();
    });
    if (!status.ok()) return status;
  }
  if (!reductions.empty()) {
    if (absl::Status status = communicator.AllReduce(reductions); !status.ok()) return status;
  }
  if (!copies.empty() || !masks.empty()) {
    absl::Status status = communicator.Run([copies = std::move(copies), masks = std::move(masks)] {
      for (const NanMask& mask : masks) mask.PutBack();
      copies.Unpack();
    });
    if (!status.ok()) return status;
  }
  absl::StatusOr<std::unique_ptr<Mark>> mark = communicator.MarkStream();
  if (!mark.ok()) return mark.status();
  flight.set_mark(*std::move(mark));
  return absl::OkStatus();
}

}  // namespace leafpack::nccl_internal
