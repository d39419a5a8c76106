#include "distributed/backends/shm/doorbell.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/backends/shm/peers.h"

namespace leafpack::shm {
namespace {

Geometry SmallGeometry(int ranks) { return Geometry(ranks, 2, 4096, 256); }

// Until a wait of `doorbell` is over that was not cut short to look after dead peers.
bool WaitLong(Doorbell& doorbell, absl::FunctionRef<bool()> poll, Want want) {
  const absl::Time until = absl::Now() + absl::Seconds(60);
  while (absl::Now() < until) {
    if (doorbell.Wait(poll, [&] { return want; }, Patience::kShort, until)) return true;
  }
  return false;
}

TEST(DoorbellTest, WakesOnWhatItWaitsFor) {
  auto peers = Peers::InProcess(SmallGeometry(2));
  ASSERT_TRUE(peers.ok()) << peers.status();
  Doorbell mine(*(*peers)[0]);
  Doorbell other(*(*peers)[1]);
  std::atomic<uint64_t> packed{0};
  std::thread rank([&] {
    for (uint64_t count = 1; count <= 100; ++count) {
      absl::SleepFor(absl::Microseconds(200));
      packed.store(count);
      other.Ring(Event::kPacked, count);
    }
  });
  EXPECT_TRUE(WaitLong(mine, [&] { return packed.load() >= 100; }, Want::Of(Event::kPacked, 1, 100)));
  rank.join();
  EXPECT_EQ((*peers)[0]->bed(0).waiting.load(), 0u);
}

// Rank 1 comes up right before rank 0 has published that it waits for it, so does not ring; then rank 0
// waits for rank 2, which must know before rank 0 sleeps. docs/shm_slots.pml, fault 5.
TEST(DoorbellTest, DoesNotSleepWhileAnotherRankHasToKnow) {
  auto peers = Peers::InProcess(SmallGeometry(3));
  ASSERT_TRUE(peers.ok()) << peers.status();
  Doorbell doorbell(*(*peers)[0]);
  const Want first = Want::Of(Event::kPacked, 1, 1);
  const Want second = Want::Of(Event::kPacked, 2, 1);
  bool known = false;
  // A machine may stall for longer than a wait lasts.
  for (int i = 0; i < 20 && !known; ++i) {
    bool first_came = false;
    const auto want = [&] { return first_came ? second : first; };
    const auto poll = [&] {
      const uint64_t waiting = (*peers)[0]->bed(0).waiting.load();
      if (waiting == first.bits()) first_came = true;
      return waiting == second.bits();
    };
    known = doorbell.Wait(poll, want, Patience::kShort, absl::InfiniteFuture());
  }
  EXPECT_TRUE(known);
}

TEST(DoorbellTest, EndsAtTheDeadline) {
  auto peers = Peers::InProcess(SmallGeometry(2));
  ASSERT_TRUE(peers.ok()) << peers.status();
  Doorbell doorbell(*(*peers)[0]);
  const auto never = [] { return false; };
  const auto want = [] { return Want::Anything(); };
  const absl::Time start = absl::Now();
  EXPECT_FALSE(doorbell.Wait(never, want, Patience::kLong, start + absl::Milliseconds(5)));
  EXPECT_GE(absl::Now(), start + absl::Milliseconds(5));
}

}  // namespace
}  // namespace leafpack::shm
