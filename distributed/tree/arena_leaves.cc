#include "distributed/tree/arena_leaves.h"

#include <atomic>
#include <cstddef>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include "xxhash.h"

namespace leafpack::internal {
namespace {

// Storages that stand in arenas: a tree is looked through only while there are any.
std::atomic<int64_t> storages{0};

struct Lease {
  std::shared_ptr<const GroupArena> arena;
};

// Also the mark by which such a storage is known.
void EndLease(void* lease) {
  delete static_cast<Lease*>(lease);
  storages.fetch_sub(1);
}

bool SameGroup(const std::weak_ptr<const void>& a, const std::shared_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

// Of a leaf's own storage, as ArenaOf finds it; looks less far away in memory.
bool Has(const Arena& arena, const c10::Storage& storage) {
  if (storage.data_ptr().get_deleter() != &EndLease) return false;
  const auto at = reinterpret_cast<uintptr_t>(storage.data());
  const auto begin = reinterpret_cast<uintptr_t>(arena.bases[static_cast<size_t>(arena.rank)]);
  return at - begin < static_cast<uintptr_t>(arena.bytes);
}

}  // namespace

at::Tensor MakeArenaLeaf(const std::shared_ptr<const GroupArena>& arena, int64_t offset,
                         int64_t bytes, at::IntArrayRef sizes, at::IntArrayRef strides,
                         at::ScalarType dtype) {
  char* memory = arena->arena->bases[static_cast<size_t>(arena->arena->rank)] + offset;
  storages.fetch_add(1);
  at::DataPtr data(memory, new Lease{arena}, &EndLease, at::Device(at::kCPU));
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                             std::move(data), /*allocator=*/nullptr, /*resizable=*/false);
  return at::empty({0}, at::TensorOptions().dtype(dtype)).set_(storage, 0, sizes, strides);
}

const GroupArena* ArenaOf(const at::Tensor& leaf) {
  if (!leaf.defined() || !leaf.has_storage()) return nullptr;
  const at::DataPtr& data = leaf.storage().data_ptr();
  if (data.get_deleter() != &EndLease) return nullptr;
  return static_cast<const Lease*>(data.get_context())->arena.get();
}

ArenaPlaces FindPlaces(absl::Span<const at::Tensor> leaves,
                       const std::shared_ptr<const void>& group) {
  ArenaPlaces places;
  if (storages.load(std::memory_order_relaxed) == 0) return places;
  struct Place {
    uint64_t number = 0;
    int64_t offset = -1;
    uint64_t whole = 0;
  };
  std::vector<const Arena*> arenas(leaves.size());
  std::vector<bool> whole(leaves.size());
  std::vector<Place> found(leaves.size());
  bool any = false;
  const GroupArena* last = nullptr;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor& leaf = leaves[i];
    if (!leaf.defined()) continue;
    if (leaf.is_conj() || leaf.is_neg()) return places;
    // Mostly where the one before is: whose the memory is need not be looked up then.
    if (!leaf.has_storage() || !leaf.is_non_overlapping_and_dense()) continue;
    if (last == nullptr || !Has(*last->arena, leaf.storage())) {
      const GroupArena* const arena = ArenaOf(leaf);
      if (arena == nullptr || !SameGroup(arena->group, group) || arena->arena->detached()) continue;
      last = arena;
    }
    const GroupArena* const arena = last;
    const Arena& memory = *arena->arena;
    arenas[i] = &memory;
    whole[i] = leaf.nbytes() == leaf.storage().nbytes();
    found[i] = {arena->number,
                static_cast<const char*>(leaf.const_data_ptr()) -
                    memory.bases[static_cast<size_t>(memory.rank)],
                whole[i]};
    any = true;
  }
  if (!any) return places;
  const XXH128_hash_t hash = XXH3_128bits(found.data(), found.size() * sizeof(Place));
  places.digest = absl::MakeUint128(hash.high64, hash.low64 | 1);
  places.arenas = std::move(arenas);
  places.whole = std::move(whole);
  return places;
}

}  // namespace leafpack::internal
