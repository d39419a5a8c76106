// What the data phase does on devices other than the CPU.
#ifndef LEAFPACK_DISTRIBUTED_TREE_DEVICE_WORK_H_
#define LEAFPACK_DISTRIBUTED_TREE_DEVICE_WORK_H_

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "absl/status/status.h"

namespace leafpack::internal {

// Multiplies in place, without autograd, on the current stream of the tensor's device.
absl::Status MultiplyOnDevice(const at::Tensor& tensor, double factor);

// Waits until the device is through with what this thread put on its current stream: a buffer may be used again
// then, and leaves hold what was unpacked into them, whichever thread and stream asks. Nothing to do for
// the CPU.
absl::Status FinishOnDevice(c10::Device device);

// The current streams of a thread, so that another one can go on in its place: what it puts on its current streams
// comes after what the first had put on its own. Of GPUs alone; without CUDA there are none.
class CallerStreams {
 public:
  CallerStreams() = default;
  // Those of the calling thread. None if torch fails.
  static CallerStreams Capture();

  // As long as it lives they are those of the thread that made it.
  class Guard {
   public:
    explicit Guard(const CallerStreams& streams);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::vector<c10::Stream> before_;
  };

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_DEVICE_WORK_H_
