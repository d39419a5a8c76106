// How waits ask a check for interrupts.
#ifndef LEAFPACK_DISTRIBUTED_CORE_INTERRUPTED_H_
#define LEAFPACK_DISTRIBUTED_CORE_INTERRUPTED_H_

#include <functional>

namespace leafpack {

// What `check`, which is not null, says. One that throws interrupts the wait, and what it threw is logged: no
// wait is ready for it. To be called without a lock.
bool IsInterrupted(const std::function<bool()>& check);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_INTERRUPTED_H_
