#include "distributed/tree/bucket_pipeline.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/reduce/reduce.h"
#include "distributed/tree/device_work.h"
#include "distributed/tree/leaf_views.h"
#include "distributed/tree/polled_pack.h"
#include "distributed/tree/stopwatch.h"

namespace leafpack::internal {

BucketPipeline::BucketPipeline(const BucketPlan& plan, const FlatTree& tree, Packer& packer,
                               Call& call, DataContext& context, Options options,
                               CollectiveStats& stats)
    : plan_(plan),
      tree_(tree),
      packer_(packer),
      call_(call),
      context_(context),
      options_(std::move(options)),
      stats_(stats),
      waiter_(call, options_.interrupt, stats.communicate) {}

absl::Status BucketPipeline::Run() {
  absl::Status status;
  for (size_t i = 0; status.ok() && i < plan_.buckets.size();) {
    int64_t bytes = 0;
    const size_t end = EndOfOperation(i, bytes);
    // Staged copies are all kept to the end, so waiting would bound nothing.
    while (status.ok() && !options_.stage && in_flight_bytes_ > 0 &&
           in_flight_bytes_ + bytes > options_.max_in_flight_bytes) {
      status = WaitForFront();
    }
    if (status.ok()) status = waiter_.Poll();
    if (status.ok()) status = Enqueue(i, end);
    if (status.ok()) status = FinishWhatIsDone();
    i = end;
  }
  call_.LeaveTurnstile();
  if (status.ok() && options_.on_enqueued) options_.on_enqueued();
  while (status.ok() && !in_flight_.empty()) status = WaitForFront();
  return status;
}

absl::StatusOr<PackedBucket> BucketPipeline::PackNext(const Bucket& bucket) {
  ScopedStopwatch watch(stats_.pack);
  absl::StatusOr<PackedBucket> packed = PackPolled(packer_, bucket, tree_.leaves, options_.order,
                                                   options_.stage, [&] { return waiter_.Poll(); });
  if (packed.ok() && options_.op.kind == ReduceOpKind::kPremulSum) {
    if (!packed->owned()) ++direct_started_;
    absl::Status status =
        packed->device().is_cpu()
            ? ApplyFactor(packed->dtype(), options_.op.factor, packed->data(), packed->numel())
            : MultiplyOnDevice(packed->tensor(), options_.op.factor);
    if (!status.ok()) return status;
    if (!packed->owned()) --direct_started_;
  }
  return packed;
}

size_t BucketPipeline::EndOfOperation(size_t first, int64_t& bytes) const {
  size_t end = first + 1;
  bytes = plan_.buckets[first].bytes;
  if (!options_.leaf_views) return end;
  for (; end < plan_.buckets.size(); ++end) {
    const Bucket& next = plan_.buckets[end];
    if (next.device != plan_.buckets[first].device ||
        bytes + next.bytes > options_.shared_operation_bytes) {
      break;
    }
    bytes += next.bytes;
  }
  return end;
}

absl::Status BucketPipeline::AddViews(const Bucket& bucket, std::vector<LeafView>& views,
                                      std::vector<std::shared_ptr<PackedBucket>>& packed) {
  if (options_.leaf_views && !options_.stage && options_.op.kind != ReduceOpKind::kPremulSum &&
      CanBeViewed(bucket, tree_.leaves)) {
    ScopedStopwatch watch(stats_.pack);
    if (kept_leaves_ == nullptr) {
      kept_leaves_ = std::make_shared<const std::vector<at::Tensor>>(tree_.leaves);
    }
    AppendLeafViews(bucket, tree_.leaves, options_.order, kept_leaves_, views);
    packed.push_back(nullptr);
    ++direct_started_;
    return absl::OkStatus();
  }
  absl::StatusOr<PackedBucket> result = PackNext(bucket);
  if (!result.ok()) return result.status();
  packed.push_back(std::make_shared<PackedBucket>(*std::move(result)));
  if (packed.back()->owned()) {
    in_flight_bytes_ += packed.back()->bytes();
  } else {
    ++direct_started_;
  }
  if (options_.leaf_views) {
    AppendSlotViews(bucket, packed.back(), views);
  } else {
    AppendRunView(packed.back(), views);
  }
  return absl::OkStatus();
}

absl::Status BucketPipeline::Enqueue(size_t first, size_t end) {
  std::vector<LeafView> views;
  std::vector<std::shared_ptr<PackedBucket>> packed;
  if (options_.leaf_views) {
    size_t slots = 0;
    for (size_t i = first; i < end; ++i) slots += plan_.buckets[i].slots.size();
    views.reserve(slots);
  }
  for (size_t i = first; i < end; ++i) {
    if (absl::Status status = AddViews(plan_.buckets[i], views, packed); !status.ok()) {
      return status;
    }
  }
  ReduceOp op = options_.op;
  if (op.kind == ReduceOpKind::kPremulSum) op = ReduceOp::kSum;
  absl::StatusOr<std::unique_ptr<DataWork>> work = context_.AllReduce(std::move(views), op);
  if (!work.ok()) return work.status();
  in_flight_.push_back({first, std::move(packed), *std::move(work)});
  return absl::OkStatus();
}

absl::Status BucketPipeline::WaitForFront() {
  if (absl::Status status = waiter_.Wait(*in_flight_.front().work); !status.ok()) return status;
  return FinishFront();
}

absl::Status BucketPipeline::FinishWhatIsDone() {
  while (!in_flight_.empty() && in_flight_.front().work->IsDone()) {
    absl::StatusOr<bool> done = in_flight_.front().work->WaitFor(absl::ZeroDuration());
    if (!done.ok()) return done.status();
    if (!*done) return absl::OkStatus();
    if (absl::Status status = FinishFront(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status BucketPipeline::FinishFront() {
  InFlight front = std::move(in_flight_.front());
  in_flight_.pop_front();
  front.work.reset();
  if (options_.stage) {
    staged_.push_back(std::move(front));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < front.packed.size(); ++i) {
    if (front.packed[i] != nullptr && front.packed[i]->owned()) {
      in_flight_bytes_ -= front.packed[i]->bytes();
    } else {
      ++direct_done_;
    }
  }
  return Deliver(front);
}

absl::Status BucketPipeline::Deliver(InFlight& flight) {
  for (size_t i = 0; i < flight.packed.size(); ++i) {
    const size_t bucket = flight.first + i;
    if (flight.packed[i] != nullptr && flight.packed[i]->owned()) {
      ScopedStopwatch watch(stats_.unpack);
      absl::Status status =
          packer_.Unpack(plan_.buckets[bucket], *flight.packed[i], tree_.leaves);
      if (status.ok()) status = FinishOnDevice(flight.packed[i]->device());
      if (!status.ok()) return status;
      flight.packed[i].reset();
    }
    done_.push_back(bucket);
    if (options_.on_bucket_done) options_.on_bucket_done(bucket);
  }
  return absl::OkStatus();
}

void BucketPipeline::Settle() {
  const absl::Time until = absl::Now() + kSettleTime;
  for (InFlight& flight : in_flight_) internal::Settle(*flight.work, until);
  // A work that still runs keeps its buffer through the view that it was given.
  in_flight_.clear();
}

absl::Status BucketPipeline::Commit() {
  for (InFlight& flight : staged_) {
    if (absl::Status status = Deliver(flight); !status.ok()) return status;
  }
  staged_.clear();
  return absl::OkStatus();
}

}  // namespace leafpack::internal
