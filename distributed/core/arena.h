// Memory that all ranks of a group map, for leaves that are then reduced where they lie. A data context
// that can do it implements ArenaContext beside DataContext; who has a DataContext asks by
// AsArenaContext.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ARENA_H_
#define LEAFPACK_DISTRIBUTED_CORE_ARENA_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack {

class KeyValueStore;  // distributed/core/channel/key_value_store.h

// The kind of the call that opens an arena: one more of CollectiveKind (engine.h).
inline constexpr uint8_t kShareCollectiveNumber = 11;

// Memory of one size for each rank of a group. During an all-reduce every rank reads and writes all of it, each
// its own slice; else rank r alone uses bases[r]. What lies at one distance from the own base on every rank
// is at the same place of the arena. The memory of a rank is released when the last rank has dropped its
// Arena, or died.
struct Arena : std::enable_shared_from_this<Arena> {
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // An address of this rank as it is seen at `peer`'s memory.
  char* At(const char* own, int peer) const {
    return bases[static_cast<size_t>(peer)] + (own - bases[static_cast<size_t>(rank)]);
  }

  // Takes this rank's memory away from the others, who may still be writing: it keeps its addresses and what it
  // holds, and is ordinary memory from then on. Idempotent; any thread, while others read and write the memory.
  // For who ends an all-reduce that the others have not ended.
  void Detach() const {
    std::call_once(detach_once_, [this] {
      detached_.store(true);
      if (take_away) take_away();
    });
  }
  // Whether Detach was called: no all-reduce may use the arena any more.
  bool detached() const { return detached_.load(); }

  int rank = 0;                        // whose bases these are
  std::vector<char*> bases;            // by group rank; each begins a page
  int64_t bytes = 0;                   // of each rank
  std::shared_ptr<const void> memory;  // owns the mappings
  std::function<void()> take_away;     // what Detach does; null where ranks are threads at the same addresses

 private:
  mutable std::once_flag detach_once_;
  mutable std::atomic<bool> detached_{false};
};

class ArenaContext {
 public:
  virtual ~ArenaContext() = default;

  // Maps memory of `bytes` > 0, zero at first, for every rank in all ranks. Collective; what it gives
  // can be used in every context of the group, also of later epochs. `store` is for this alone. `poll` is
  // asked every few milliseconds; its error ends this, and so does `deadline`. Two errors are the
  // same on all ranks: Unimplemented if ranks do not share memory (the text says why) and
  // ResourceExhausted if the memory cannot be had (the text names the ranks).
  virtual absl::StatusOr<std::shared_ptr<const Arena>> Share(
      int64_t bytes, KeyValueStore& store, absl::FunctionRef<absl::Status()> poll,
      absl::Time deadline) = 0;

  // DataContext::AllReduce in which views may stand in arenas: arenas[i], if it is not null, has
  // views[i], which is then one run of memory and keeps the arena alive. The ranks agreed on which views
  // those are, and stand at the same places of them. FailedPrecondition for an arena that was detached since.
  // If the work ends with an error once others may write the views, their arenas are detached first.
  virtual absl::StatusOr<std::unique_ptr<DataWork>> AllReduceShared(
      std::vector<LeafView> views, std::vector<const Arena*> arenas, const ReduceOp& op) = 0;
};

// Null if `context` cannot.
inline ArenaContext* AsArenaContext(DataContext& context) {
  return dynamic_cast<ArenaContext*>(&context);
}

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ARENA_H_
