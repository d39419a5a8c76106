#include "distributed/tree/arena_phase.h"

#include <utility>

#include <c10/core/ScalarType.h>

#include "absl/time/clock.h"

#include "distributed/tree/arena_leaves.h"
#include "distributed/tree/stopwatch.h"

namespace leafpack::internal {

ArenaPipeline::ArenaPipeline(const BucketPlan& plan, const FlatTree& tree, Call& call,
                             ArenaContext& arenas, Options options, CollectiveStats& stats)
    : plan_(plan),
      tree_(tree),
      call_(call),
      arenas_(arenas),
      options_(std::move(options)),
      stats_(stats),
      waiter_(call, options_.interrupt, stats.communicate) {}

absl::Status ArenaPipeline::Run() {
  absl::Status status;
  for (size_t i = 0; status.ok() && i < plan_.buckets.size();) {
    size_t end = i + 1;
    for (int64_t bytes = plan_.buckets[i].bytes; end < plan_.buckets.size(); ++end) {
      bytes += plan_.buckets[end].bytes;
      if (bytes > options_.shared_operation_bytes) break;
    }
    status = Enqueue(i, end);
    i = end;
  }
  call_.LeaveTurnstile();
  if (status.ok() && options_.on_enqueued) options_.on_enqueued();
  for (size_t i = 0; status.ok() && i < in_flight_.size(); ++i) {
    status = waiter_.Wait(*in_flight_[i].work);
    if (!status.ok()) break;
    for (size_t bucket = in_flight_[i].first; bucket < in_flight_[i].end; ++bucket) {
      done_.push_back(bucket);
      if (options_.on_bucket_done) options_.on_bucket_done(bucket);
    }
  }
  return status;
}

absl::Status ArenaPipeline::Enqueue(size_t first, size_t end) {
  if (absl::Status status = waiter_.Poll(); !status.ok()) return status;
  std::vector<LeafView> views;
  std::vector<const Arena*> arenas;
  {
    ScopedStopwatch watch(stats_.pack);
    for (size_t i = first; i < end; ++i) AddViews(plan_.buckets[i], views, arenas);
  }
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      arenas_.AllReduceShared(std::move(views), std::move(arenas), options_.op);
  if (!work.ok()) return work.status();
  started_ = end;
  in_flight_.push_back({first, end, *std::move(work)});
  return absl::OkStatus();
}

void ArenaPipeline::AddViews(const Bucket& bucket, std::vector<LeafView>& views,
                             std::vector<const Arena*>& arenas) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(bucket.dtype));
  const size_t begin = views.size();
  bool last_whole = false;
  for (const Slot& slot : bucket.slots) {
    const at::Tensor& leaf = tree_.leaves[static_cast<size_t>(slot.leaf)];
    const Arena* arena = options_.leaf_arenas[static_cast<size_t>(slot.leaf)];
    const bool whole = arena != nullptr && (*options_.whole)[static_cast<size_t>(slot.leaf)];
    void* data = leaf.mutable_data_ptr();
    if (arena != nullptr && views.size() > begin && arenas.back() == arena) {
      // Leaves of one arena that follow each other are one view, with what is between them.
      LeafView& last = views.back();
      const int64_t distance = static_cast<char*>(data) - static_cast<char*>(last.data);
      const int64_t bytes = last.sizes[0] * element_bytes;
      const auto over = static_cast<int64_t>(
          (reinterpret_cast<uintptr_t>(last.data) + static_cast<uintptr_t>(bytes)) % kArenaAlignment);
      const int64_t gap = last_whole && over > 0 ? kArenaAlignment - over : 0;
      if (distance == bytes || distance == bytes + gap) {
        last.sizes[0] = distance / element_bytes + leaf.numel();
        last_whole = whole;
        continue;
      }
    }
    last_whole = whole;
    LeafView& view = views.emplace_back();
    view.data = data;
    view.dtype = bucket.dtype;
    view.device = leaf.device();
    if (arena != nullptr) {
      view.keep_alive = arena->shared_from_this();
    } else {
      if (kept_leaves_ == nullptr) {
        kept_leaves_ = std::make_shared<const std::vector<at::Tensor>>(tree_.leaves);
      }
      view.keep_alive = kept_leaves_;
    }
    if (arena != nullptr || leaf.is_non_overlapping_and_dense()) {
      view.sizes = {leaf.numel()};
      view.strides = {1};
    } else {
      view.sizes.assign(leaf.sizes().begin(), leaf.sizes().end());
      view.strides.assign(leaf.strides().begin(), leaf.strides().end());
    }
    arenas.push_back(arena);
  }
}

void ArenaPipeline::Settle() {
  const absl::Time until = absl::Now() + kSettleTime;
  for (InFlight& flight : in_flight_) internal::Settle(*flight.work, until);
  in_flight_.clear();
}

}  // namespace leafpack::internal
