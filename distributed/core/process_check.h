// Tells a forked child from the process that made an object.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROCESS_CHECK_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROCESS_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"

namespace leafpack {

// Remembers the process that it was made in. Takes no lock: in a child a mutex may be held by a thread
// that does not exist there. Thread-safe.
class ProcessCheck {
 public:
  ProcessCheck();

  // In a child forked since this was made.
  bool forked() const;
  // FailedPrecondition: what a call on a group of the parent returns in the child.
  static absl::Status ForkedError();

 private:
  const uint64_t generation_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROCESS_CHECK_H_
