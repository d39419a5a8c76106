#include "distributed/core/channel/lane.h"

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

struct Pair {
  Pair() {
    absl::StatusOr<Lane::Made> made = Lane::Make();
    EXPECT_TRUE(made.ok()) << made.status();
    a = std::move(made->lane);
    EXPECT_FALSE(a->PeerIsIn());
    absl::StatusOr<std::unique_ptr<Lane>> opened = Lane::Open(made->fd);
    EXPECT_TRUE(opened.ok()) << opened.status();
    b = *std::move(opened);
    EXPECT_TRUE(a->PeerIsIn());
  }
  std::unique_ptr<Lane> a, b;
};

bool Write(Lane& lane, std::string_view record) { return lane.Write({&record, 1}); }

// The next record, "(nothing)" or "(detour)".
std::string Read(Lane& lane) {
  absl::Span<const char> first, second;
  switch (lane.Peek(first, second)) {
    case Lane::Next::kNothing:
      return "(nothing)";
    case Lane::Next::kDetour:
      return "(detour)";
    case Lane::Next::kBroken:
      return "(broken)";
    case Lane::Next::kRecord:
      break;
  }
  std::string record(first.data(), first.size());
  record.append(second.data(), second.size());
  lane.Release();
  return record;
}

TEST(LaneTest, RecordsComeInOrderAndBothWays) {
  Pair pair;
  EXPECT_TRUE(pair.a->IsEmpty());
  const std::string_view parts[] = {"two", "", " parts"};
  EXPECT_TRUE(Write(*pair.a, "one"));
  EXPECT_TRUE(pair.a->Write(parts));
  EXPECT_TRUE(Write(*pair.a, ""));
  EXPECT_TRUE(Write(*pair.b, "back"));
  EXPECT_FALSE(pair.a->IsEmpty());
  EXPECT_EQ(Read(*pair.b), "one");
  EXPECT_EQ(Read(*pair.b), "two parts");
  EXPECT_EQ(Read(*pair.b), "");
  EXPECT_EQ(Read(*pair.b), "(nothing)");
  EXPECT_TRUE(pair.a->IsEmpty());
  EXPECT_EQ(Read(*pair.a), "back");
}

TEST(LaneTest, WrapsAtEveryPlace) {
  Pair pair;
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string record(random() % 3000, '\0');
    for (char& byte : record) byte = static_cast<char>(random());
    ASSERT_TRUE(Write(*pair.a, record)) << i;
    ASSERT_EQ(Read(*pair.b), record) << i;
  }
}

TEST(LaneTest, FullMeansNothingWrittenAndRoomForADetour) {
  Pair pair;
  const std::string record(1000, 'x');
  size_t count = 0;
  while (Write(*pair.a, record)) ++count;
  EXPECT_EQ(count, (Lane::kCapacity - 8) / 1008);
  pair.a->WriteDetour();
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(Read(*pair.b), record);
  EXPECT_FALSE(pair.a->IsEmpty());
  EXPECT_EQ(Read(*pair.b), "(detour)");
  EXPECT_TRUE(pair.a->IsEmpty());
  EXPECT_EQ(Read(*pair.b), "(nothing)");
  EXPECT_FALSE(Write(*pair.a, std::string(Lane::kCapacity, 'y')));
  EXPECT_TRUE(Write(*pair.a, "z"));
  EXPECT_EQ(Read(*pair.b), "z");
}

TEST(LaneTest, SaysWhoSleeps) {
  Pair pair;
  EXPECT_TRUE(pair.a->PeerSleeps());
  EXPECT_FALSE(pair.b->SetAsleep(false));
  EXPECT_FALSE(pair.a->PeerSleeps());
  EXPECT_TRUE(pair.b->PeerSleeps());  // the other direction
  EXPECT_TRUE(Write(*pair.a, "early"));
  EXPECT_TRUE(pair.b->SetAsleep(true));
  EXPECT_TRUE(pair.a->PeerSleeps());
  EXPECT_EQ(Read(*pair.b), "early");
  EXPECT_FALSE(pair.b->SetAsleep(true));
}

// Never: the reader went to sleep, and the writer saw it awake. Then the reader below would wait for a sign that
// nobody gives.
TEST(LaneTest, NobodySleepsOverARecord) {
  Pair pair;
  constexpr int kRecords = 200000;
  std::atomic<int> signs{0};
  std::thread writer([&] {
    for (int i = 0; i < kRecords; ++i) {
      while (!Write(*pair.a, std::string_view(reinterpret_cast<const char*>(&i), sizeof i))) {
        std::this_thread::yield();
      }
      if (pair.a->PeerSleeps()) signs.fetch_add(1);
    }
  });
  int next = 0, sleeps = 0;
  bool lost = false;
  while (next < kRecords && !lost) {
    std::string record;
    while ((record = Read(*pair.b)) != "(nothing)") {
      EXPECT_EQ(record, std::string(reinterpret_cast<const char*>(&next), sizeof next));
      ++next;
    }
    const int seen = signs.load();
    if (next == kRecords || pair.b->SetAsleep(true)) continue;
    ++sleeps;
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (signs.load() == seen && !lost) {
      std::this_thread::yield();
      lost = absl::Now() > deadline;
    }
    pair.b->SetAsleep(false);
  }
  EXPECT_FALSE(lost) << "after " << next << " records";
  writer.join();
  EXPECT_GT(sleeps, 0);
}

TEST(LaneTest, ALengthThatCannotBeIsBroken) {
  absl::StatusOr<Lane::Made> made = Lane::Make();
  ASSERT_TRUE(made.ok());
  absl::StatusOr<std::unique_ptr<Lane>> opened = Lane::Open(made->fd);
  ASSERT_TRUE(opened.ok());
  ASSERT_TRUE(Write(*made->lane, "12345678"));
  // Over the length in the ring, which begins right behind the positions.
  absl::StatusOr<Segment> memory = Segment::Map(made->fd.get(), Lane::MemoryBytes());
  ASSERT_TRUE(memory.ok()) << memory.status();
  char* const ring = memory->data() + Lane::MemoryBytes() - 2 * Lane::kCapacity;
  ASSERT_EQ(ring[0], 8);
  ring[0] = 9;
  EXPECT_EQ(Read(**opened), "(broken)");
}

}  // namespace
}  // namespace leafpack
