// How a rank waits for the counters of others: it spins for some microseconds, then sleeps on a futex
// in its own segment, where the one whose progress it waits for rings.
//
// No wake-up is lost: the sleeper writes what it waits for, then looks once more, at that too; the other
// one raises its counter, then looks whether somebody waits for it. A sequentially consistent fence on either
// side between the write and the look makes that at least one of them sees the other (this is the
// pattern of Dekker; weaker orders would not do, on x86 neither).
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_DOORBELL_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_DOORBELL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

#include "distributed/backends/shm/peers.h"
#include "distributed/core/channel/waiter.h"

namespace leafpack::shm {

// What a rank may advance, and what a sleeper may wait for.
enum class Event : uint8_t { kPacked = 1, kReduced = 2, kDrained = 4, kRing = 8 };

// What a sleeper waits for, in one word so that it can be published at once. Never 0.
class Want {
 public:
  // Anything that any rank does.
  static Want Anything() { return Want(~uint64_t{0} >> (64 - kHeaderBits)); }
  // That `rank` has done `event` for at least `count` chunks.
  static Want Of(Event event, int rank, uint64_t count) {
    return Want(static_cast<uint64_t>(event) | static_cast<uint64_t>(rank) << 8 |
                (count & kCountMask) << kHeaderBits);
  }
  static Want FromBits(uint64_t bits) { return Want(bits); }
  uint64_t bits() const { return bits_; }

  bool WakesOn(Event event, int rank, uint64_t count) const {
    const uint64_t wanted_rank = bits_ >> 8 & kAnyRank;
    return (bits_ & static_cast<uint64_t>(event)) != 0 &&
           (wanted_rank == kAnyRank || wanted_rank == static_cast<uint64_t>(rank)) &&
           (count & kCountMask) >= bits_ >> kHeaderBits;
  }

 private:
  static constexpr int kHeaderBits = 24;  // 8 of events, 16 of the rank
  static constexpr uint64_t kAnyRank = 0xffff;
  static constexpr uint64_t kCountMask = ~uint64_t{0} >> kHeaderBits;
  explicit Want(uint64_t bits) : bits_(bits) {}
  uint64_t bits_;
};

// How long a wait spins: what is near at hand comes within microseconds, a peer that copies a chunk
// needs more; a futex costs some 50 us.
enum class Patience : uint8_t { kShort, kLong };

// One for each Peers. Wait: one thread at a time. The rest: any thread.
class Doorbell {
 public:
  explicit Doorbell(Peers& peers);

  // Tells the ranks that wait for it that this rank has done `event` for `count` chunks (of rings:
  // any). The counter was raised before.
  void Ring(Event event, uint64_t count);
  // Tells one rank only.
  void RingOne(int peer, Event event);
  // Wakes this rank's own waiter, if it sleeps, so that it polls again.
  void RingSelf();

  // Calls `poll` until it returns true, then returns true; false when that did not happen by `until`,
  // or within about kLook, so that the caller can look after peers that died. `poll` is called at
  // least once, and once more after `want` was published, which must not have changed before it sleeps.
  bool Wait(absl::FunctionRef<bool()> poll, absl::FunctionRef<Want()> want, Patience patience,
            absl::Time until);

  static constexpr absl::Duration kLook = absl::Milliseconds(20);

 private:
  bool Spin(absl::FunctionRef<bool()> poll, Patience patience);
  static void Wake(Bed& bed);

  Peers& peers_;
  const bool crowded_;  // ranks may outnumber the cores of this process
  SpinBrake brake_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_DOORBELL_H_
