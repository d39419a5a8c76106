// The options of the collectives that reduce: all_reduce, reduce and reduce_scatter.
#ifndef LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_OPTIONS_H_
#define LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

#include "distributed/core/engine.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/filter.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/bucket/bucket_plan.h"

namespace leafpack {

struct AllReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  // Auto: see tensordict/bucket/bucket_plan.h for how it decides; PerLeaf; MaxBytes(n).
  Bucketing bucketing = Bucketing::Auto();
  // Of the whole call, from now; InfiniteDuration means the group's. Must be > 0.
  absl::Duration timeout = absl::InfiniteDuration();
  LeafFilter leaves = LeafFilter::All();
  // Part of the agreement: a mix-up of two calls with equal layouts becomes an error. At most 256
  // bytes.
  std::string name{};
  OnFailure on_failure = OnFailure::kReport;
  // kFirst and kOff matter to backends that enqueue on devices; host backends agree on every call.
  CheckMode check = CheckMode::kAlways;
  // Packed bytes in flight on this rank stay under this (a bucket larger than it goes alone). With
  // kRestore the whole tree is staged instead.
  int64_t max_in_flight_bytes = int64_t{64} << 20;
  // Asked about every 50 ms by the waits of a synchronous call; true gives the call up.
  InterruptCheck interrupt{};
  // If not null, filled by a synchronous call with where its time went.
  CollectiveStats* stats = nullptr;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_OPTIONS_H_
