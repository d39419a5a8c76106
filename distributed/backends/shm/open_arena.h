// Arenas: memory of its own for each rank, mapped by all ranks of a host.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_OPEN_ARENA_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_OPEN_ARENA_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/backends/shm/peers.h"
#include "distributed/core/arena.h"
#include "distributed/core/channel/key_value_store.h"

namespace leafpack::shm {

// Collective: all ranks name the same `bytes` > 0. First every rank looks whether there is room for
// the arenas of all, and tells the others; pages are reserved only if each of them found it so. Then they
// meet and map as for segments, see Peers::Connect, which has the errors too. Every rank that comes gets
// the same answer, unless it dies or its `poll` or `deadline` ends it.
absl::StatusOr<std::shared_ptr<const Arena>> OpenArena(KeyValueStore& store, int rank, int size,
                                                       int64_t bytes, absl::Time deadline,
                                                       const MeetingPoll& poll);

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_OPEN_ARENA_H_
