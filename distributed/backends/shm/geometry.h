// What lies where in the segment of a rank. docs/shm.md has the picture and the protocol.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_GEOMETRY_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_GEOMETRY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace leafpack::shm {

inline constexpr size_t kCacheLine = 64;

// Counters of one rank: only it writes them, all read them. They only grow. Chunks are numbered over
// the life of the segment: 0, 1, 2, ...
struct alignas(kCacheLine) Progress {
  std::atomic<uint64_t> packed;   // chunks whose elements stand in the slot
  std::atomic<uint64_t> reduced;  // chunks of which this rank's slice is reduced
  std::atomic<uint64_t> drained;  // chunks that this rank is through with
};

// Where a rank sleeps. `waiting` is its own; any rank rings the bell.
struct alignas(kCacheLine) Bed {
  std::atomic<uint64_t> waiting;  // 0: awake; else a Want, see doorbell.h
  std::atomic<uint32_t> bell;     // futex
  std::atomic<uint32_t> blamed;   // 1 + the rank whose death ended this rank's operations; else 0
};

// One end of the byte rings between two ranks, on its own line each.
struct alignas(kCacheLine) RingEnd {
  std::atomic<uint64_t> count;  // bytes that went through, since the beginning
};

struct alignas(kCacheLine) Header {
  uint64_t word;  // random; proves that a mapping shows this very segment
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// The parts of a segment, in bytes from its begin; equal for all ranks. A pure function.
class Geometry {
 public:
  // `slot_bytes` and `ring_bytes` are multiples of kCacheLine. slots >= 2
  // where chunks pass through them; an arena is one.
  Geometry(int ranks, int slots, int64_t slot_bytes, int64_t ring_bytes)
      : ranks_(ranks), slots_(slots), slot_bytes_(slot_bytes), ring_bytes_(ring_bytes) {}

  int ranks() const { return ranks_; }
  int slots() const { return slots_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t ring_bytes() const { return ring_bytes_; }
  size_t total() const { return RingOffset(ranks_); }

  Header& header(char* base) const { return *reinterpret_cast<Header*>(base); }
  Progress& progress(char* base) const {
    return *reinterpret_cast<Progress*>(base + sizeof(Header));
  }
  Bed& bed(char* base) const {
    return *reinterpret_cast<Bed*>(base + sizeof(Header) + sizeof(Progress));
  }
  // Bytes that the owner of the segment has written for `peer`, and has read from it.
  RingEnd& written(char* base, int peer) const { return ends(base)[2 * peer]; }
  RingEnd& read(char* base, int peer) const { return ends(base)[2 * peer + 1]; }

  char* slot(char* base, uint64_t chunk) const {
    return base + SlotOffset() +
           static_cast<size_t>(chunk % static_cast<uint64_t>(slots_)) *
               static_cast<size_t>(slot_bytes_);
  }
  // What the owner of the segment has for `peer`.
  char* ring(char* base, int peer) const { return base + RingOffset(peer); }

 private:
  static constexpr size_t kPage = 4096;

  RingEnd* ends(char* base) const {
    return reinterpret_cast<RingEnd*>(base + sizeof(Header) + sizeof(Progress) + sizeof(Bed));
  }
  size_t SlotOffset() const {
    const size_t control = sizeof(Header) + sizeof(Progress) + sizeof(Bed) +
                           2 * sizeof(RingEnd) * static_cast<size_t>(ranks_);
    return (control + kPage - 1) / kPage * kPage;
  }
  size_t RingOffset(int peer) const {
    return SlotOffset() + static_cast<size_t>(slots_) * static_cast<size_t>(slot_bytes_) +
           static_cast<size_t>(peer) * static_cast<size_t>(ring_bytes_);
  }

  int ranks_;
  int slots_;
  int64_t slot_bytes_;
  int64_t ring_bytes_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_GEOMETRY_H_
