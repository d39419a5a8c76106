#include "distributed/backends/nccl/mock_device.h"

#include <exception>
#include <map>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fmax.h>
#include <ATen/ops/fmin.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/base/no_destructor.h"
#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/nccl/mock_memory.h"
#include "distributed/backends/nccl/nccl_backend.h"

namespace leafpack::nccl_internal {
namespace {

thread_local std::shared_ptr<MockStream> current_stream;

bool NcclHas(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return true;
    default:
      return false;
  }
}

void Accumulate(ReduceOpKind op, at::Tensor& sum, const at::Tensor& next) {
  switch (op) {
    case ReduceOpKind::kProduct:
      sum.mul_(next);
      return;
    case ReduceOpKind::kMin:
      sum = at::fmin(sum, next);
      return;
    case ReduceOpKind::kMax:
      sum = at::fmax(sum, next);
      return;
    case ReduceOpKind::kSum:
    case ReduceOpKind::kAvg:
      sum.add_(next);
      return;
    default:
      LOG(FATAL) << "NCCL does not reduce by " << ReduceOpName(op);
  }
}

// Where the ranks of one communicator meet.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}

  // The group of reductions `number` of `rank`: blocks until all ranks have come, or until an abort, after
  // which it leaves garbage.
  void Reduce(int64_t number, int rank, const std::vector<Reduction>& reductions, const bool& aborted) {
    absl::MutexLock lock(&mutex_);
    Round& round = rounds_[number];
    round.inputs.resize(static_cast<size_t>(size_));
    round.inputs[static_cast<size_t>(rank)] = &reductions;
    if (++round.arrived == size_) Compute(round);
    const auto over = [&] { return round.computed || aborted; };
    mutex_.Await(absl::Condition(&over));
    if (!round.computed) {
      --round.arrived;
      round.inputs[static_cast<size_t>(rank)] = nullptr;
      for (const Reduction& reduction : reductions) at::Tensor(reduction.tensor).fill_(77);
      return;
    }
    for (size_t i = 0; i < reductions.size(); ++i) {
      at::Tensor(reductions[i].tensor).copy_(round.results[i]);
    }
    if (++round.left == size_) rounds_.erase(number);
  }
  void Abort(bool& aborted) {
    absl::MutexLock lock(&mutex_);
    aborted = true;
  }

 private:
  struct Round {
    std::vector<const std::vector<Reduction>*> inputs;
    std::vector<at::Tensor> results;
    int arrived = 0;
    int left = 0;
    bool computed = false;
  };

  void Compute(Round& round) {
    const std::vector<Reduction>& first = *round.inputs[0];
    for (size_t i = 0; i < first.size(); ++i) {
      const ReduceOpKind op = first[i].op;
      at::Tensor sum;
      for (const std::vector<Reduction>* inputs : round.inputs) {
        ABSL_CHECK_EQ(inputs->size(), first.size()) << "ranks give NCCL different groups of calls";
        const Reduction& reduction = (*inputs)[i];
        ABSL_CHECK(reduction.op == op && reduction.tensor.numel() == first[i].tensor.numel() &&
              reduction.tensor.scalar_type() == first[i].tensor.scalar_type())
            << "ranks give NCCL different calls";
        at::Tensor input = reduction.tensor.clone();
        if (op == ReduceOpKind::kAvg) input.mul_(1.0 / size_);  // as NCCL: before the sum
        if (sum.defined()) {
          Accumulate(op, sum, input);
        } else {
          sum = std::move(input);
        }
      }
      round.results.push_back(std::move(sum));
    }
    round.computed = true;
  }

  const int size_;
  absl::Mutex mutex_;
  std::map<int64_t, Round> rounds_ ABSL_GUARDED_BY(mutex_);
};

struct Meetings {
  absl::Mutex mutex;
  int next ABSL_GUARDED_BY(mutex) = 0;
  std::map<std::string, std::shared_ptr<Meeting>> by_id ABSL_GUARDED_BY(mutex);
};

Meetings& TheMeetings() {
  static absl::NoDestructor<Meetings> meetings;
  return *meetings;
}

class MockMark : public Mark {
 public:
  MockMark(std::shared_ptr<MockStream> stream, int64_t tasks) : stream_(std::move(stream)), tasks_(tasks) {}
  absl::StatusOr<bool> IsReached() override { return stream_->HasDone(tasks_); }
  absl::Status HoldCurrentStream() override {
    if (current_stream != nullptr) {
      current_stream->Put([stream = stream_, tasks = tasks_] { stream->Await(tasks); });
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<MockStream> stream_;
  const int64_t tasks_;
};

class MockCommunicator : public Communicator {
 public:
  MockCommunicator(std::shared_ptr<Meeting> meeting, int rank, std::shared_ptr<MockControl> control)
      : meeting_(std::move(meeting)), rank_(rank), control_(std::move(control)) {}
  // What is on the stream uses this object, and the stream lives as long as its marks.
  ~MockCommunicator() override {
    meeting_->Abort(aborted_);
    stream_->Await(stream_->put());
  }

  absl::Status FollowCurrentStream() override {
    if (current_stream != nullptr) {
      stream_->Put([stream = current_stream, tasks = current_stream->put()] { stream->Await(tasks); });
    }
    return absl::OkStatus();
  }
  absl::StatusOr<at::Tensor> Allocate(int64_t numel, at::ScalarType dtype) override {
    if (control_->no_memory) return absl::ResourceExhaustedError("no memory");
    ++control_->allocations;
    return As(control_->current, at::empty({numel}, at::TensorOptions().dtype(dtype)).fill_(1));
  }
  absl::Status Run(std::function<void()> work) override {
    ++control_->runs;
    stream_->Put([work = std::move(work)] {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      work();
    });
    return absl::OkStatus();
  }
  absl::Status AllReduce(const std::vector<Reduction>& calls) override {
    std::vector<Reduction> reductions;
    for (const Reduction& call : calls) {
      ABSL_CHECK(call.tensor.device() == control_->current) << call.tensor.device();
      ABSL_CHECK(NcclHas(call.tensor.scalar_type())) << call.tensor.scalar_type();
      ABSL_CHECK(call.tensor.is_contiguous());
      reductions.push_back({As(c10::kCPU, call.tensor), call.op});
    }
    ++control_->groups;
    control_->members += static_cast<int>(reductions.size());
    control_->NoteEnqueue();
    stream_->Put([this, reductions, number = number_++] {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      meeting_->Reduce(number, rank_, reductions, aborted_);
    });
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Mark>> MarkStream() override {
    return std::make_unique<MockMark>(stream_, stream_->put());
  }
  absl::Status Check() override {
    if (control_->broken) return absl::UnavailableError("NCCL failed: remote process exited");
    return absl::OkStatus();
  }
  void Abort() override {
    ++control_->aborts;
    if (!control_->deaf) meeting_->Abort(aborted_);
  }

 private:
  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
  const std::shared_ptr<MockControl> control_;
  int64_t number_ = 0;
  bool aborted_ = false;  // under the meeting's lock
  const std::shared_ptr<MockStream> stream_ = std::make_shared<MockStream>();
};

}  // namespace

MockStream::MockStream() {
  std::thread([state = state_] { Work(*state); }).detach();
}

MockStream::~MockStream() {
  absl::MutexLock lock(&state_->mutex);
  state_->stopping = true;
}

int64_t MockStream::Put(std::function<void()> task) {
  absl::MutexLock lock(&state_->mutex);
  state_->queue.push_back(std::move(task));
  return ++state_->put;
}

bool MockStream::HasDone(int64_t tasks) {
  absl::MutexLock lock(&state_->mutex);
  return state_->done >= tasks;
}

void MockStream::Await(int64_t tasks) {
  State& state = *state_;
  absl::MutexLock lock(&state.mutex);
  const auto done = [&] {
    state.mutex.AssertHeld();
    return state.done >= tasks;
  };
  state.mutex.Await(absl::Condition(&done));
}

int64_t MockStream::put() {
  absl::MutexLock lock(&state_->mutex);
  return state_->put;
}

void MockStream::Work(State& state) {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&state.mutex);
      const auto ready = [&] {
        state.mutex.AssertHeld();
        return state.stopping || !state.queue.empty();
      };
      state.mutex.Await(absl::Condition(&ready));
      if (state.queue.empty()) return;
      task = std::move(state.queue.front());
      state.queue.pop_front();
    }
    task();
    task = nullptr;
    absl::MutexLock lock(&state.mutex);
    ++state.done;
  }
}

std::shared_ptr<MockStream> CurrentMockStream() { return current_stream; }

WithMockStream::WithMockStream(std::shared_ptr<MockStream> stream)
    : before_(std::exchange(current_stream, std::move(stream))) {}

WithMockStream::~WithMockStream() { current_stream = before_; }

absl::StatusOr<std::unique_ptr<Communicator>> MockDevice::Connect(const DataContextOptions& options,
                                                                  c10::Device device, absl::Time deadline) {
  ABSL_CHECK(device == control_->current);
  if (control_->fail_connect) return absl::UnavailableError("NCCL could not connect");
  Meetings& meetings = TheMeetings();
  std::string id;
  if (options.rank == 0) {
    {
      absl::MutexLock lock(&meetings.mutex);
      id = absl::StrCat("meeting ", meetings.next++);
      meetings.by_id[id] = std::make_shared<Meeting>(options.size);
    }
    options.store->set("nccl_id", std::vector<uint8_t>(id.begin(), id.end()));
  } else {
    while (!options.store->check({"nccl_id"})) {
      if (absl::Now() >= deadline) return absl::DeadlineExceededError("rank 0 has not connected");
      absl::SleepFor(absl::Milliseconds(1));
    }
    const std::vector<uint8_t> told = options.store->get("nccl_id");
    id.assign(told.begin(), told.end());
  }
  absl::MutexLock lock(&meetings.mutex);
  return std::make_unique<MockCommunicator>(meetings.by_id.at(id), options.rank, control_);
}

std::shared_ptr<MockControl> RegisterMockBackend(const std::string& name) {
  static absl::NoDestructor<std::map<std::string, std::shared_ptr<MockControl>>> controls;
  static absl::NoDestructor<absl::Mutex> mutex;
  absl::MutexLock lock(mutex.get());
  std::shared_ptr<MockControl>& control = (*controls)[name];
  if (control == nullptr) {
    control = std::make_shared<MockControl>();
    RegisterBackend(name, [control] { return NcclBackend::Make(std::make_shared<MockDevice>(control)); });
  }
  return control;
}

}  // namespace leafpack::nccl_internal
