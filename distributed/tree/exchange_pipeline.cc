#include "distributed/tree/exchange_pipeline.h"

#include <algorithm>
#include <optional>

#include "distributed/tree/polled_pack.h"
#include "distributed/tree/spread_schedule.h"
#include "distributed/tree/stopwatch.h"

namespace leafpack::internal {
namespace {

// Most bytes of a run that is dealt out at once.
constexpr int64_t kSpreadRunBytes = int64_t{4} << 20;

LeafView ViewOf(const std::shared_ptr<PackedBucket>& packed) {
  LeafView view;
  view.data = packed->data();
  view.dtype = packed->dtype();
  view.device = packed->device();
  view.sizes = {packed->numel()};
  view.strides = {1};
  view.keep_alive = packed;
  return view;
}

}  // namespace

absl::Status ExchangePipeline::ExchangeBytes(const std::vector<Bytes>& sends,
                                             const std::vector<Bytes>& receives,
                                             std::shared_ptr<const void> keep_alive) {
  const auto transfers = [&](const std::vector<Bytes>& list) {
    std::vector<Transfer> result;
    for (const Bytes& bytes : list) {
      LeafView view;
      view.data = bytes.data;
      view.dtype = at::ScalarType::Byte;
      view.sizes = {static_cast<int64_t>(bytes.size)};
      view.strides = {1};
      view.keep_alive = keep_alive;
      result.push_back({bytes.peer, {std::move(view)}});
    }
    return result;
  };
  if (absl::Status status = waiter_.Poll(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      context_.Exchange(transfers(sends), transfers(receives));
  if (!work.ok()) return work.status();
  absl::Status status = waiter_.Wait(**work);
  if (!status.ok()) bytes_.push_back(*std::move(work));
  return status;
}

absl::Status ExchangePipeline::Run(const std::vector<TreeTransfer>& sends,
                                   const std::vector<TreeTransfer>& receives, size_t steps) {
  absl::Status status;
  for (size_t step = 0; status.ok() && step < steps; ++step) {
    // Staged copies are all kept to the end, so waiting would bound nothing.
    while (status.ok() && !options_.stage && !in_flight_.empty() &&
           in_flight_bytes_ + MostPacked(sends, receives, step) > options_.max_in_flight_bytes) {
      status = FinishFront();
    }
    if (status.ok()) status = waiter_.Poll();
    if (status.ok()) status = Enqueue(sends, receives, step);
    if (status.ok()) status = FinishWhatIsDone();
  }
  call_.LeaveTurnstile();
  while (status.ok() && !in_flight_.empty()) status = FinishFront();
  return status;
}

int64_t ExchangePipeline::MostPacked(const std::vector<TreeTransfer>& sends,
                                     const std::vector<TreeTransfer>& receives, size_t step) {
  int64_t bytes = 0;
  const FlatTree* last = nullptr;
  const auto add = [&](const TreeTransfer& transfer) {
    if (step >= transfer.plan->steps.size()) return;
    const auto [first, end] = transfer.plan->steps[step];
    for (size_t i = first; i < end; ++i) {
      const Bucket& bucket = transfer.plan->buckets.buckets[i];
      const at::Tensor& leaf =
          transfer.tree->leaves[static_cast<size_t>(bucket.slots.front().leaf)];
      if (bucket.slots.size() > 1 || !leaf.is_contiguous()) bytes += bucket.bytes;
    }
  };
  for (const TreeTransfer& send : sends) {
    if (send.tree != last) add(send);  // one tree for many peers is packed once
    last = send.tree;
  }
  for (const TreeTransfer& receive : receives) add(receive);
  return bytes;
}

absl::StatusOr<std::shared_ptr<PackedBucket>> ExchangePipeline::ToSend(const TreeTransfer& send,
                                                                       size_t bucket,
                                                                       Step& step) {
  ScopedStopwatch watch(stats_.pack);
  absl::StatusOr<PackedBucket> made =
      PackPolled(packer_, send.plan->buckets.buckets[bucket], send.tree->leaves,
                 PackOrder::kLogical, /*stage=*/false, [&] { return waiter_.Poll(); });
  if (!made.ok()) return made.status();
  ++stats_.buckets;
  if (made->owned()) step.owned_bytes += made->bytes();
  return std::make_shared<PackedBucket>(*std::move(made));
}

absl::StatusOr<std::shared_ptr<PackedBucket>> ExchangePipeline::ToReceive(
    const TreeTransfer& receive, size_t bucket, Step& step) {
  absl::StatusOr<PackedBucket> made =
      packer_.AllocateFor(receive.plan->buckets.buckets[bucket], receive.tree->leaves,
                          /*direct=*/!options_.stage);
  if (!made.ok()) return made.status();
  ++stats_.buckets;
  if (made->owned()) {
    step.owned_bytes += made->bytes();
  } else {
    wrote_ = true;
  }
  auto packed = std::make_shared<PackedBucket>(*std::move(made));
  step.received.push_back({&receive, bucket, packed});
  return packed;
}

absl::Status ExchangePipeline::Start(Step step, std::vector<Transfer> sends,
                                     std::vector<Transfer> receives) {
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      context_.Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  step.work = *std::move(work);
  in_flight_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ExchangePipeline::Enqueue(const std::vector<TreeTransfer>& sends,
                                       const std::vector<TreeTransfer>& receives, size_t step) {
  Step next;
  PackedOnce packed_once;
  std::vector<Transfer> out;
  std::vector<Transfer> in;
  for (const TreeTransfer& send : sends) {
    if (step >= send.plan->steps.size()) continue;
    Transfer transfer{send.peer, {}};
    const auto [first, end] = send.plan->steps[step];
    for (size_t i = first; i < end; ++i) {
      std::shared_ptr<PackedBucket>& packed = packed_once[{send.tree, i}];
      if (packed == nullptr) {
        absl::StatusOr<std::shared_ptr<PackedBucket>> made = ToSend(send, i, next);
        if (!made.ok()) return made.status();
        packed = *std::move(made);
      }
      transfer.views.push_back(ViewOf(packed));
    }
    out.push_back(std::move(transfer));
  }
  for (const TreeTransfer& receive : receives) {
    if (step >= receive.plan->steps.size()) continue;
    Transfer transfer{receive.peer, {}};
    const auto [first, end] = receive.plan->steps[step];
    for (size_t i = first; i < end; ++i) {
      absl::StatusOr<std::shared_ptr<PackedBucket>> made = ToReceive(receive, i, next);
      if (!made.ok()) return made.status();
      transfer.views.push_back(ViewOf(*made));
    }
    in.push_back(std::move(transfer));
  }
  in_flight_bytes_ += next.owned_bytes;
  return Start(std::move(next), std::move(out), std::move(in));
}

absl::Status ExchangePipeline::Spread(const LayoutPlan& plan, const FlatTree& tree, int rank,
                                      int ranks, int root) {
  spread_ = {root, &plan, &tree};
  const SpreadSchedule schedule(rank, ranks, root);
  // Runs in order; a large bucket is cut into several, so that parts of it are passed on early.
  struct Run {
    size_t step;
    int64_t begin;
    int64_t end;
    bool last;  // of its step
  };
  std::vector<Run> runs;
  for (size_t step = 0; step < plan.steps.size(); ++step) {
    int64_t bytes = 0;
    for (size_t i = plan.steps[step].first; i < plan.steps[step].second; ++i) {
      bytes += plan.buckets.buckets[i].bytes;
    }
    for (int64_t at = 0; at < bytes; at += kSpreadRunBytes) {
      const int64_t end = std::min(at + kSpreadRunBytes, bytes);
      runs.push_back({step, at, end, end == bytes});
    }
  }
  std::deque<std::pair<SpreadRun, Step>> dealt;  // what is yet to be passed on
  std::shared_ptr<const std::vector<std::shared_ptr<PackedBucket>>> buckets;
  Step current;  // what belongs to a step as a whole goes with its last run
  absl::Status status;
  for (size_t k = 0; status.ok() && k < runs.size() + SpreadSchedule::kLag; ++k) {
    while (status.ok() && in_flight_.size() >= SpreadSchedule::kLag) status = FinishFront();
    if (status.ok()) status = waiter_.Poll();
    if (!status.ok()) break;
    if (k < runs.size()) {
      if (runs[k].begin == 0) {
        auto made = std::make_shared<std::vector<std::shared_ptr<PackedBucket>>>();
        const auto [first, end] = plan.steps[runs[k].step];
        for (size_t i = first; status.ok() && i < end; ++i) {
          absl::StatusOr<std::shared_ptr<PackedBucket>> one =
              rank == root ? ToSend(spread_, i, current) : ToReceive(spread_, i, current);
          status = one.status();
          if (one.ok()) made->push_back(*std::move(one));
        }
        if (!status.ok()) break;
        in_flight_bytes_ += current.owned_bytes;
        buckets = std::move(made);
      }
      dealt.emplace_back(SpreadRun{buckets, runs[k].begin, runs[k].end}, Step());
      if (runs[k].last) std::swap(dealt.back().second, current);
    }
    const bool passes_on = k >= SpreadSchedule::kLag;
    SpreadSchedule::Transfers transfers =
        schedule.Exchange(k < runs.size() ? &dealt.back().first : nullptr,
                          passes_on ? &dealt.front().first : nullptr);
    Step step;
    if (passes_on) {
      step = std::move(dealt.front().second);
      dealt.pop_front();
    }
    status = Start(std::move(step), std::move(transfers.sends), std::move(transfers.receives));
  }
  call_.LeaveTurnstile();
  while (status.ok() && !in_flight_.empty()) status = FinishFront();
  return status;
}

absl::Status ExchangePipeline::FinishFront() {
  if (absl::Status status = waiter_.Wait(*in_flight_.front().work); !status.ok()) return status;
  Step front = std::move(in_flight_.front());
  in_flight_.pop_front();
  front.work.reset();
  in_flight_bytes_ -= front.owned_bytes;
  if (options_.stage) {
    for (Received& received : front.received) staged_.push_back(std::move(received));
    return absl::OkStatus();
  }
  for (const Received& received : front.received) {
    if (absl::Status status = Write(received); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ExchangePipeline::FinishWhatIsDone() {
  while (!in_flight_.empty() && in_flight_.front().work->IsDone()) {
    if (absl::Status status = FinishFront(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ExchangePipeline::Write(const Received& received) {
  ScopedStopwatch watch(stats_.unpack);
  const Bucket& bucket = received.transfer->plan->buckets.buckets[received.bucket];
  wrote_ = true;
  absl::Status status =
      packer_.Unpack(bucket, *received.packed, received.transfer->tree->leaves);
  if (!status.ok()) return status;
  for (const Slot& slot : bucket.slots) {
    done_.emplace_back(received.transfer->tree, static_cast<size_t>(slot.leaf));
  }
  return absl::OkStatus();
}

absl::Status ExchangePipeline::Commit() {
  for (Received& received : staged_) {
    if (absl::Status status = Write(received); !status.ok()) return status;
    received.packed.reset();
  }
  staged_.clear();
  return absl::OkStatus();
}

void ExchangePipeline::Settle() {
  const absl::Time until = absl::Now() + kSettleTime;
  for (Step& step : in_flight_) internal::Settle(*step.work, until);
  for (std::unique_ptr<DataWork>& work : bytes_) internal::Settle(*work, until);
  // A work that still runs keeps its memory through the views that it was given.
  in_flight_.clear();
  bytes_.clear();
}

}  // namespace leafpack::internal
