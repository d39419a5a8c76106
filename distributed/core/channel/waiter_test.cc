#include "distributed/core/channel/waiter.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

TEST(SpinBrakeTest, PausesDoubleUpToTheLongest) {
  SpinBrake brake;
  EXPECT_TRUE(brake.MaySpin());
  uint32_t expected = SpinBrake::kFirstPause;
  for (int round = 0; round < 12; ++round) {
    brake.Report(true);
    EXPECT_EQ(brake.pause(), expected);
    for (uint32_t i = 0; i < expected; ++i) ASSERT_FALSE(brake.MaySpin()) << i;
    EXPECT_TRUE(brake.MaySpin());
    expected = std::min(2 * expected, SpinBrake::kLongestPause);
  }
  EXPECT_EQ(brake.pause(), SpinBrake::kLongestPause);
}

TEST(SpinBrakeTest, GoodSpinsHalveThePause) {
  SpinBrake brake;
  for (int i = 0; i < 4; ++i) brake.Report(true);
  EXPECT_EQ(brake.pause(), 8 * SpinBrake::kFirstPause);
  for (uint32_t expected : {4u, 2u, 1u, 0u, 0u}) {
    for (uint32_t i = 0; i < SpinBrake::kGoodWaits; ++i) brake.Report(false);
    EXPECT_EQ(brake.pause(), expected * SpinBrake::kFirstPause);
  }
  // A long yield in between starts the count of good ones anew.
  brake.Report(true);
  for (uint32_t i = 0; i + 1 < SpinBrake::kGoodWaits; ++i) brake.Report(false);
  brake.Report(true);
  brake.Report(false);
  EXPECT_EQ(brake.pause(), 2 * SpinBrake::kFirstPause);
}

TEST(WakeEventTest, SignalsAddUpToOneWake) {
  WakeEvent event;
  pollfd wait = {event.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0);
  for (int i = 0; i < 3; ++i) event.Signal();
  EXPECT_EQ(poll(&wait, 1, 0), 1);
  event.Drain();
  EXPECT_EQ(poll(&wait, 1, 0), 0);
  event.Drain();
}

TEST(WaiterTest, ProgressNeedsNoDescriptors) {
  Waiter waiter;
  bool asked = false;
  const auto fds = [&] {
    asked = true;
    return absl::Span<pollfd>();
  };
  EXPECT_EQ(waiter.Wait([] { return true; }, fds, absl::InfinitePast()), Waiter::Result::kProgress);
  EXPECT_FALSE(asked);
}

TEST(WaiterTest, PollsAtLeastOnceWhenTheTimeIsOver) {
  Waiter waiter;
  int polls = 0;
  const auto poll_once = [&] { return ++polls < 0; };
  EXPECT_EQ(waiter.Wait(poll_once, [] { return absl::Span<pollfd>(); }, absl::InfinitePast()), Waiter::Result::kTimeout);
  EXPECT_GE(polls, 1);
}

TEST(WaiterTest, SleepsNoLongerThanASliceOrUntil) {
  Waiter waiter;
  WakeEvent event;
  pollfd wait = {event.fd(), POLLIN, 0};
  const auto fds = [&] { return absl::MakeSpan(&wait, 1); };
  const absl::Time start = absl::Now();
  EXPECT_EQ(waiter.Wait([] { return false; }, fds, absl::InfiniteFuture()), Waiter::Result::kTimeout);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(40));
  EXPECT_EQ(waiter.Wait([] { return false; }, fds, absl::Now() + absl::Milliseconds(5)), Waiter::Result::kTimeout);
}

TEST(WaiterTest, EventOfAnotherThreadWakes) {
  Waiter waiter;
  WakeEvent event;
  pollfd wait = {event.fd(), POLLIN, 0};
  std::atomic<bool> done{false};
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(120));
    done = true;
    event.Signal();
  });
  Waiter::Result result;
  do {
    result = waiter.Wait([&] { return done.load(); }, [&] { return absl::MakeSpan(&wait, 1); }, absl::InfiniteFuture());
  } while (result == Waiter::Result::kTimeout);
  EXPECT_TRUE(result == Waiter::Result::kReady || result == Waiter::Result::kProgress);
  EXPECT_TRUE(done.load());
  other.join();
}

TEST(WaiterTest, SignalInterrupts) {
  struct sigaction action = {}, old = {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, &old);
  Waiter waiter;
  WakeEvent event;
  pollfd wait = {event.fd(), POLLIN, 0};
  std::atomic<bool> stop{false};
  const pthread_t self = pthread_self();
  std::thread other([&] {
    while (!stop) {
      pthread_kill(self, SIGUSR1);
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  int interrupted = 0;
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (interrupted < 3 && absl::Now() < end) {
    if (waiter.Wait([] { return false; }, [&] { return absl::MakeSpan(&wait, 1); }, absl::InfiniteFuture()) ==
        Waiter::Result::kInterrupted) {
      ++interrupted;
    }
  }
  stop = true;
  other.join();
  sigaction(SIGUSR1, &old, nullptr);
  EXPECT_EQ(interrupted, 3);
}

// Programs that want the cores make yields long: the brake must be on nearly all the time then, and
// waits go to sleep.
TEST(WaiterTest, BusyProgramsSetTheBrake) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    busy.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  Waiter waiter;
  WakeEvent event;
  event.Signal();
  pollfd wait = {event.fd(), POLLIN, 0};
  const absl::Time end = absl::Now() + absl::Seconds(30);
  uint32_t longest = 0;
  while (longest < 2 * SpinBrake::kFirstPause && absl::Now() < end) {
    waiter.Wait([] { return false; }, [&] { return absl::MakeSpan(&wait, 1); }, absl::InfiniteFuture());
    longest = std::max(longest, waiter.brake().pause());
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  EXPECT_GE(longest, 2 * SpinBrake::kFirstPause);
}

}  // namespace
}  // namespace leafpack
