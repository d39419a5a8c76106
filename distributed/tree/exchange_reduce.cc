#include "distributed/tree/exchange_reduce.h"

#include <algorithm>
#include <iterator>

#include <c10/core/ScalarType.h>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"

#include "distributed/core/reduce/reduce.h"
#include "distributed/tree/contiguous_view.h"
#include "distributed/tree/polled_pack.h"
#include "distributed/tree/stopwatch.h"

namespace leafpack::internal {
namespace {

// Rounds whose data is under way while an earlier one is reduced.
constexpr size_t kRoundsAhead = 2;

int64_t ElementBytes(const PackedBucket& packed) {
  return static_cast<int64_t>(c10::elementSize(packed.dtype()));
}

char* At(const PackedBucket& packed, int64_t element) {
  return static_cast<char*>(packed.data()) + element * ElementBytes(packed);
}

std::vector<Transfer> NoEmpty(std::vector<Transfer> transfers) {
  std::erase_if(transfers, [](const Transfer& transfer) { return transfer.views.empty(); });
  return transfers;
}

std::vector<Transfer> OneForEach(int ranks) {
  std::vector<Transfer> transfers(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) transfers[static_cast<size_t>(r)].peer = r;
  return transfers;
}

}  // namespace

ExchangeReduce::ExchangeReduce(const CallPlan& plan, const BucketPlan& buckets,
                               std::vector<ReduceRound> rounds, const FlatTree& tree,
                               SparseReduce& sparse, std::shared_ptr<BufferPool> pool, Call& call,
                               DataContext& context, Options options, CollectiveStats& stats)
    : plan_(plan),
      buckets_(buckets),
      rounds_(std::move(rounds)),
      tree_(tree),
      sparse_(sparse),
      packer_(std::move(pool)),
      context_(context),
      call_(call),
      options_(std::move(options)),
      stats_(stats),
      waiter_(call, options_.interrupt, stats.communicate) {
  stats.buckets = static_cast<int64_t>(buckets_.buckets.size());
}

// What is started when is a function of the plan alone: a backend pairs exchanges by their order.
absl::Status ExchangeReduce::Run() {
  absl::Status status;
  if (!plan_.sparse.empty()) {
    status = sparse_.Run(context_, waiter_);
    if (status.ok() && !options_.stage) status = sparse_.Write();
  }
  size_t next = 0;
  while (status.ok() &&
         (next < rounds_.size() || !reducing_.empty() || !forwarding_.empty())) {
    if (next < rounds_.size() && reducing_.size() < kRoundsAhead && HasRoom(rounds_[next])) {
      status = waiter_.Poll();
      if (status.ok()) status = Start(rounds_[next++]);
    } else if (!reducing_.empty()) {
      status = ReduceFront();
      while (status.ok() && forwarding_.size() > 1) status = FinishFront();
    } else {
      status = FinishFront();
    }
  }
  call_.LeaveTurnstile();
  return status;
}

// A round that opens nothing needs no more room, and one alone is let through.
bool ExchangeReduce::HasRoom(const ReduceRound& round) const {
  return round.opened_bytes == 0 || (reducing_.empty() && forwarding_.empty()) ||
         in_flight_bytes_ + round.opened_bytes <= options_.max_in_flight_bytes;
}

bool ExchangeReduce::IsWritten(size_t bucket) const {
  return options_.written.Has(static_cast<size_t>(buckets_.buckets[bucket].slots[0].leaf));
}

absl::StatusOr<ExchangeReduce::Open*> ExchangeReduce::OpenBucket(size_t index) {
  if (const auto it = open_.find(index); it != open_.end()) return &it->second;
  ScopedStopwatch watch(stats_.pack);
  const Bucket& bucket = buckets_.buckets[index];
  const bool scale = options_.op.kind == ReduceOpKind::kPremulSum;
  const bool copy = scale || (options_.stage && IsWritten(index));
  absl::StatusOr<PackedBucket> packed = PackPolled(packer_, bucket, tree_.leaves, options_.order,
                                                   copy, [&] { return waiter_.Poll(); });
  if (!packed.ok()) return packed.status();
  if (scale) {
    absl::Status status =
        ApplyFactor(packed->dtype(), options_.op.factor, packed->data(), packed->numel());
    if (!status.ok()) return status;
  }
  Open& open = open_[index];
  open.packed = std::make_shared<PackedBucket>(*std::move(packed));
  open.elements_left = open.packed->numel();
  return &open;
}

absl::StatusOr<std::unique_ptr<DataWork>> ExchangeReduce::Exchange(
    std::vector<Transfer> sends, std::vector<Transfer> receives) {
  return context_.Exchange(NoEmpty(std::move(sends)), NoEmpty(std::move(receives)));
}

absl::Status ExchangeReduce::Start(const ReduceRound& round) {
  const int rank = options_.rank, ranks = options_.ranks;
  in_flight_bytes_ += round.opened_bytes;
  int64_t scratch_bytes = 0;
  for (const ReduceChunk& chunk : round.chunks) {
    absl::StatusOr<Open*> open = OpenBucket(chunk.bucket);
    if (!open.ok()) return open.status();
    scratch_bytes += chunk.PartCount(rank, ranks) * ElementBytes(*(*open)->packed) * (ranks - 1);
  }
  absl::StatusOr<BufferPool::Buffer> buffer = packer_.pool()->Acquire(scratch_bytes);
  if (!buffer.ok()) return buffer.status();
  auto scratch = std::make_shared<BufferPool::Buffer>(*std::move(buffer));
  std::vector<Transfer> sends = OneForEach(ranks), receives = OneForEach(ranks);
  char* target = static_cast<char*>(scratch->data());
  for (const ReduceChunk& chunk : round.chunks) {
    const std::shared_ptr<PackedBucket>& packed = open_[chunk.bucket].packed;
    const int64_t own = chunk.PartCount(rank, ranks);
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      if (const int64_t count = chunk.PartCount(peer, ranks); count > 0) {
        sends[static_cast<size_t>(peer)].views.push_back(
            ContiguousView(At(*packed, chunk.PartBegin(peer, ranks)), packed->dtype(), count,
                           packed));
      }
      if (own > 0) {
        receives[static_cast<size_t>(peer)].views.push_back(
            ContiguousView(target, packed->dtype(), own, scratch));
        target += own * ElementBytes(*packed);
      }
    }
  }
  auto work = Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  reducing_.push_back({&round, std::move(scratch), *std::move(work)});
  return absl::OkStatus();
}

absl::Status ExchangeReduce::ReduceFront() {
  const int rank = options_.rank, ranks = options_.ranks;
  if (absl::Status status = waiter_.Wait(*reducing_.front().work); !status.ok()) return status;
  Flight flight = std::move(reducing_.front());
  reducing_.pop_front();
  flight.work.reset();
  const ReduceRound& round = *flight.round;
  std::vector<Transfer> sends = OneForEach(ranks), receives = OneForEach(ranks);
  char* scratch = static_cast<char*>(flight.scratch->data());
  for (const ReduceChunk& chunk : round.chunks) {
    Open& open = open_[chunk.bucket];
    const PackedBucket& packed = *open.packed;
    const int64_t own = chunk.PartCount(rank, ranks);
    const int64_t bytes = own * ElementBytes(packed);
    const bool forward = chunk.owner < 0 && rank != options_.root;
    if (own > 0) {
      // The result stays here, in the bucket, or goes to the root from the place of the first peer's part.
      char* input = At(packed, chunk.PartBegin(rank, ranks));
      char* out = forward ? scratch : input;
      if (!forward) open.touched = true;
      absl::InlinedVector<const void*, 8> inputs;
      for (int r = 0; r < ranks; ++r) {
        inputs.push_back(r == rank ? input : scratch + bytes * (r < rank ? r : r - 1));
      }
      absl::Status status = ReduceInto(options_.op.kind, packed.dtype(), inputs, out, own);
      if (!status.ok()) return status;
      if (forward) {
        sends[static_cast<size_t>(options_.root)].views.push_back(
            ContiguousView(out, packed.dtype(), own, flight.scratch));
      }
      scratch += bytes * (ranks - 1);
    }
    if (chunk.owner >= 0 || rank != options_.root) continue;
    open.touched = true;
    for (int peer = 0; peer < ranks; ++peer) {
      const int64_t count = chunk.PartCount(peer, ranks);
      if (peer == rank || count == 0) continue;
      receives[static_cast<size_t>(peer)].views.push_back(ContiguousView(
          At(packed, chunk.PartBegin(peer, ranks)), packed.dtype(), count, open.packed));
    }
  }
  if (!round.has_split) return FinishRound(round);
  auto work = Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  flight.work = *std::move(work);
  forwarding_.push_back(std::move(flight));
  return absl::OkStatus();
}

absl::Status ExchangeReduce::FinishFront() {
  if (absl::Status status = waiter_.Wait(*forwarding_.front().work); !status.ok()) return status;
  const ReduceRound& round = *forwarding_.front().round;
  forwarding_.pop_front();
  return FinishRound(round);
}

absl::Status ExchangeReduce::FinishRound(const ReduceRound& round) {
  in_flight_bytes_ -= round.closed_bytes;
  for (const ReduceChunk& chunk : round.chunks) {
    const auto it = open_.find(chunk.bucket);
    Open& open = it->second;
    open.elements_left -= chunk.count;
    if (open.elements_left > 0) continue;
    if (IsWritten(chunk.bucket)) {
      if (options_.stage) {
        staged_.emplace_back(chunk.bucket, open.packed);
      } else {
        ScopedStopwatch watch(stats_.unpack);
        absl::Status status =
            packer_.Unpack(buckets_.buckets[chunk.bucket], *open.packed, tree_.leaves);
        if (!status.ok()) return status;
        done_.push_back(chunk.bucket);
      }
    }
    open_.erase(it);
  }
  return absl::OkStatus();
}

absl::Status ExchangeReduce::Commit() {
  if (options_.stage && !plan_.sparse.empty()) {
    if (absl::Status status = sparse_.Write(); !status.ok()) return status;
  }
  ScopedStopwatch watch(stats_.unpack);
  for (auto& [bucket, packed] : staged_) {
    absl::Status status = packer_.Unpack(buckets_.buckets[bucket], *packed, tree_.leaves);
    if (!status.ok()) return status;
    done_.push_back(bucket);
    packed.reset();
  }
  staged_.clear();
  return absl::OkStatus();
}

void ExchangeReduce::Close(bool ran, bool ok) {
  if (!ran) {
    const absl::Time until = absl::Now() + kSettleTime;
    for (const std::deque<Flight>* flights : {&reducing_, &forwarding_}) {
      for (const Flight& flight : *flights) Settle(*flight.work, until);
    }
  }
  // A work that still runs keeps its memory through the views that it was given.
  reducing_.clear();
  forwarding_.clear();
  if (ok || !options_.stage) BumpVersions(tree_, options_.written);
}

std::vector<std::string> ExchangeReduce::PathsDone() const {
  std::vector<std::string> paths = sparse_.PathsDone();
  std::ranges::move(internal::PathsDone(plan_, buckets_, done_), std::back_inserter(paths));
  return paths;
}

bool ExchangeReduce::TreeUnchanged() const {
  if (!done_.empty() || sparse_.touched()) return false;
  return std::none_of(open_.begin(), open_.end(), [](const auto& entry) {
    return entry.second.touched && !entry.second.packed->owned();
  });
}

}  // namespace leafpack::internal
