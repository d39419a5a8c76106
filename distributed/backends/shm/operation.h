// The state of one operation in shared memory: what its handle and those who drive it share.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_OPERATION_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_OPERATION_H_

#include <atomic>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "distributed/core/backend.h"

namespace leafpack::shm {

// Driven by one thread at a time; read by any.
class Operation {
 public:
  // `views` are held until the operation is over.
  explicit Operation(std::vector<LeafView> views) : views_(std::move(views)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Once done.
  const absl::Status& status() const { return status_; }

  // The first call counts. Lets go of the memory.
  void Finish(absl::Status status) {
    if (done_.load(std::memory_order_relaxed)) return;
    views_ = {};
    status_ = std::move(status);
    done_.store(true, std::memory_order_release);
  }

 private:
  std::vector<LeafView> views_;
  absl::Status status_;
  std::atomic<bool> done_{false};
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_OPERATION_H_
