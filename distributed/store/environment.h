// Groups from the environment variables that launchers set (leafpack's own, torchrun, ...).
#ifndef LEAFPACK_DISTRIBUTED_STORE_ENVIRONMENT_H_
#define LEAFPACK_DISTRIBUTED_STORE_ENVIRONMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"

namespace leafpack {

// What a launcher tells a rank.
struct LaunchEnvironment {
  int rank = 0;             // RANK
  int size = 1;             // WORLD_SIZE
  std::string master_addr;  // MASTER_ADDR
  uint16_t master_port = 0; // MASTER_PORT
  // torchrun holds the store in its own process (TORCHELASTIC_USE_AGENT_STORE): rank 0 does not
  // serve it, and each restart has keys of its own (TORCHELASTIC_RESTART_COUNT).
  bool agent_store = false;
  int restart_count = 0;
};

// Reads the variables. FailedPrecondition for one that is missing, InvalidArgument for one that is
// no good; the text names the variable and its value.
absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment();

// The group of all ranks of the job. Rank 0 serves the store at MASTER_ADDR:MASTER_PORT until its
// process ends, unless torchrun does. Waits for that store at most options.timeout: then
// DeadlineExceeded with the address; Cancelled when `interrupt` says so while it waits. May be called again
// for further groups: all ranks in the same order. Thread-safe.
absl::StatusOr<Group> GroupFromEnvironment(GroupOptions options = {},
                                           const InterruptCheck& interrupt = nullptr);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_ENVIRONMENT_H_
