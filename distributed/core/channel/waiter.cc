#include "distributed/core/channel/waiter.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace leafpack {

bool FewerCoresThan(int ranks) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return true;
  return CPU_COUNT(&set) < ranks;
}

bool SpinBrake::MaySpin() {
  if (skip_ == 0) return true;
  --skip_;
  return false;
}

void SpinBrake::Report(bool long_yield) {
  if (long_yield) {
    pause_ = pause_ == 0 ? kFirstPause : std::min(2 * pause_, kLongestPause);
    skip_ = pause_;
    good_ = 0;
  } else if (pause_ > 0 && ++good_ == kGoodWaits) {
    pause_ = pause_ > kFirstPause ? pause_ / 2 : 0;
    good_ = 0;
  }
}

WakeEvent::WakeEvent() : fd_(TrackedFd::Open([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); })) {}

void WakeEvent::Signal() {
  const uint64_t one = 1;
  // A full counter wakes as well as one more would.
  while (write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void WakeEvent::Drain() {
  uint64_t count;
  while (read(fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
}

namespace {
constexpr int kPollsPerClock = 8;
}  // namespace

Waiter::Result Waiter::Wait(absl::FunctionRef<bool()> poll, absl::FunctionRef<absl::Span<pollfd>()> fds,
                            absl::Time until) {
  using Clock = std::chrono::steady_clock;
  if (poll()) return Result::kProgress;
  if (brake_.MaySpin()) {
    const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(kSpin);
    Clock::time_point before = Clock::now();
    bool long_yield = false;
    while (!long_yield && before < end) {
      for (int i = 1; i < polls_; ++i) {
        // In a large group one look may take long.
        if (i % kPollsPerClock == 0 && Clock::now() >= end) break;
        Relax();
        if (poll()) {
          brake_.Report(false);
          return Result::kProgress;
        }
      }
      before = Clock::now();
      sched_yield();
      const Clock::time_point after = Clock::now();
      long_yield = after - before > absl::ToChronoNanoseconds(SpinBrake::kLongYield);
      before = after;
      if (poll()) {
        brake_.Report(long_yield);
        return Result::kProgress;
      }
    }
    brake_.Report(long_yield);
  }
  const absl::Duration left = std::min(until - absl::Now(), kSlice);
  if (left <= absl::ZeroDuration()) return Result::kTimeout;
  const timespec timeout = absl::ToTimespec(left);
  const absl::Span<pollfd> descriptors = fds();
  const int ready = ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr);
  if (ready > 0) return Result::kReady;
  if (ready < 0 && errno == EINTR) return Result::kInterrupted;
  return Result::kTimeout;
}

}  // namespace leafpack
