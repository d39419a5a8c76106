// Opening of c10d's TCP stores with a deadline that holds. Internal.
#ifndef LEAFPACK_DISTRIBUTED_STORE_OPEN_TCP_STORE_H_
#define LEAFPACK_DISTRIBUTED_STORE_OPEN_TCP_STORE_H_

#include <string>
#include <string_view>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/engine.h"

namespace leafpack::store_internal {

// The store at `host` and options.port. Its constructor tries again and again, each time for
// options.timeout, ignores signals, and waits without end for a server that takes the connection and
// answers nothing; so it runs in a thread of its own, which is left behind after `timeout`
// (DeadlineExceeded) or when `interrupt` says so (Cancelled). Other errors as of CatchC10d. Each text begins
// with `what`.
absl::StatusOr<c10::intrusive_ptr<c10d::TCPStore>> OpenTcpStore(
    const std::string& host, const c10d::TCPStoreOptions& options, std::string_view what,
    absl::Duration timeout, const InterruptCheck& interrupt = nullptr);

}  // namespace leafpack::store_internal

#endif  // LEAFPACK_DISTRIBUTED_STORE_OPEN_TCP_STORE_H_
