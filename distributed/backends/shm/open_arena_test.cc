// Arenas: what every rank sees of the others', and the errors, which are the same on all ranks.
#include "distributed/backends/shm/open_arena.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/channel/segment.h"
#include "distributed/core/channel/key_value_store.h"

namespace leafpack::shm {
namespace {

using Opened = absl::StatusOr<std::shared_ptr<const Arena>>;

// What each rank gets, as threads over one store.
std::vector<Opened> OpenAll(int ranks, int64_t bytes, absl::Duration patience,
                            const std::function<MeetingPoll(int)>& poll = nullptr) {
  const std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  std::vector<Opened> opened(static_cast<size_t>(ranks), absl::UnknownError("not opened"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto mine = store->Clone();
      ASSERT_TRUE(mine.ok()) << mine.status();
      opened[static_cast<size_t>(rank)] =
          OpenArena(**mine, rank, ranks, bytes, absl::Now() + patience,
                    poll ? poll(rank) : MeetingPoll());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return opened;
}

TEST(OpenArenaTest, EveryRankSeesTheMemoryOfAll) {
  for (const int ranks : {1, 2, 4}) {
    constexpr int64_t kBytes = 100'001;
    std::vector<Opened> arenas = OpenAll(ranks, kBytes, absl::Seconds(60));
    for (int rank = 0; rank < ranks; ++rank) {
      const Opened& opened = arenas[static_cast<size_t>(rank)];
      ASSERT_TRUE(opened.ok()) << opened.status();
      const Arena& arena = **opened;
      EXPECT_EQ(arena.rank, rank);
      EXPECT_EQ(arena.bytes, kBytes);
      ASSERT_EQ(arena.bases.size(), static_cast<size_t>(ranks));
      char* own = arena.bases[static_cast<size_t>(rank)];
      EXPECT_EQ(own[0], 0);
      EXPECT_EQ(own[kBytes - 1], 0);
      std::memset(own, rank + 1, kBytes);
    }
    for (const Opened& opened : arenas) {
      const Arena& arena = **opened;
      const char* place = arena.bases[static_cast<size_t>(arena.rank)] + kBytes - 1;
      for (int peer = 0; peer < ranks; ++peer) EXPECT_EQ(*arena.At(place, peer), peer + 1);
    }
    // A rank that dropped its own keeps nobody from reading what others hold.
    arenas[0] = absl::UnknownError("dropped");
    for (int rank = 1; rank < ranks; ++rank) {
      const Arena& arena = **arenas[static_cast<size_t>(rank)];
      EXPECT_EQ(arena.bases[0][kBytes / 2], 1);
    }
  }
}

// What other threads write while the memory is taken away is kept, and what other ranks write afterwards is not
// seen.
TEST(OpenArenaTest, DetachedMemoryKeepsItsValuesAndIsNobodyElses) {
  constexpr int64_t kBytes = 8 << 20;
  std::vector<Opened> arenas = OpenAll(2, kBytes, absl::Seconds(60));
  ASSERT_TRUE(arenas[0].ok() && arenas[1].ok()) << arenas[0].status() << arenas[1].status();
  const Arena& arena = **arenas[0];
  auto* const own = reinterpret_cast<std::atomic<uint32_t>*>(arena.bases[0]);
  auto* const seen_there = reinterpret_cast<std::atomic<uint32_t>*>((*arenas[1])->bases[0]);
  constexpr size_t kStep = 4096 / sizeof(uint32_t) - 1;  // in each page, at another place
  constexpr size_t kWords = kBytes / sizeof(uint32_t);
  std::atomic<bool> stop{false};
  uint32_t rounds = 0;
  std::thread writer([&] {
    while (!stop.load() || rounds < 3) {
      for (size_t i = 0; i < kWords; i += kStep) own[i].store(own[i].load() + 1);
      ++rounds;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(arena.detached());
  arena.Detach();
  EXPECT_TRUE(arena.detached());
  for (size_t i = 0; i < kWords; ++i) seen_there[i].store(99);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  stop.store(true);
  writer.join();
  for (size_t i = 0; i < kWords; ++i) {
    ASSERT_EQ(own[i].load(), i % kStep == 0 ? rounds : 0) << "word " << i;
    ASSERT_EQ(seen_there[i].load(), 99u);
  }
  // The other rank's memory is still shared.
  arena.bases[1][5] = 3;
  EXPECT_EQ((*arenas[1])->bases[1][5], 3);
}

TEST(OpenArenaTest, WithoutRoomForAllNobodyReserves) {
  // Each has room for its own, but not for both.
  const int64_t bytes = static_cast<int64_t>(Segment::Available() / 5 * 3);
  for (const Opened& opened : OpenAll(2, bytes, absl::Seconds(60))) {
    EXPECT_TRUE(absl::IsResourceExhausted(opened.status())) << opened.status();
    EXPECT_TRUE(absl::StrContains(opened.status().message(), "group rank 0")) << opened.status();
    EXPECT_TRUE(absl::StrContains(opened.status().message(), "by each of 2 ranks"));
  }
}

TEST(OpenArenaTest, ARankThatIsCalledOffLeavesTheOthersToTheirDeadline) {
  // Rank 2 never comes: the poll of rank 1 calls it off, rank 0 waits for its deadline.
  const std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  Opened waited = absl::UnknownError("not opened"), called_off = waited;
  std::thread other([&] {
    const absl::Time until = absl::Now() + absl::Milliseconds(50);
    called_off = OpenArena(*store->Clone().value(), 1, 3, 4096, absl::Now() + absl::Seconds(60), [&] {
      return absl::Now() < until ? absl::OkStatus() : absl::CancelledError("called off");
    });
  });
  waited = OpenArena(*store->Clone().value(), 0, 3, 4096, absl::Now() + absl::Seconds(3),
                     nullptr);
  other.join();
  EXPECT_EQ(called_off.status(), absl::CancelledError("called off"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited.status())) << waited.status();
  EXPECT_TRUE(absl::StrContains(waited.status().message(), "group rank 2")) << waited.status();
}

}  // namespace
}  // namespace leafpack::shm
