// What DataContext::Exchange must do, for the tests of each backend.
#ifndef LEAFPACK_DISTRIBUTED_CORE_TESTING_EXCHANGE_CHECKS_H_
#define LEAFPACK_DISTRIBUTED_CORE_TESTING_EXCHANGE_CHECKS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"

namespace leafpack::testing {

// Waits in slices, as the engine does; DeadlineExceeded after `patience`.
absl::Status Finish(DataWork& work, absl::Duration patience = absl::Minutes(2));

// One rank's part of many exchanges, all under way at once, between all-reduces of float32: every pair
// of ranks with lists of its own, of no, one and several views, of 0 bytes to some hundred KiB and many
// dtypes, peers left out, exchanges in which a rank has nothing to do, works awaited in another order
// than they were started. All ranks of the context run it. Returns what went wrong, "" for nothing.
std::string CheckExchanges(DataContext& context, int rank, int size);

// For ranks 0 and 1 of a context whose last rank takes no part: exchanges wait in slices, Abort ends
// them soon, and the context takes no more and holds no memory.
std::string CheckExchangeAbort(std::shared_ptr<DataContext> context, int rank, int size);

}  // namespace leafpack::testing

#endif  // LEAFPACK_DISTRIBUTED_CORE_TESTING_EXCHANGE_CHECKS_H_
