// How a caller waits for records: it reads without blocking for some microseconds, then sleeps in the
// kernel.
//
// A socket is fast only while nobody sleeps on it, so a short spin pays; but where ranks outnumber
// cores it must yield between reads, and where other programs want the cores it must not yield either
// (one yield may cost a time slice). The brake notices that and stops the spinning for a while.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_WAITER_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_WAITER_H_

#include <poll.h>

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/channel/fork.h"

namespace leafpack {

inline constexpr absl::Duration kSpin = absl::Microseconds(30);
inline constexpr absl::Duration kSlice = absl::Milliseconds(50);

// What a loop that polls memory does between two looks.
inline void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield" ::: "memory");
#endif
}

// Whether this process may use fewer cores than `ranks`, so that one that spins may keep another from running.
bool FewerCoresThan(int ranks);

// Decides whether the next wait may spin. Pure.
class SpinBrake {
 public:
  static constexpr absl::Duration kLongYield = absl::Microseconds(200);
  static constexpr uint32_t kFirstPause = 32;
  static constexpr uint32_t kLongestPause = 8192;
  static constexpr uint32_t kGoodWaits = 32;  // spins in a row without a long yield halve it

  // Counts one wait. False while paused.
  bool MaySpin();
  // Reports the end of a spin; `long_yield` when one of its yields took over kLongYield.
  void Report(bool long_yield);

  uint32_t pause() const { return pause_; }

 private:
  uint32_t pause_ = 0;  // length of the last pause; the next is twice as long, at least kFirstPause
  uint32_t skip_ = 0;   // waits still to skip
  uint32_t good_ = 0;
};

// A counter that wakes a sleeping wait. Signal from any thread, without blocking.
class WakeEvent {
 public:
  WakeEvent();  // fd() is -1 when the system has no descriptor left
  void Signal();
  void Drain();
  int fd() const { return fd_.get(); }

 private:
  TrackedFd fd_;
};

class Waiter {
 public:
  enum class Result {
    kProgress,     // `poll` returned true
    kReady,        // a descriptor is ready (see revents): read it
    kTimeout,      // `until` or the slice passed
    kInterrupted,  // a signal came: look at interrupts
  };

  // `polls`: how often it looks before each yield; more than once only where the ranks have cores of their own.
  explicit Waiter(int polls = 1) : polls_(polls) {}

  // Calls `poll`, with yields between, for up to kSpin; then sleeps on `fds` for at most kSlice, or
  // until `until`. `poll` reads without blocking and says whether what the caller waits for has come;
  // it is called at least once. `fds` is asked for only before sleeping, after the last `poll` (it may
  // change which descriptors want writing); it must hold the wake event of the caller. One thread at a
  // time.
  Result Wait(absl::FunctionRef<bool()> poll, absl::FunctionRef<absl::Span<pollfd>()> fds,
              absl::Time until);

  const SpinBrake& brake() const { return brake_; }

 private:
  const int polls_;
  SpinBrake brake_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_WAITER_H_
