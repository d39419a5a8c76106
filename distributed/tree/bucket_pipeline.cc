#include "distributed/tree/bucket_pipeline.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/reduce/reduce.h"
#include "distributed/tree/stopwatch.h"

namespace leafpack::internal {
namespace {

// How long Settle waits for an aborted backend; it needs about 20 ms.
constexpr absl::Duration kSettleTime = absl::Seconds(2);

}  // namespace

BucketPipeline::BucketPipeline(const BucketPlan& plan, const FlatTree& tree, Packer& packer,
                               Call& call, DataContext& context, Options options,
                               AllReduceStats& stats)
    : plan_(plan),
      tree_(tree),
      packer_(packer),
      call_(call),
      context_(context),
      options_(std::move(options)),
      stats_(stats) {}

absl::Status BucketPipeline::Run() {
  absl::Status status;
  for (size_t i = 0; status.ok() && i < plan_.buckets.size(); ++i) {
    // Staged copies are all kept to the end, so waiting would bound nothing.
    while (status.ok() && !options_.stage && !in_flight_.empty() &&
           in_flight_bytes_ + plan_.buckets[i].bytes > options_.max_in_flight_bytes) {
      status = WaitForFront();
    }
    if (status.ok()) status = Poll();
    if (status.ok()) status = Enqueue(i);
    if (status.ok()) status = FinishWhatIsDone();
  }
  call_.LeaveTurnstile();
  while (status.ok() && !in_flight_.empty()) status = WaitForFront();
  return status;
}

absl::Status BucketPipeline::Poll() {
  if (absl::Status status = call_.Poll(); !status.ok() || !options_.interrupt) return status;
  const absl::Time now = absl::Now();
  if (now - asked_at_ < kWaitSlice) return absl::OkStatus();
  asked_at_ = now;
  return options_.interrupt() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

absl::StatusOr<PackedBucket> BucketPipeline::PackNext(const Bucket& bucket) {
  ScopedStopwatch watch(stats_.pack);
  absl::StatusOr<PackedBucket> packed =
      options_.stage ? packer_.Stage(bucket, tree_.leaves, options_.order)
                     : packer_.Pack(bucket, tree_.leaves, options_.order);
  if (packed.ok() && options_.op.kind == ReduceOpKind::kPremulSum) {
    if (!packed->owned()) ++direct_started_;
    absl::Status status =
        ApplyFactor(packed->dtype(), options_.op.factor, packed->data(), packed->numel());
    if (!status.ok()) return status;
    if (!packed->owned()) --direct_started_;
  }
  return packed;
}

absl::Status BucketPipeline::Enqueue(size_t index) {
  const Bucket& bucket = plan_.buckets[index];
  absl::StatusOr<PackedBucket> result = PackNext(bucket);
  if (!result.ok()) return result.status();
  auto packed = std::make_shared<PackedBucket>(*std::move(result));
  LeafView view;
  view.data = packed->data();
  view.dtype = packed->dtype();
  view.device = packed->device();
  view.sizes = {packed->numel()};
  view.strides = {1};
  view.keep_alive = packed;
  std::vector<LeafView> views;
  views.push_back(std::move(view));
  ReduceOp op = options_.op;
  if (op.kind == ReduceOpKind::kPremulSum) op = ReduceOp::kSum;
  if (packed->owned()) {
    in_flight_bytes_ += packed->bytes();
  } else {
    ++direct_started_;
  }
  absl::StatusOr<std::unique_ptr<DataWork>> work = context_.AllReduce(std::move(views), op);
  if (!work.ok()) return work.status();
  in_flight_.push_back({index, std::move(packed), *std::move(work)});
  return absl::OkStatus();
}

absl::Status BucketPipeline::WaitForFront() {
  while (true) {
    absl::StatusOr<bool> done = [&] {
      ScopedStopwatch watch(stats_.communicate);
      return in_flight_.front().work->WaitFor(kWaitSlice);
    }();
    if (!done.ok()) return done.status();
    if (*done) return FinishFront();
    if (absl::Status status = Poll(); !status.ok()) return status;
  }
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
  if (front.packed->owned()) {
    ScopedStopwatch watch(stats_.unpack);
    in_flight_bytes_ -= front.packed->bytes();
    absl::Status status =
        packer_.Unpack(plan_.buckets[front.bucket], *front.packed, tree_.leaves);
    if (!status.ok()) return status;
  } else {
    ++direct_done_;
  }
  done_.push_back(front.bucket);
  if (options_.on_bucket_done) options_.on_bucket_done(front.bucket);
  return absl::OkStatus();
}

void BucketPipeline::Settle() {
  const absl::Time until = absl::Now() + kSettleTime;
  for (InFlight& flight : in_flight_) {
    while (absl::Now() < until) {
      absl::StatusOr<bool> done = flight.work->WaitFor(kWaitSlice);
      if (!done.ok() || *done) break;
    }
  }
  // A work that still runs keeps its buffer through the view that it was given.
  in_flight_.clear();
}

absl::Status BucketPipeline::Commit() {
  ScopedStopwatch watch(stats_.unpack);
  for (InFlight& flight : staged_) {
    absl::Status status =
        packer_.Unpack(plan_.buckets[flight.bucket], *flight.packed, tree_.leaves);
    if (!status.ok()) return status;
    done_.push_back(flight.bucket);
    if (options_.on_bucket_done) options_.on_bucket_done(flight.bucket);
    flight.packed.reset();
  }
  staged_.clear();
  return absl::OkStatus();
}

}  // namespace leafpack::internal
