// The backend "shm" of torch.distributed: every collective and message of CPU tensors over shared memory.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_PROCESS_GROUP_SHM_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_PROCESS_GROUP_SHM_H_

#include <c10/util/intrusive_ptr.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace leafpack {

// Meets the other ranks through `store`, which is for this group alone; collective. `timeout`, more than
// zero, is for the meeting and for each operation that gives none. Errors as shm::Peers::Connect: with
// FailedPrecondition all ranks know that some do not share memory.
//
// Ranks may differ neither in the collective that they call nor in its op, dtype, root and sizes: all get
// an exception then and no tensor has changed. After any other failure the group is of no more use.
// Sparse tensors and tensors of other devices are refused. Thread-safe.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeShmProcessGroup(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, absl::Duration timeout);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_PROCESS_GROUP_SHM_H_
