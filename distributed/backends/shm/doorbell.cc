#include "distributed/backends/shm/doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "absl/time/clock.h"

namespace leafpack::shm {
namespace {

using Clock = std::chrono::steady_clock;

// Polls without a system call between them before the first yield, where every rank has a core.
constexpr int kPolls = 256;
constexpr std::chrono::microseconds kShortSpin{40};
constexpr std::chrono::microseconds kLongSpin{200};

void FutexWait(std::atomic<uint32_t>& word, uint32_t value, absl::Duration timeout) {
  const timespec time = absl::ToTimespec(timeout);
  // Not a private futex: the peers have the word at other addresses.
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

}  // namespace

Doorbell::Doorbell(Peers& peers) : peers_(peers), crowded_(FewerCoresThan(peers.size())) {}

void Doorbell::Wake(Bed& bed) {
  bed.bell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &bed.bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Doorbell::Ring(Event event, uint64_t count) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (peer == peers_.rank()) continue;
    Bed& bed = peers_.bed(peer);
    const uint64_t waiting = bed.waiting.load(std::memory_order_relaxed);
    if (waiting != 0 && Want::FromBits(waiting).WakesOn(event, peers_.rank(), count)) Wake(bed);
  }
}

void Doorbell::RingOne(int peer, Event event) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Bed& bed = peers_.bed(peer);
  const uint64_t waiting = bed.waiting.load(std::memory_order_relaxed);
  if (waiting != 0 && Want::FromBits(waiting).WakesOn(event, peers_.rank(), 0)) Wake(bed);
}

void Doorbell::RingSelf() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Bed& bed = peers_.bed(peers_.rank());
  if (bed.waiting.load(std::memory_order_relaxed) != 0) Wake(bed);
}

bool Doorbell::Spin(absl::FunctionRef<bool()> poll, Patience patience) {
  if (!brake_.MaySpin()) return false;
  if (!crowded_) {
    for (int i = 0; i < kPolls; ++i) {
      Relax();
      if (poll()) return true;
    }
  }
  const Clock::time_point end =
      Clock::now() + (patience == Patience::kLong ? kLongSpin : kShortSpin);
  Clock::time_point before = Clock::now();
  bool long_yield = false;
  bool done = false;
  while (!done && !long_yield && before < end) {
    sched_yield();
    const Clock::time_point after = Clock::now();
    long_yield = after - before > absl::ToChronoNanoseconds(SpinBrake::kLongYield);
    before = after;
    done = poll();
  }
  brake_.Report(long_yield);
  return done;
}

bool Doorbell::Wait(absl::FunctionRef<bool()> poll, absl::FunctionRef<Want()> want,
                    Patience patience, absl::Time until) {
  if (poll()) return true;
  if (until <= absl::Now()) return false;
  if (Spin(poll, patience)) return true;
  Bed& bed = peers_.bed(peers_.rank());
  const absl::Time look = std::min(until, absl::Now() + kLook);
  while (true) {
    const absl::Duration left = look - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    const uint32_t bell = bed.bell.load(std::memory_order_acquire);
    const uint64_t wanted = want().bits();
    bed.waiting.store(wanted, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool done = poll();
    // A rank that came up unseen right before the store does not ring; if another one is still to come,
    // that one has to know.
    if (!done && want().bits() == wanted) FutexWait(bed.bell, bell, left);
    bed.waiting.store(0, std::memory_order_relaxed);
    if (done || poll()) return true;
  }
}

}  // namespace leafpack::shm
