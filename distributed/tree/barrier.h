// Barrier: waits until all ranks of a group have come. Nothing but the agreement of the ranks, over the
// control channel; no data path is opened.
#ifndef LEAFPACK_DISTRIBUTED_TREE_BARRIER_H_
#define LEAFPACK_DISTRIBUTED_TREE_BARRIER_H_

#include "absl/status/status.h"

#include "distributed/core/group.h"
#include "distributed/tree/call_options.h"

namespace leafpack {

// Returns once every rank of `group` has called it. DeadlineExceeded after options.timeout (the
// group's if none is given) names the ranks that had not come, in its text and its details; the late rank
// then gets Cancelled. FailedPrecondition when another rank calls something else, or a barrier of another
// name. A call like the others: it has a place in the order of the group's calls, and says nothing of
// asynchronous calls before it that have not been waited for.
absl::Status Barrier(const Group& group, const CallOptions& options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_BARRIER_H_
