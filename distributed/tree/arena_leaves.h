// Leaves that stand in an arena: how they are made, and how one is known again.
#ifndef LEAFPACK_DISTRIBUTED_TREE_ARENA_LEAVES_H_
#define LEAFPACK_DISTRIBUTED_TREE_ARENA_LEAVES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

#include "distributed/core/arena.h"

namespace leafpack::internal {

// Leaves stand at multiples of it, and nothing stands between a leaf and the next multiple.
inline constexpr int64_t kArenaAlignment = 64;

// An arena and whose it is.
struct GroupArena {
  std::shared_ptr<const Arena> arena;
  std::weak_ptr<const void> group;  // the plan cache of the group
  uint64_t number = 0;  // of the call that opened it: the same on all ranks, one for each of a group
};

// A tensor at `offset` bytes from the begin of this rank's memory. Its storage is this memory alone, cannot be
// resized, and holds the arena.
at::Tensor MakeArenaLeaf(const std::shared_ptr<const GroupArena>& arena, int64_t offset,
                         int64_t bytes, at::IntArrayRef sizes, at::IntArrayRef strides,
                         at::ScalarType dtype);

// The arena that has the memory of `leaf`, views included; null if none has.
const GroupArena* ArenaOf(const at::Tensor& leaf);

// Which leaves of a tree stand where in arenas.
struct ArenaPlaces {
  std::vector<const Arena*> arenas;  // by leaf; null: an ordinary one. Empty: there are none
  std::vector<bool> whole;  // by leaf: it is all that its storage has, so what is behind it belongs to nobody
  absl::uint128 digest = 0;  // 0: there are none. Equal on two ranks: the same leaves, in the same places
};

// Of leaves that are one run of memory each, in arenas of `group` that are not detached; others count as
// ordinary. None of a tree
// with lazily conjugated or negated leaves, whose memory is not what they hold.
ArenaPlaces FindPlaces(absl::Span<const at::Tensor> leaves, const std::shared_ptr<const void>& group);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_ARENA_LEAVES_H_
