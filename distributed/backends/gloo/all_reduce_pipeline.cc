#include "distributed/backends/gloo/all_reduce_pipeline.h"

#include <algorithm>
#include <utility>

#include <c10/core/ScalarType.h>

#include "absl/types/span.h"

#include "distributed/core/reduce/reduce.h"

namespace leafpack::gloo_internal {
namespace {

// How stages overlap. Measured by real-time priority on two cores, where the rest of the machine does
// not disturb: Gloo's I/O thread spins while another thread holds a connection's lock, so what is best
// is what keeps this thread from writing to a connection on which data arrives.
struct Schedule {
  int64_t stage_bytes;  // over all ranks' parts
  size_t active;        // stages under way: what is received and not reduced stays below both's product
  size_t started;       // of these, stages that are not reduced yet
  // Receives are posted before sends: then this thread writes to the sockets, else Gloo's thread does,
  // as soon as the receiver asks.
  bool receive_first;
};

Schedule ScheduleFor(int ranks) {
  if (ranks <= 2) return {8 << 20, 3, 2, true};
  return {std::max<int64_t>(1 << 20, int64_t{ranks} << 18), 2, 1, false};
}

}  // namespace

// One stage: elements [0, count) at `data`; part q belongs to rank q.
struct AllReducePipeline::Stage {
  std::shared_ptr<Operation> operation;
  at::ScalarType dtype;
  int64_t element_bytes;
  char* data;
  int64_t count;
  uint32_t tag = 0;
  bool reduced = false;
  std::vector<char> scratch;  // parts of the other ranks, in rank order
  std::vector<Message> parts_in, parts_out, results_in, results_out;

  int64_t Begin(int rank, int size) const {
    return count / size * rank + std::min<int64_t>(rank, count % size);
  }
  int64_t PartBytes(int rank, int size) const {
    return (Begin(rank + 1, size) - Begin(rank, size)) * element_bytes;
  }
  char* Part(int rank, int size) const { return data + Begin(rank, size) * element_bytes; }
};

bool Operation::IsDone() const {
  absl::MutexLock lock(&mutex_);
  return done_;
}

absl::StatusOr<bool> Operation::WaitFor(absl::Duration slice) const {
  absl::MutexLock lock(&mutex_);
  if (!mutex_.AwaitWithTimeout(absl::Condition(&done_), slice)) return false;
  if (!status_.ok()) return status_;
  return true;
}

bool Operation::Finish(absl::Status status) {
  views_.clear();
  absl::MutexLock lock(&mutex_);
  if (done_) return false;
  status_ = std::move(status);
  done_ = true;
  return true;
}

AllReducePipeline::AllReducePipeline(GlooLink* link, int rank, int size)
    : rank_(rank), size_(size), link_(link), thread_([this] { Run(); }) {}

AllReducePipeline::~AllReducePipeline() {
  bool idle;
  {
    absl::MutexLock lock(&mutex_);
    idle = pending_ == 0;
  }
  if (!idle) Abort();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::shared_ptr<Operation> AllReducePipeline::Submit(std::vector<LeafView> views,
                                                     ReduceOpKind op) {
  auto operation = std::make_shared<Operation>(std::move(views), op);
  absl::MutexLock lock(&mutex_);
  if (!failed_.ok()) {
    operation->Finish(failed_);
  } else {
    submitted_.push_back(operation);
    ++pending_;
  }
  return operation;
}

void AllReducePipeline::Abort() {
  {
    absl::MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = absl::CancelledError("the data context was aborted");
  }
  if (link_ != nullptr) link_->Abort();
}

void AllReducePipeline::Split(const std::shared_ptr<Operation>& operation) {
  for (const LeafView& view : operation->views_) {
    int64_t count = 1;
    for (int64_t size : view.sizes) count *= size;
    const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(view.dtype));
    const int64_t per_stage = std::max<int64_t>(ScheduleFor(size_).stage_bytes / element_bytes, size_);
    for (int64_t begin = 0; begin < count; begin += per_stage) {
      auto stage = std::make_unique<Stage>();
      stage->operation = operation;
      stage->dtype = view.dtype;
      stage->element_bytes = element_bytes;
      stage->data = static_cast<char*>(view.data) + begin * element_bytes;
      stage->count = std::min(per_stage, count - begin);
      waiting_.push_back(std::move(stage));
      ++operation->stages_left_;
    }
  }
  if (operation->stages_left_ == 0) Finish(*operation, absl::OkStatus());
}

void AllReducePipeline::Finish(Operation& operation, const absl::Status& status) {
  if (!operation.Finish(status)) return;
  absl::MutexLock lock(&mutex_);
  --pending_;
}

// A result may be received into the place of a part that is still being sent: its owner answers only
// after it has the whole part.
absl::Status AllReducePipeline::Start(Stage& stage) {
  stage.tag = next_tag_;
  next_tag_ = (next_tag_ + 2) % GlooLink::kTagLimit;
  const int64_t own_bytes = stage.PartBytes(rank_, size_);
  if (!scratch_.empty()) {
    stage.scratch = std::move(scratch_.back());
    scratch_.pop_back();
  }
  if (stage.scratch.size() < static_cast<size_t>(own_bytes * (size_ - 1))) {
    stage.scratch.resize(own_bytes * (size_ - 1));
  }
  const bool receive_first = ScheduleFor(size_).receive_first;
  if (!receive_first) {
    if (absl::Status status = SendParts(stage); !status.ok()) return status;
  }
  for (int step = 1; step < size_ && own_bytes > 0; ++step) {
    const int peer = (rank_ + size_ - step) % size_;
    char* target = stage.scratch.data() + own_bytes * (peer < rank_ ? peer : peer - 1);
    absl::Status status =
        link_->Receive(peer, stage.tag, target, own_bytes, &stage.parts_in.emplace_back());
    if (!status.ok()) return status;
  }
  if (!receive_first) return absl::OkStatus();
  if (absl::Status status = ReceiveResults(stage); !status.ok()) return status;
  return SendParts(stage);
}

absl::Status AllReducePipeline::SendParts(Stage& stage) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const int64_t bytes = stage.PartBytes(peer, size_);
    if (bytes == 0) continue;
    absl::Status status = link_->Send(peer, stage.tag, stage.Part(peer, size_), bytes,
                                      &stage.parts_out.emplace_back());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::ReceiveResults(Stage& stage) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + size_ - step) % size_;
    const int64_t bytes = stage.PartBytes(peer, size_);
    if (bytes == 0) continue;
    absl::Status status = link_->Receive(peer, stage.tag + 1, stage.Part(peer, size_), bytes,
                                         &stage.results_in.emplace_back());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::Reduce(Stage& stage) {
  stage.reduced = true;
  const int64_t own_bytes = stage.PartBytes(rank_, size_);
  const bool receive_first = ScheduleFor(size_).receive_first;
  if (own_bytes == 0) return receive_first ? absl::OkStatus() : ReceiveResults(stage);
  for (Message& message : stage.parts_in) {
    if (absl::Status status = link_->Wait(message); !status.ok()) return status;
  }
  char* own = stage.Part(rank_, size_);
  std::vector<const void*> inputs;
  for (int r = 0; r < size_; ++r) {
    inputs.push_back(r == rank_ ? own
                                : stage.scratch.data() + own_bytes * (r < rank_ ? r : r - 1));
  }
  absl::Status status = ReduceInto(stage.operation->op_, stage.dtype, inputs, own,
                                   own_bytes / stage.element_bytes);
  if (!status.ok()) return status;
  for (int step = 1; step < size_; ++step) {
    status = link_->Send((rank_ + step) % size_, stage.tag + 1, own, own_bytes,
                         &stage.results_out.emplace_back());
    if (!status.ok()) return status;
  }
  return receive_first ? absl::OkStatus() : ReceiveResults(stage);
}

absl::Status AllReducePipeline::Complete(Stage& stage) {
  for (std::vector<Message>* messages :
       {&stage.results_in, &stage.parts_out, &stage.results_out}) {
    for (Message& message : *messages) {
      if (absl::Status status = link_->Wait(message); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void AllReducePipeline::Run() {
  absl::Status status;
  while (true) {
    std::deque<std::shared_ptr<Operation>> submitted;
    {
      absl::MutexLock lock(&mutex_);
      if (waiting_.empty() && active_.empty()) {
        auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || !submitted_.empty();
        };
        mutex_.Await(absl::Condition(&has_work));
      }
      submitted.swap(submitted_);
      if (status.ok() && !failed_.ok()) status = failed_;
      if (stopping_ && submitted.empty() && waiting_.empty() && active_.empty()) return;
    }
    for (const std::shared_ptr<Operation>& operation : submitted) Split(operation);

    // Start stages while there is room, reduce the oldest that is not, complete the oldest.
    const Schedule schedule = ScheduleFor(size_);
    size_t unreduced = 0;
    for (const auto& stage : active_) unreduced += stage->reduced ? 0 : 1;
    if (status.ok() && !waiting_.empty() && active_.size() < schedule.active &&
        unreduced < schedule.started) {
      active_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      status = Start(*active_.back());
    } else if (status.ok()) {
      auto next = std::find_if(active_.begin(), active_.end(),
                               [](const auto& stage) { return !stage->reduced; });
      if (next != active_.end()) {
        status = Reduce(**next);
      } else if (!active_.empty()) {
        status = Complete(*active_.front());
        if (status.ok()) {
          std::unique_ptr<Stage> stage = std::move(active_.front());
          active_.pop_front();
          scratch_.push_back(std::move(stage->scratch));
          if (--stage->operation->stages_left_ == 0) Finish(*stage->operation, absl::OkStatus());
        }
      }
    }
    if (!status.ok()) DropAll(status);
  }
}

void AllReducePipeline::DropAll(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = status;
  }
  if (link_ != nullptr) link_->Abort();
  // Messages go before the memory that they point to, which an operation lets go of when it is done.
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::deque<std::unique_ptr<Stage>>* stages : {&active_, &waiting_}) {
    for (const std::unique_ptr<Stage>& stage : *stages) operations.push_back(stage->operation);
    stages->clear();
  }
  for (const std::shared_ptr<Operation>& operation : operations) Finish(*operation, status);
}

}  // namespace leafpack::gloo_internal
