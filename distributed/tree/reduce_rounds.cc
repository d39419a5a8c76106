#include "distributed/tree/reduce_rounds.h"

#include <algorithm>

#include <c10/core/ScalarType.h>

namespace leafpack::internal {
namespace {

// Goes through the buckets of one destination, run by run.
class Cursor {
 public:
  Cursor(const BucketPlan& plan, std::vector<size_t> buckets)
      : plan_(plan), buckets_(std::move(buckets)) {}

  bool done() const { return at_ == buckets_.size(); }
  int64_t element_bytes() const {
    return static_cast<int64_t>(c10::elementSize(plan_.buckets[buckets_[at_]].dtype));
  }
  // Elements of the current bucket that are left.
  int64_t left() const { return plan_.buckets[buckets_[at_]].bytes / element_bytes() - begin_; }

  // Adds the next `count` <= left() elements to `round`.
  void Take(int64_t count, int owner, ReduceRound& round) {
    const Bucket& bucket = plan_.buckets[buckets_[at_]];
    if (begin_ == 0) round.opened_bytes += bucket.bytes;
    if (count == left()) round.closed_bytes += bucket.bytes;
    round.chunks.push_back({buckets_[at_], begin_, count, owner});
    if (owner < 0) round.has_split = true;
    const bool last = count == left();
    begin_ = last ? 0 : begin_ + count;
    if (last) ++at_;
  }

 private:
  const BucketPlan& plan_;
  const std::vector<size_t> buckets_;
  size_t at_ = 0;
  int64_t begin_ = 0;
};

}  // namespace

int64_t ReduceChunk::PartBegin(int rank, int ranks) const {
  if (owner >= 0) return begin + (rank > owner ? count : 0);
  return begin + count / ranks * rank + std::min<int64_t>(rank, count % ranks);
}

std::vector<ReduceRound> PlanReduceRounds(const BucketPlan& plan, int ranks, int root) {
  std::vector<size_t> all(plan.buckets.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  std::vector<ReduceRound> rounds;
  Cursor cursor(plan, std::move(all));
  int64_t load = kRoundBytes;  // of the last round: what its busiest rank receives
  while (!cursor.done()) {
    const int64_t element = cursor.element_bytes();
    const bool whole = ranks == 2 || cursor.left() * element < kSmallestSplitBytes;
    // Received by the root for each byte of a whole run, or by any rank for each byte that is cut.
    const int64_t factor = whole ? ranks - 1 : 1;
    int64_t room = (kRoundBytes - load) / (factor * element);
    // A run is cut to fill a round only if a large part fits.
    if (room < std::min(cursor.left(), kRoundBytes / (4 * factor * element))) room = 0;
    if (room == 0) {
      rounds.emplace_back();
      load = 0;
      room = std::max<int64_t>(kRoundBytes / (factor * element), 1);
    }
    const int64_t count = std::min(room, cursor.left());
    load += count * element * factor;
    cursor.Take(count, whole ? root : -1, rounds.back());
  }
  return rounds;
}

std::vector<ReduceRound> PlanReduceScatterRounds(const BucketPlan& plan, absl::Span<const int> owners,
                                                 int ranks) {
  std::vector<Cursor> cursors;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<size_t> own;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] == rank) own.push_back(i);
    }
    cursors.emplace_back(plan, std::move(own));
  }
  std::vector<ReduceRound> rounds;
  while (true) {
    ReduceRound round;
    for (int rank = 0; rank < ranks; ++rank) {
      Cursor& cursor = cursors[static_cast<size_t>(rank)];
      int64_t load = 0;
      while (!cursor.done()) {
        const int64_t each = cursor.element_bytes() * std::max(ranks - 1, 1);
        const int64_t room = (kRoundBytes - load) / each;
        if (room == 0 && load > 0) break;
        const int64_t count = std::min(std::max<int64_t>(room, 1), cursor.left());
        load += count * each;
        cursor.Take(count, rank, round);
      }
    }
    if (round.chunks.empty()) return rounds;
    rounds.push_back(std::move(round));
  }
}

}  // namespace leafpack::internal
