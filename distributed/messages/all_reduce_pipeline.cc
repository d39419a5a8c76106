#include "distributed/messages/all_reduce_pipeline.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "distributed/core/reduce/reduce.h"

namespace leafpack::messages {
namespace {

// Scratch memory of at least one such page asks for them: copies between many small leaves and a row
// are bound by the look-up of addresses.
constexpr int64_t kHugePage = int64_t{2} << 20;

// Elements of a strided leaf that are reduced at a time.
constexpr int64_t kRowBytes = int64_t{16} << 10;

absl::Status Keep(absl::StatusOr<std::unique_ptr<Message>> message,
                  std::vector<std::unique_ptr<Message>>& messages) {
  if (message.ok()) messages.push_back(*std::move(message));
  return message.status();
}

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
    std::vector<Run> runs;
    int64_t bytes = 0;
    bool staged = false;

    char* row() const { return runs[0].data; }
  };

  std::shared_ptr<Operation> operation;
  std::vector<Portion> portions;
  int64_t bytes = 0;
  uint32_t tag = 0;
  bool reduced = false;
  std::vector<Part> parts;  // by rank
  char* inputs = nullptr;   // the own part of the other ranks, in rank order
  std::array<Scratch, 2> scratch;  // of staged parts, and of inputs
  std::vector<std::unique_ptr<Message>> parts_in, parts_out, results_in, results_out;

  void Gather(int rank, int size) {
    char* row = parts[rank].row();
    for (const Portion& portion : portions) {
      const int64_t count = portion.PartCount(rank, size);
      if (count == 0) continue;
      operation->views_->Gather(*portion.segment, portion.PartBegin(rank, size), count, row);
      row += count * portion.segment->element_bytes;
    }
  }
  void Scatter(int rank, int size) {
    const char* row = parts[rank].row();
    for (const Portion& portion : portions) {
      const int64_t count = portion.PartCount(rank, size);
      if (count == 0) continue;
      operation->views_->Scatter(*portion.segment, portion.PartBegin(rank, size), count, row);
      row += count * portion.segment->element_bytes;
    }
  }
  // Decides where every part is. `min_run_bytes`: see Schedule. False if there is no memory.
  bool Place(int rank, int size, int64_t min_run_bytes) {
    parts.resize(static_cast<size_t>(size));
    int64_t staged_bytes = 0;
    for (int q = 0; q < size; ++q) {
      Part& part = parts[static_cast<size_t>(q)];
      bool strided = false;
      for (const Portion& portion : portions) {
        const int64_t count = portion.PartCount(q, size);
        if (count == 0) continue;
        const int64_t element_bytes = portion.segment->element_bytes;
        part.bytes += count * element_bytes;
        if (strided || (min_run_bytes == 0 && part.runs.size() > 1)) continue;  // it is staged
        operation->views_->ForEachRun(*portion.segment, portion.PartBegin(q, size), count,
                                      [&](char* run, int64_t, int64_t n) {
                                        strided |= run == nullptr;
                                        part.runs.push_back({run, n * element_bytes});
                                      });
      }
      const auto runs = static_cast<int64_t>(part.runs.size());
      const bool too_many = runs > 1 && (min_run_bytes == 0 || part.bytes / runs < min_run_bytes);
      part.staged = strided || too_many;
      if (part.staged) part.runs = {{nullptr, part.bytes}};
      if (part.staged && q != rank) staged_bytes += part.bytes;
    }
    Part& own = parts[static_cast<size_t>(rank)];
    const int64_t input_bytes = own.bytes * (size - 1);
    char* next = scratch[0].Get(staged_bytes);
    inputs = scratch[1].Get(input_bytes);
    if ((next == nullptr && staged_bytes > 0) || (inputs == nullptr && input_bytes > 0)) return false;
    for (Part& part : parts) {
      if (!part.staged || &part == &own) continue;
      part.runs[0].data = next;
      next += part.bytes;
    }
    if (own.staged) own.runs[0].data = inputs;
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

AllReducePipeline::AllReducePipeline(MessageLink* link, int rank, int size)
    : rank_(rank), size_(size), link_(link), thread_([this] { Loop(); }) {}

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
  link_->Abort();
}

void AllReducePipeline::Split(const std::shared_ptr<Operation>& operation) {
  const Schedule& schedule = link_->schedule();
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
  next_tag_ = (next_tag_ + 2) % MessageLink::kTagLimit;
  if (!scratch_.empty()) {
    stage.scratch = std::move(scratch_.back());
    scratch_.pop_back();
  }
  const Schedule& schedule = link_->schedule();
  if (!stage.Place(rank_, size_, schedule.min_run_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a stage of ", stage.bytes, " bytes"));
  }
  const int64_t own_bytes = stage.parts[rank_].bytes;
  if (!schedule.receive_first) {
    if (absl::Status status = SendParts(stage); !status.ok()) return status;
  }
  for (int step = 1; step < size_ && own_bytes > 0; ++step) {
    const int peer = (rank_ + size_ - step) % size_;
    char* target = stage.inputs + own_bytes * (peer < rank_ ? peer : peer - 1);
    const Run run = {target, own_bytes};
    absl::Status status =
        Keep(link_->Receive(peer, stage.tag, absl::MakeConstSpan(&run, 1)), stage.parts_in);
    if (!status.ok()) return status;
  }
  if (!schedule.receive_first) return absl::OkStatus();
  if (absl::Status status = ReceiveResults(stage); !status.ok()) return status;
  return SendParts(stage);
}

absl::Status AllReducePipeline::SendParts(Stage& stage) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const Stage::Part& part = stage.parts[peer];
    if (part.bytes == 0) continue;
    if (part.staged) stage.Gather(peer, size_);
    absl::Status status = Keep(link_->Send(peer, stage.tag, part.runs), stage.parts_out);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::ReceiveResults(Stage& stage) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + size_ - step) % size_;
    const Stage::Part& part = stage.parts[peer];
    if (part.bytes == 0) continue;
    absl::Status status = Keep(link_->Receive(peer, stage.tag + 1, part.runs), stage.results_in);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::ReduceOwnPart(Stage& stage) {
  const Stage::Part& own = stage.parts[rank_];
  const ViewSequence& views = *stage.operation->views_;
  std::vector<const void*> inputs(size_);
  std::vector<char> row;  // of elements that do not lie in a row
  absl::Status status;
  int64_t offset = 0;  // in the part
  for (const Portion& portion : stage.portions) {
    const Segment& segment = *portion.segment;
    const int64_t begin = portion.PartBegin(rank_, size_);
    const int64_t count = portion.PartCount(rank_, size_);
    if (count == 0) continue;
    views.ForEachRun(segment, begin, count, [&](char* run, int64_t at, int64_t n) {
      const int64_t step = run == nullptr ? kRowBytes / segment.element_bytes : n;
      for (int64_t i = 0; i < n && status.ok(); i += step) {
        const int64_t m = std::min(step, n - i);
        const int64_t first = begin + at / segment.element_bytes + i;
        const int64_t place = offset + at + i * segment.element_bytes;
        const char* mine = run;
        if (run == nullptr) {
          row.resize(kRowBytes);
          views.Gather(segment, first, m, row.data());
          mine = row.data();
        }
        for (int r = 0; r < size_; ++r) {
          inputs[r] = r == rank_ ? mine : stage.inputs + own.bytes * (r < rank_ ? r : r - 1) + place;
        }
        char* const result = own.staged ? own.row() + place : run;
        status = ReduceInto(stage.operation->op_, segment.dtype, inputs, result, m);
        if (status.ok() && own.staged) views.Scatter(segment, first, m, result);
      }
    });
    if (!status.ok()) return status;
    offset += count * segment.element_bytes;
  }
  return absl::OkStatus();
}

absl::Status AllReducePipeline::Reduce(Stage& stage) {
  stage.reduced = true;
  const Stage::Part& own = stage.parts[rank_];
  const bool receive_first = link_->schedule().receive_first;
  if (own.bytes == 0) return receive_first ? absl::OkStatus() : ReceiveResults(stage);
  for (const std::unique_ptr<Message>& message : stage.parts_in) {
    if (absl::Status status = link_->Wait(*message); !status.ok()) return status;
  }
  if (absl::Status status = ReduceOwnPart(stage); !status.ok()) return status;
  for (int step = 1; step < size_; ++step) {
    absl::Status status =
        Keep(link_->Send((rank_ + step) % size_, stage.tag + 1, own.runs), stage.results_out);
    if (!status.ok()) return status;
  }
  return receive_first ? absl::OkStatus() : ReceiveResults(stage);
}

absl::Status AllReducePipeline::Complete(Stage& stage) {
  size_t next = 0;
  for (int step = 1; step < size_; ++step) {  // as in ReceiveResults
    const int peer = (rank_ + size_ - step) % size_;
    if (stage.parts[peer].bytes == 0) continue;
    if (absl::Status status = link_->Wait(*stage.results_in[next++]); !status.ok()) return status;
    if (stage.parts[peer].staged) stage.Scatter(peer, size_);
  }
  for (const auto* messages : {&stage.parts_out, &stage.results_out}) {
    for (const std::unique_ptr<Message>& message : *messages) {
      if (absl::Status status = link_->Wait(*message); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void AllReducePipeline::Loop() {
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
    const Schedule& schedule = link_->schedule();
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
  link_->Abort();
  // Messages go before the memory that they point to, which an operation lets go of when it is done.
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::deque<std::unique_ptr<Stage>>* stages : {&active_, &waiting_}) {
    for (const std::unique_ptr<Stage>& stage : *stages) operations.push_back(stage->operation);
    stages->clear();
  }
  for (const std::shared_ptr<Operation>& operation : operations) Finish(*operation, status);
}

}  // namespace leafpack::messages
