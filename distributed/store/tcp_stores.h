// The TCP stores of this process: opened once for each address and rank, and kept, since rank 0's
// serves the others. Internal.
#ifndef LEAFPACK_DISTRIBUTED_STORE_TCP_STORES_H_
#define LEAFPACK_DISTRIBUTED_STORE_TCP_STORES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"

namespace leafpack::store_internal {

struct TcpMeeting {
  std::string host;
  uint16_t port = 0;
  bool serves = false;  // listens at the address, until the process ends
  std::string what;     // names the address in errors
  std::string prefix;   // of the groups' keys; a number for each group is added
  int rank = 0;
  int size = 1;
};

// The next group over that store: all ranks make their groups in one order. Waits for the server at
// most options.timeout: then DeadlineExceeded with the address. Unavailable when the address cannot
// be served. Cancelled when `interrupt` says so while it waits. Thread-safe.
absl::StatusOr<Group> GroupOverTcp(const TcpMeeting& meeting, GroupOptions options,
                                   const InterruptCheck& interrupt);

}  // namespace leafpack::store_internal

#endif  // LEAFPACK_DISTRIBUTED_STORE_TCP_STORES_H_
