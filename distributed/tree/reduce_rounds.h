// The plan of a reduction by exchange: which rank reduces which elements, in which round.
//
// A round is one exchange: each rank gets from all others what it is to reduce, its own part of which it
// has. Rounds are a pure function of the buckets, the number of ranks and the root, so equal on all
// ranks, and are small enough that what a rank receives in one fits in bounded scratch.
#ifndef LEAFPACK_DISTRIBUTED_TREE_REDUCE_ROUNDS_H_
#define LEAFPACK_DISTRIBUTED_TREE_REDUCE_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "tensordict/bucket/bucket_plan.h"

namespace leafpack::internal {

// What a rank receives in a round stays below this, but for one element of each other rank.
inline constexpr int64_t kRoundBytes = int64_t{4} << 20;
// With three ranks or more, a smaller run goes to the root at once: cutting it would cost a message more.
inline constexpr int64_t kSmallestSplitBytes = int64_t{128} << 10;

// A run of elements of one bucket.
struct ReduceChunk {
  size_t bucket = 0;
  int64_t begin = 0;  // elements, in the bucket
  int64_t count = 0;  // elements, > 0
  int owner = -1;     // the group rank that reduces it; -1: each rank its part, and the root gets all

  // The elements [PartBegin(r), PartBegin(r + 1)) of the bucket are rank r's to reduce.
  int64_t PartBegin(int rank, int ranks) const;
  int64_t PartCount(int rank, int ranks) const {
    return PartBegin(rank + 1, ranks) - PartBegin(rank, ranks);
  }
  friend bool operator==(const ReduceChunk&, const ReduceChunk&) = default;
};

struct ReduceRound {
  std::vector<ReduceChunk> chunks;
  bool has_split = false;  // some chunk has no owner
  int64_t opened_bytes = 0;  // of buckets whose first chunk is here
  int64_t closed_bytes = 0;  // of buckets whose last chunk is here
};

// All buckets to the root. Runs are cut into a part per rank, or go to the root whole where that
// moves no more: with two ranks, and small ones.
std::vector<ReduceRound> PlanReduceRounds(const BucketPlan& plan, int ranks, int root);

// Bucket i to rank owners[i].
std::vector<ReduceRound> PlanReduceScatterRounds(const BucketPlan& plan, absl::Span<const int> owners,
                                                 int ranks);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_REDUCE_ROUNDS_H_
