#include "distributed/backends/shm/torch/collectives.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "distributed/core/reduce_op.h"

namespace leafpack::shm {
namespace {

// Dead ranks are looked for within a slice.
constexpr absl::Duration kSlice = absl::Milliseconds(100);

const char* Name(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kReduce: return "reduce";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kAllGather: return "all_gather";
    case Collective::kGather: return "gather";
    case Collective::kScatter: return "scatter";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBarrier: return "barrier";
  }
  return "an unknown collective";
}

bool Reduces(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kReduce ||
         kind == Collective::kReduceScatter;
}

}  // namespace

void Collectives::Add(std::shared_ptr<Call> call) {
  Count(*call);
  {
    absl::MutexLock lock(&queue_mutex_);
    queue_.push_back(call);
  }
  Added(*call);
}

void Collectives::Abort() { memory_->Abort(); }

std::vector<Runner::Ended> Collectives::Move(absl::Time until) {
  std::shared_ptr<Call> front;
  {
    absl::MutexLock lock(&queue_mutex_);
    if (queue_.empty()) return {};
    front = queue_.front();
  }
  absl::Status status = broken_;
  if (status.ok()) {
    absl::StatusOr<bool> over = Advance(*front, until);
    if (over.ok() && !*over) return {};
    status = over.status();
    if (!status.ok() && !absl::IsInvalidArgument(status)) {
      broken_ = absl::Status(status.code(), absl::StrCat(front->name, " failed before: ", status.message()));
      memory_->Abort();
    }
  }
  absl::MutexLock lock(&queue_mutex_);
  queue_.pop_front();
  front->work = nullptr;
  return {Ended{std::move(front), std::move(status)}};
}

absl::Status Collectives::Begin(Call& call) {
  const size_t size = static_cast<size_t>(memory_->size());
  const size_t rank = static_cast<size_t>(memory_->rank());
  call.headers = std::make_shared<std::vector<uint64_t>>(size * words());
  uint64_t* mine = call.headers->data() + rank * words();
  mine[0] = ++number_;
  mine[1] = static_cast<uint64_t>(call.kind) |
            (Reduces(call.kind) ? static_cast<uint64_t>(call.op) : 0) << 8 |
            static_cast<uint64_t>(call.dtype) << 16 | static_cast<uint64_t>(call.root + 1) << 32;
  mine[2] = call.bytes;
  mine[3] = call.layout;
  std::copy(call.sends.begin(), call.sends.end(), mine + 4);
  std::copy(call.receives.begin(), call.receives.end(), mine + 4 + size);
  if (size == 1) return absl::OkStatus();
  std::vector<Transfer> sends, receives;
  for (size_t peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto view = [&](size_t row) {
      LeafView leaf;
      leaf.data = call.headers->data() + row * words();
      leaf.dtype = at::kLong;
      leaf.sizes = {static_cast<int64_t>(words())};
      leaf.strides = {1};
      leaf.keep_alive = call.headers;
      return leaf;
    };
    sends.push_back({static_cast<int>(peer), {view(rank)}});
    receives.push_back({static_cast<int>(peer), {view(peer)}});
  }
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      memory_->Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  call.work = *std::move(work);
  return absl::OkStatus();
}

absl::StatusOr<bool> Collectives::Advance(Call& call, absl::Time until) {
  using Phase = Call::Phase;
  if (call.phase == Phase::kNew) {
    if (absl::Status status = Begin(call); !status.ok()) return status;
    call.phase = Phase::kAgreeing;
  }
  while (true) {
    while (call.work != nullptr) {
      const absl::Time now = absl::Now();
      absl::StatusOr<bool> over =
          call.work->WaitFor(std::min({until, call.deadline, now + kSlice}) - now);
      if (!over.ok()) return over.status();
      if (*over) {
        call.work = nullptr;
        break;
      }
      const absl::Time after = absl::Now();
      if (after >= call.deadline) {
        return absl::DeadlineExceededError(
            call.phase == Phase::kAgreeing
                ? absl::StrCat("timed out: ", Missing(call), " did not call it in time")
                : "timed out while data moved");
      }
      if (after >= until) return false;
    }
    if (call.phase == Phase::kMoving) {
      if (call.finish != nullptr) {
        if (absl::Status status = call.finish(); !status.ok()) return status;
      }
      return true;
    }
    if (absl::Status status = Compare(call); !status.ok()) return status;
    call.phase = Phase::kMoving;
    if (call.start != nullptr) {
      absl::StatusOr<std::unique_ptr<DataWork>> work = call.start(*memory_);
      if (!work.ok()) {
        // The others go on without this rank, so that is no disagreement.
        return absl::InternalError(work.status().message());
      }
      call.work = *std::move(work);
    }
  }
}

absl::Status Collectives::Compare(const Call& call) const {
  const size_t size = static_cast<size_t>(memory_->size());
  const auto row = [&](size_t rank) { return call.headers->data() + rank * words(); };
  for (size_t rank = 1; rank < size; ++rank) {
    if (std::equal(row(0), row(0) + 4, row(rank))) continue;
    const bool hidden = Describe(row(0)) == Describe(row(rank));
    return absl::InvalidArgumentError(absl::StrCat(
        "the ranks disagree: group rank 0 calls ", Describe(row(0)), ", group rank ", rank, " calls ",
        Describe(row(rank)), hidden ? ", but their lists of tensors differ" : ""));
  }
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      const uint64_t sent = row(from)[4 + to], expected = row(to)[4 + size + from];
      if (sent == expected) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the ranks disagree: group rank ", from, " sends ", sent, " bytes to group rank ", to,
          ", which expects ", expected));
    }
  }
  return absl::OkStatus();
}

std::string Collectives::Describe(const uint64_t* header) const {
  const auto kind = static_cast<Collective>(header[1] & 0xff);
  const auto dtype = static_cast<at::ScalarType>(header[1] >> 16 & 0xff);
  const int64_t root = static_cast<int64_t>(header[1] >> 32) - 1;
  std::string text = Name(kind);
  if (Reduces(kind)) {
    absl::StrAppend(&text, "(", ReduceOpName(static_cast<ReduceOpKind>(header[1] >> 8 & 0xff)), ") of ",
                    header[2], " bytes");
  }
  if (dtype != at::ScalarType::Undefined) absl::StrAppend(&text, " of ", c10::toString(dtype));
  if (root >= 0) absl::StrAppend(&text, " with root ", root);
  return absl::StrCat(text, " as call ", header[0]);
}

std::string Collectives::Missing(const Call& call) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < memory_->size(); ++rank) {
    if ((*call.headers)[static_cast<size_t>(rank) * words()] == 0) ranks.push_back(rank);
  }
  return absl::StrCat(ranks.size() == 1 ? "group rank " : "group ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace leafpack::shm
