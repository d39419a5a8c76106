#include "distributed/tree/spread_schedule.h"

#include <algorithm>

namespace leafpack::internal {
namespace {

// Parts have multiples of this many bytes, the last ones excepted.
constexpr int64_t kPartAlignment = 64;

}  // namespace

std::pair<int64_t, int64_t> SpreadSchedule::PartOf(int receiver, int64_t begin,
                                                   int64_t end) const {
  const int64_t parts = ranks_ - 1;
  const int64_t index = receiver < root_ ? receiver : receiver - 1;
  const int64_t each = ((end - begin + parts - 1) / parts + kPartAlignment - 1) / kPartAlignment *
                       kPartAlignment;
  return {std::min(begin + index * each, end), std::min(begin + (index + 1) * each, end)};
}

std::vector<LeafView> SpreadSchedule::Part(const SpreadRun& run, int receiver) const {
  const auto [first, last] = PartOf(receiver, run.begin, run.end);
  std::vector<LeafView> views;
  int64_t at = 0;  // where the bucket begins
  for (const std::shared_ptr<PackedBucket>& bucket : *run.buckets) {
    const int64_t from = std::max(first, at);
    const int64_t to = std::min(last, at + bucket->bytes());
    if (from < to) {
      LeafView view;
      view.data = static_cast<char*>(bucket->data()) + (from - at);
      view.dtype = at::ScalarType::Byte;
      view.device = bucket->device();
      view.sizes = {to - from};
      view.strides = {1};
      view.keep_alive = bucket;
      views.push_back(std::move(view));
    }
    at += bucket->bytes();
  }
  return views;
}

SpreadSchedule::Transfers SpreadSchedule::Exchange(const SpreadRun* dealt,
                                                   const SpreadRun* passed_on) const {
  Transfers transfers;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    if (rank_ == root_) {
      if (dealt != nullptr) transfers.sends.push_back({peer, Part(*dealt, peer)});
    } else if (peer == root_) {
      if (dealt != nullptr) transfers.receives.push_back({peer, Part(*dealt, rank_)});
    } else if (passed_on != nullptr) {
      transfers.sends.push_back({peer, Part(*passed_on, rank_)});
      transfers.receives.push_back({peer, Part(*passed_on, peer)});
    }
  }
  return transfers;
}

}  // namespace leafpack::internal
