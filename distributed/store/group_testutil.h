// One-number collectives over the calls of a group, for tests below the layer of trees.
#ifndef LEAFPACK_DISTRIBUTED_STORE_GROUP_TESTUTIL_H_
#define LEAFPACK_DISTRIBUTED_STORE_GROUP_TESTUTIL_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "distributed/core/group.h"

namespace leafpack {

// Sum over the ranks, over the control channel.
absl::StatusOr<int64_t> FrameSum(const Group& group, int64_t value);

// Sum over the ranks of `count` equal numbers, over the data path. Internal when they come out
// unequal.
absl::StatusOr<int64_t> DataSum(const Group& group, int64_t value, int64_t count);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_GROUP_TESTUTIL_H_
