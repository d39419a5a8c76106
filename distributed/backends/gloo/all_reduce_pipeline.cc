#include "distributed/backends/gloo/all_reduce_pipeline.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <c10/core/ScalarType.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "distributed/core/reduce/reduce.h"

namespace leafpack::gloo_internal {
namespace {

// How stages overlap. Measured by real-time priority on two cores, where the rest of the machine does
// not disturb: Gloo's I/O thread spins while another thread holds a connection's lock, so what is best
// is what keeps this thread from writing to a connection on which data arrives.
struct Schedule {
  int64_t stage_bytes;  // over all ranks' parts
  // An operation of no more bytes takes its small leaves in one stage: with more ranks than cores each
  // stage costs a round of waking them all.
  int64_t one_stage_bytes;
  size_t active;   // stages under way: what is received and not reduced stays below both's product
  size_t started;  // of these, stages that are not reduced yet
  // Receives are posted before sends: then this thread writes to the sockets, else Gloo's thread does,
  // as soon as the receiver asks.
  bool receive_first;
};

Schedule ScheduleFor(int ranks) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  if (ranks <= 2) return {8 * kMiB, 8 * kMiB, 3, 2, true};
  return {std::max(kMiB, ranks * kMiB / 4), 4 * kMiB, 2, 1, false};
}

// Scratch memory of at least one such page asks for them: copies between many small leaves and a row
// are bound by the look-up of addresses.
constexpr int64_t kHugePage = int64_t{2} << 20;

// Elements of a strided leaf that are reduced at a time.
constexpr int64_t kRowBytes = int64_t{16} << 10;

}  // namespace

// Elements [begin, begin + count) of a segment; part q belongs to rank q.
struct AllReducePipeline::Portion {
  const Segment* segment;
  int64_t begin;
  int64_t count;

  int64_t PartBegin(int rank, int size) const {
    return begin + count / size * rank + std::min<int64_t>(rank, count % size);
  }
  int64_t PartCount(int rank, int size) const {
    return PartBegin(rank + 1, size) - PartBegin(rank, size);
  }
};

struct AllReducePipeline::Stage {
  // Where part q of all portions is: in the leaves or, if `staged`, in a row in the scratch memory, from
  // where it is sent and into which its result comes. The own part, if staged, is there only once it is
  // reduced, in the place of another rank's input.
  struct Part {
    char* data = nullptr;
    int64_t bytes = 0;
    bool staged = false;
  };

  std::shared_ptr<Operation> operation;
  std::vector<Portion> portions;
  int64_t bytes = 0;
  uint32_t tag = 0;
  bool reduced = false;
  std::vector<Part> parts;  // by rank
  char* inputs = nullptr;   // the own part of the other ranks, in rank order
  std::array<Scratch, 2> scratch;  // of staged parts, and of inputs
  std::vector<Message> parts_in, parts_out, results_in, results_out;

  void Gather(int rank, int size) {
    char* row = parts[rank].data;
    for (const Portion& portion : portions) {
      const int64_t count = portion.PartCount(rank, size);
      if (count == 0) continue;
      operation->views_->Gather(*portion.segment, portion.PartBegin(rank, size), count, row);
      row += count * portion.segment->element_bytes;
    }
  }
  void Scatter(int rank, int size) {
    const char* row = parts[rank].data;
    for (const Portion& portion : portions) {
      const int64_t count = portion.PartCount(rank, size);
      if (count == 0) continue;
      operation->views_->Scatter(*portion.segment, portion.PartBegin(rank, size), count, row);
      row += count * portion.segment->element_bytes;
    }
  }
  // Decides where every part is. False if there is no memory.
  bool Place(int rank, int size) {
    parts.resize(size);
    int64_t staged_bytes = 0;
    for (int q = 0; q < size; ++q) {
      Part& part = parts[q];
      int runs = 0;
      for (const Portion& portion : portions) {
        const int64_t count = portion.PartCount(q, size);
        if (count == 0) continue;
        part.bytes += count * portion.segment->element_bytes;
        part.data =
            operation->views_->Run(*portion.segment, portion.PartBegin(q, size), count);
        ++runs;
      }
      part.staged = part.bytes > 0 && (runs != 1 || part.data == nullptr);
      if (part.staged && q != rank) staged_bytes += part.bytes;
    }
    const int64_t input_bytes = parts[rank].bytes * (size - 1);
    char* next = scratch[0].Get(staged_bytes);
    inputs = scratch[1].Get(input_bytes);
    if ((next == nullptr && staged_bytes > 0) || (inputs == nullptr && input_bytes > 0)) return false;
    for (int q = 0; q < size; ++q) {
      Part& part = parts[q];
      if (!part.staged || q == rank) continue;
      part.data = next;
      next += part.bytes;
    }
    if (parts[rank].staged) parts[rank].data = inputs;
    return true;
  }
};

char* AllReducePipeline::Scratch::Get(int64_t needed) {
  if (bytes < needed) {
    const int64_t alignment = needed < kHugePage ? 64 : kHugePage;
    bytes = (needed + alignment - 1) / alignment * alignment;
    data.reset(static_cast<char*>(
        std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes))));
    if (data == nullptr) {
      bytes = 0;
      return nullptr;
    }
    if (alignment == kHugePage) madvise(data.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  }
  return data.get();
}

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
  views_.reset();
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

std::shared_ptr<Operation> AllReducePipeline::Submit(absl::Span<const LeafView> views,
                                                     ReduceOpKind op) {
  auto operation = std::make_shared<Operation>(views, op);
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
  const Schedule schedule = ScheduleFor(size_);
  int64_t total_bytes = 0;
  for (const Segment& segment : operation->views_->segments()) {
    total_bytes += segment.numel * segment.element_bytes;
  }
  const bool one_stage = total_bytes <= schedule.one_stage_bytes;
  std::unique_ptr<Stage> open;
  const auto close = [&] {
    if (open == nullptr) return;
    waiting_.push_back(std::move(open));
    ++operation->stages_left_;
  };
  for (const Segment& segment : operation->views_->segments()) {
    const int64_t stage_bytes =
        one_stage && !segment.large ? schedule.one_stage_bytes : schedule.stage_bytes;
    if (segment.large) close();
    for (int64_t begin = 0; begin < segment.numel;) {
      if (open == nullptr) {
        open = std::make_unique<Stage>();
        open->operation = operation;
      }
      const int64_t room =
          std::max<int64_t>((stage_bytes - open->bytes) / segment.element_bytes, size_);
      const int64_t count = std::min(segment.numel - begin, room);
      open->portions.push_back({&segment, begin, count});
      open->bytes += count * segment.element_bytes;
      begin += count;
      if (open->bytes >= stage_bytes) close();
    }
    if (segment.large) close();
  }
  close();
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
  if (!scratch_.empty()) {
    stage.scratch = std::move(scratch_.back());
    scratch_.pop_back();
  }
  if (!stage.Place(rank_, size_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a stage of ", stage.bytes, " bytes"));
  }
  const int64_t own_bytes = stage.parts[rank_].bytes;
  const bool receive_first = ScheduleFor(size_).receive_first;
  if (!receive_first) {
    if (absl::Status status = SendParts(stage); !status.ok()) return status;
  }
  for (int step = 1; step < size_ && own_bytes > 0; ++step) {
    const int peer = (rank_ + size_ - step) % size_;
    char* target = stage.inputs + own_bytes * (peer < rank_ ? peer : peer - 1);
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
    const Stage::Part& part = stage.parts[peer];
    if (part.bytes == 0) continue;
    if (part.staged) stage.Gather(peer, size_);
    absl::Status status =
        link_->Send(peer, stage.tag, part.data, part.bytes, &stage.parts_out.emplace_back());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::ReceiveResults(Stage& stage) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + size_ - step) % size_;
    const Stage::Part& part = stage.parts[peer];
    if (part.bytes == 0) continue;
    absl::Status status = link_->Receive(peer, stage.tag + 1, part.data, part.bytes,
                                         &stage.results_in.emplace_back());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::ReduceOwnPart(Stage& stage) {
  const Stage::Part& own = stage.parts[rank_];
  const ReduceOpKind op = stage.operation->op_;
  const ViewSequence& views = *stage.operation->views_;
  std::vector<const void*> inputs(size_);
  // From this rank's elements at `mine` and those at `offset` in the other ranks' parts.
  const auto reduce = [&](const char* mine, int64_t offset, at::ScalarType dtype, int64_t count) {
    for (int r = 0; r < size_; ++r) {
      inputs[r] = r == rank_ ? mine
                             : stage.inputs + own.bytes * (r < rank_ ? r : r - 1) + offset;
    }
    return ReduceInto(op, dtype, inputs, own.data + offset, count);
  };
  std::vector<char> row;  // of elements that do not lie in a row
  int64_t offset = 0;
  for (const Portion& portion : stage.portions) {
    const Segment& segment = *portion.segment;
    const int64_t begin = portion.PartBegin(rank_, size_);
    const int64_t count = portion.PartCount(rank_, size_);
    if (count == 0) continue;
    absl::Status status;
    if (!own.staged) {
      status = reduce(own.data, offset, segment.dtype, count);
    } else {
      views.ForEachRun(segment, begin, count, [&](char* run, int64_t at, int64_t n) {
        const int64_t step = run == nullptr ? kRowBytes / segment.element_bytes : n;
        for (int64_t i = 0; i < n && status.ok(); i += step) {
          const int64_t m = std::min(step, n - i);
          const int64_t first = begin + at / segment.element_bytes + i;
          const int64_t place = offset + at + i * segment.element_bytes;
          if (run == nullptr) {
            row.resize(kRowBytes);
            views.Gather(segment, first, m, row.data());
          }
          status = reduce(run == nullptr ? row.data() : run, place, segment.dtype, m);
          if (status.ok()) views.Scatter(segment, first, m, own.data + place);
        }
      });
    }
    if (!status.ok()) return status;
    offset += count * segment.element_bytes;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::Reduce(Stage& stage) {
  stage.reduced = true;
  const Stage::Part& own = stage.parts[rank_];
  const bool receive_first = ScheduleFor(size_).receive_first;
  if (own.bytes == 0) return receive_first ? absl::OkStatus() : ReceiveResults(stage);
  for (Message& message : stage.parts_in) {
    if (absl::Status status = link_->Wait(message); !status.ok()) return status;
  }
  if (absl::Status status = ReduceOwnPart(stage); !status.ok()) return status;
  for (int step = 1; step < size_; ++step) {
    absl::Status status = link_->Send((rank_ + step) % size_, stage.tag + 1, own.data, own.bytes,
                                      &stage.results_out.emplace_back());
    if (!status.ok()) return status;
  }
  return receive_first ? absl::OkStatus() : ReceiveResults(stage);
}

absl::Status AllReducePipeline::Complete(Stage& stage) {
  size_t next = 0;
  for (int step = 1; step < size_; ++step) {  // as in ReceiveResults
    const int peer = (rank_ + size_ - step) % size_;
    if (stage.parts[peer].bytes == 0) continue;
    if (absl::Status status = link_->Wait(stage.results_in[next++]); !status.ok()) return status;
    if (stage.parts[peer].staged) stage.Scatter(peer, size_);
  }
  for (std::vector<Message>* messages : {&stage.parts_out, &stage.results_out}) {
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
