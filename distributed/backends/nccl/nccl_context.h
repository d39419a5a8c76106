// The data path of one group in one epoch: packs small leaves, lets NCCL reduce, and unpacks, all on one stream
// of the device and without waiting for it.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_NCCL_CONTEXT_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_NCCL_CONTEXT_H_

#include <deque>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "distributed/backends/nccl/device.h"
#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::nccl_internal {

// What an operation has on the stream, kept until the device is through with it.
class Flight;
struct ContextState;

class NcclContext : public DataContext {
 public:
  // `device` is that of `communicator`; both are of this rank.
  NcclContext(std::unique_ptr<Communicator> communicator, c10::Device device);
  // Ends what is on the stream; memory that the device still uses after some seconds is never freed.
  ~NcclContext() override;

  // Starts after what is on the calling thread's current stream. The work's WaitFor makes the current stream
  // of its caller wait too, and returns true once the device is through. Views of another device, or of a
  // dtype that cannot be reduced so, are refused before anything is put on the stream.
  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override;
  void Abort() override;

 private:
  absl::Status Enqueue(Flight& flight, ReduceOpKind op);
  void DropWhatIsOver();

  const std::shared_ptr<ContextState> state_;
  const c10::Device device_;
  std::deque<std::shared_ptr<Flight>> flights_;  // used by the thread that enqueues
};

}  // namespace leafpack::nccl_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_NCCL_CONTEXT_H_
