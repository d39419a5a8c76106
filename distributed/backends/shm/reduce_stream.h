// All-reduce through the slots of the ranks: the state machine that moves chunks. It never waits.
//
// An operation is cut into chunks of one dtype; the chunks of all operations are numbered through.
// Chunk k passes through slot k % slots of every rank, in three steps:
//   pack    copy the elements from the leaves into the own slot: packing is sending
//   reduce  reduce the own slice from the slots of all ranks, in rank order, into the leaves and,
//           where others want it, into the own slot
//   drain   copy the slices that others reduced from their slots into the leaves
// A small chunk is reduced whole by every rank (one shot: nothing is drained); a large one in P
// slices. Where the leaves stand in an arena, which all ranks map, nothing passes through a slot: pack
// says that the leaves may be read and written, the slice is reduced from the leaves of all ranks into
// those of all ranks, and drain waits until the others have done theirs. Either way each element is
// reduced with the kernels of distributed/core/reduce in rank order, so all ranks get equal bits, whatever
// way and whatever bucketing. docs/shm.md says why the steps of the ranks never meet in a slot or a leaf.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_REDUCE_STREAM_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_REDUCE_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "distributed/backends/shm/doorbell.h"
#include "distributed/backends/shm/operation.h"
#include "distributed/backends/shm/peers.h"
#include "distributed/backends/shm/view_bytes.h"
#include "distributed/core/arena.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::shm {

// One chunk of an operation: bytes of its views.
struct Chunk {
  int64_t begin = 0;
  int64_t bytes = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool one_shot = false;
  const Arena* arena = nullptr;  // where the chunk stands on all ranks; null: it goes through slots
};

// Cuts a reduction of `views` into chunks: a pure function of dtypes, numbers of elements, geometry, and of
// which views stand in arenas (see ArenaContext; empty: none does).
std::vector<Chunk> CutIntoChunks(absl::Span<const LeafView> views, const Geometry& geometry,
                                 absl::Span<const Arena* const> arenas = {});

// Of an operation in an arena that was detached (see Arena).
absl::Status DetachedError();

// The bytes of slice `rank` of a chunk, from the chunk's begin. Slices begin at cache lines (from the
// begin of the slot), and the last ones may be empty.
struct Slice {
  int64_t begin;
  int64_t bytes;
};
Slice SliceOf(const Chunk& chunk, int rank, int ranks);

class ReduceStream {
 public:
  ReduceStream(Peers& peers, Doorbell& doorbell) : peers_(peers), doorbell_(doorbell) {}

  // Takes an operation in. All ranks add the same ones in the same order.
  void Add(std::shared_ptr<Operation> operation, ViewBytes bytes, std::vector<Chunk> chunks,
           ReduceOpKind op);

  // Does what can be done now, one step at least if one can; false if none could. Operations that
  // are over are finished.
  bool Step();

  bool idle() const { return entries_.empty(); }
  // What the oldest step that cannot be done waits for. Not idle.
  Want WaitsFor();
  // True when what is awaited is the copying of a large chunk.
  bool bulky() const;
  // Whether `peer` has yet to do something for the operations that were added.
  bool Needs(int peer) const { return peers_.progress(peer).drained.load() < end_; }

  // Ends all operations with `status`. Arenas that others may still write are detached before.
  void Fail(const absl::Status& status);

 private:
  struct Entry {
    std::shared_ptr<Operation> operation;
    ViewBytes bytes;
    std::vector<Chunk> chunks;
    ReduceOpKind op;
    uint64_t first;  // number of its first chunk
    uint64_t end() const { return first + chunks.size(); }
    const Chunk& chunk(uint64_t number) const { return chunks[number - first]; }
  };
  using Counter = std::atomic<uint64_t> Progress::*;

  // The entry that has chunk `number` < end_.
  Entry& EntryOf(uint64_t number);
  // One step packs, and one drains, all chunks of an operation that follow each other in arenas: the number
  // behind the last one. Other chunks stand alone.
  uint64_t StretchEnd(uint64_t number);
  bool PacksInArena();
  // Whether this rank has reduced its part of what it drains next.
  bool DrainsNext() { return drained_ < reduced_ && StretchEnd(drained_) <= reduced_; }
  // The first rank whose counter is below `count`, if there is one.
  std::optional<int> Behind(Counter counter, uint64_t count) const;
  bool CanPack() const;
  void Pack();
  absl::Status Reduce();
  absl::Status Drain();
  absl::Status ReduceOneShot(const Entry& entry, const Chunk& chunk);
  absl::Status ReduceSlice(const Entry& entry, const Chunk& chunk);
  absl::Status ReduceInArena(const Entry& entry, const Chunk& chunk);
  void FinishEntries();

  Peers& peers_;
  Doorbell& doorbell_;
  std::deque<Entry> entries_;  // not over
  uint64_t packed_ = 0, reduced_ = 0, drained_ = 0, end_ = 0;  // chunks
  std::vector<const void*> inputs_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_REDUCE_STREAM_H_
