// The core on raw views: ranks as threads over one set of addresses (tsan sees these), as threads and
// as processes that meet through a store.
#include "distributed/backends/shm/shared_memory.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/backends/shm/open_arena.h"
#include "distributed/core/arena.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/reduce/reduce.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::shm {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

absl::Status Await(absl::StatusOr<std::unique_ptr<DataWork>> work) {
  if (!work.ok()) return work.status();
  const absl::Time until = absl::Now() + kPatience;
  while (absl::Now() < until) {
    const absl::StatusOr<bool> done = (*work)->WaitFor(absl::Milliseconds(50));
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the test ran out of patience");
}

using Body = std::function<void(int rank, SharedMemory& memory)>;

// Small slots and rings, so that little data goes round them many times.
Geometry SmallGeometry(int ranks) { return Geometry(ranks, 2, 4096, 256); }

void OnThreads(std::vector<std::shared_ptr<SharedMemory>> memories, const Body& body) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < memories.size(); ++rank) {
    threads.emplace_back([&, rank] { body(static_cast<int>(rank), *memories[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

void InProcess(const Geometry& geometry, const Body& body) {
  auto peers = Peers::InProcess(geometry);
  ASSERT_TRUE(peers.ok()) << peers.status();
  std::vector<std::shared_ptr<SharedMemory>> memories;
  for (auto& each : *peers) memories.push_back(SharedMemory::Make(std::move(each)));
  OnThreads(std::move(memories), body);
}

LeafView ViewOf(void* data, at::ScalarType dtype, std::vector<int64_t> sizes,
                std::vector<int64_t> strides) {
  LeafView view;
  view.data = data;
  view.dtype = dtype;
  view.sizes = std::move(sizes);
  view.strides = std::move(strides);
  return view;
}

template <typename T>
LeafView ViewOf(std::vector<T>& values, at::ScalarType dtype) {
  return ViewOf(values.data(), dtype, {static_cast<int64_t>(values.size())}, {1});
}

float ValueOf(int rank, int64_t j) { return static_cast<float>((rank + 1) * (1 + j % 7)); }

std::vector<float> Values(int rank, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t j = 0; j < count; ++j) values[static_cast<size_t>(j)] = ValueOf(rank, j);
  return values;
}

std::vector<float> Sums(int ranks, int64_t count) {
  std::vector<float> sums = Values(0, count);
  for (float& value : sums) value *= static_cast<float>(ranks * (ranks + 1)) / 2;
  return sums;
}

class SharedMemoryTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SharedMemoryTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& tested) { return absl::StrCat(tested.param); });

TEST_P(SharedMemoryTest, SumsOfEverySize) {
  const int ranks = GetParam();
  InProcess(SmallGeometry(ranks), [&](int rank, SharedMemory& memory) {
    for (const int64_t count : {0, 1, 3, 7, 127, 1000, 1024, 1025, 5000, 40'000}) {
      std::vector<float> values = Values(rank, count);
      const absl::Status status =
          Await(memory.AllReduce({ViewOf(values, at::kFloat)}, ReduceOpKind::kSum));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(values, Sums(ranks, count)) << count << " elements, rank " << rank;
    }
  });
}

// Bytes that are values of every dtype.
std::vector<std::vector<char>> RandomInputs(int ranks, size_t bytes, at::ScalarType dtype) {
  std::vector<std::vector<char>> inputs(static_cast<size_t>(ranks), std::vector<char>(bytes));
  std::mt19937 random(static_cast<unsigned>(bytes) + static_cast<unsigned>(dtype));
  for (std::vector<char>& input : inputs) {
    for (char& c : input) c = static_cast<char>(dtype == at::kBool ? random() % 2 : random());
  }
  return inputs;
}

TEST_P(SharedMemoryTest, EveryDtypeAndOpHasTheBitsOfTheReductionInRankOrder) {
  using enum at::ScalarType;
  const int ranks = GetParam();
  const std::vector<at::ScalarType> dtypes = {
      Bool, Byte, UInt16, UInt32, UInt64, Char,         Short,         Int,           Long,
      Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble, Float8_e4m3fn, Float8_e5m2};
  for (const int64_t count : {5, 777, 9000}) {
    InProcess(Geometry(ranks, 2, 16 << 10, 256), [&](int rank, SharedMemory& memory) {
      for (const at::ScalarType dtype : dtypes) {
        const size_t bytes = static_cast<size_t>(count) * c10::elementSize(dtype);
        const std::vector<std::vector<char>> inputs = RandomInputs(ranks, bytes, dtype);
        for (int op = 0; op <= static_cast<int>(ReduceOpKind::kPremulSum); ++op) {
          const ReduceOpKind kind = static_cast<ReduceOpKind>(op);
          std::vector<char> mine = inputs[static_cast<size_t>(rank)];
          const LeafView view = ViewOf(mine.data(), dtype, {count}, {1});
          if (!CheckOpAllowed(kind, dtype).ok()) {
            ASSERT_EQ(memory.AllReduce({view}, kind).status(), CheckOpAllowed(kind, dtype));
            continue;
          }
          std::vector<const void*> pointers;
          for (const std::vector<char>& input : inputs) pointers.push_back(input.data());
          std::vector<char> expected(bytes);
          ASSERT_TRUE(ReduceInto(kind, dtype, pointers, expected.data(), count).ok());
          const absl::Status status = Await(memory.AllReduce({view}, kind));
          ASSERT_TRUE(status.ok()) << status;
          ASSERT_EQ(mine, expected) << c10::toString(dtype) << " " << ReduceOpName(kind) << " rank "
                                    << rank << " count " << count;
        }
      }
    });
  }
}

TEST_P(SharedMemoryTest, ManyStridedViewsOfSeveralDtypesInManyWorks) {
  const int ranks = GetParam();
  for (const int64_t slot : {4096, 64 << 10}) {
    InProcess(Geometry(ranks, 3, slot, 256), [&](int rank, SharedMemory& memory) {
      constexpr int kWorks = 6;
      std::vector<std::vector<std::vector<float>>> floats(kWorks);
      std::vector<std::vector<std::vector<int64_t>>> longs(kWorks);
      std::vector<std::unique_ptr<DataWork>> works;
      for (int w = 0; w < kWorks; ++w) {
        std::vector<LeafView> views;
        for (int i = 0; i < 40; ++i) {
          // A matrix [rows, 6] in memory of 6 rows and more columns; strides differ between ranks.
          const int64_t rows = 1 + (i * 37 + w) % 300;
          const int64_t step = 1 + (rank + i) % 3;
          floats[static_cast<size_t>(w)].emplace_back(static_cast<size_t>(6 * rows * step), -1.0f);
          std::vector<float>& memory_of_leaf = floats[static_cast<size_t>(w)].back();
          for (int64_t j = 0; j < 6 * rows; ++j) {
            memory_of_leaf[static_cast<size_t>((j % 6) * rows * step + j / 6 * step)] =
                ValueOf(rank, j);
          }
          views.push_back(
              ViewOf(memory_of_leaf.data(), at::kFloat, {rows, 6}, {step, rows * step}));
          if (i % 5 != 0) continue;
          std::vector<int64_t>& more =
              longs[static_cast<size_t>(w)].emplace_back(static_cast<size_t>(100 * i), rank + w);
          views.push_back(ViewOf(more, at::kLong));
        }
        auto work = memory.AllReduce(std::move(views), ReduceOpKind::kSum);
        ASSERT_TRUE(work.ok()) << work.status();
        works.push_back(*std::move(work));
      }
      // The last first: who waits drives them all.
      for (int w = kWorks; w-- > 0;) {
        const absl::Status status = Await(std::move(works[static_cast<size_t>(w)]));
        ASSERT_TRUE(status.ok()) << status;
      }
      const float factor = static_cast<float>(ranks * (ranks + 1)) / 2;
      for (int w = 0; w < kWorks; ++w) {
        for (int i = 0; i < 40; ++i) {
          const int64_t rows = 1 + (i * 37 + w) % 300;
          const int64_t step = 1 + (rank + i) % 3;
          std::vector<float> expected(static_cast<size_t>(6 * rows * step), -1.0f);
          for (int64_t j = 0; j < 6 * rows; ++j) {
            expected[static_cast<size_t>((j % 6) * rows * step + j / 6 * step)] =
                factor * ValueOf(0, j);
          }
          ASSERT_EQ(floats[static_cast<size_t>(w)][static_cast<size_t>(i)], expected);
        }
        for (const std::vector<int64_t>& leaf : longs[static_cast<size_t>(w)]) {
          ASSERT_EQ(leaf, std::vector<int64_t>(leaf.size(), ranks * (ranks - 1) / 2 + ranks * w));
        }
      }
    });
  }
}

TEST_P(SharedMemoryTest, ExchangesOfUnequalSizesCross) {
  const int ranks = GetParam();
  // What `from` sends to `to` in round n.
  const auto message = [](int from, int to, int n) {
    std::vector<float> values(static_cast<size_t>((from * 7 + to * 3 + n * 11) % 20 * 50));
    for (size_t j = 0; j < values.size(); ++j) {
      values[j] = static_cast<float>(from * 1000 + to * 100 + n) + static_cast<float>(j);
    }
    return values;
  };
  InProcess(SmallGeometry(ranks), [&](int rank, SharedMemory& memory) {
    constexpr int kRounds = 30;
    std::vector<std::vector<std::vector<float>>> out(kRounds), in(kRounds);
    std::vector<std::unique_ptr<DataWork>> works;
    for (int n = 0; n < kRounds; ++n) {
      std::vector<Transfer> sends, receives;
      for (int peer = 0; peer < ranks; ++peer) {
        out[static_cast<size_t>(n)].push_back(message(rank, peer, n));
        in[static_cast<size_t>(n)].emplace_back(message(peer, rank, n).size(), -1.0f);
      }
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        const size_t at = static_cast<size_t>(peer);
        sends.push_back({peer, {ViewOf(out[static_cast<size_t>(n)][at], at::kFloat)}});
        std::vector<float>& target = in[static_cast<size_t>(n)][at];
        // In two views, of another dtype: only bytes pass.
        const int64_t half = static_cast<int64_t>(target.size() / 2);
        receives.push_back(
            {peer,
             {ViewOf(target.data(), at::kInt, {half}, {1}),
              ViewOf(target.data() + half, at::kInt,
                     {static_cast<int64_t>(target.size()) - half}, {1})}});
      }
      auto work = memory.Exchange(std::move(sends), std::move(receives));
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    for (std::unique_ptr<DataWork>& work : works) {
      const absl::Status status = Await(std::move(work));
      ASSERT_TRUE(status.ok()) << status;
    }
    for (int n = 0; n < kRounds; ++n) {
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        ASSERT_EQ(in[static_cast<size_t>(n)][static_cast<size_t>(peer)], message(peer, rank, n));
      }
    }
  });
}

TEST_P(SharedMemoryTest, SeveralThreadsWaitAtOnce) {
  const int ranks = GetParam();
  InProcess(SmallGeometry(ranks), [&](int rank, SharedMemory& memory) {
    constexpr int kWorks = 40;
    std::vector<std::vector<float>> values, sent, got;
    std::vector<std::unique_ptr<DataWork>> works;
    for (int w = 0; w < kWorks; ++w) {
      values.push_back(Values(rank, 100 * w));
      auto work = memory.AllReduce({ViewOf(values.back(), at::kFloat)}, ReduceOpKind::kSum);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int w = t; w < kWorks; w += 3) {
          const absl::Status status = Await(std::move(works[static_cast<size_t>(w)]));
          EXPECT_TRUE(status.ok()) << status;
        }
      });
    }
    if (ranks > 1) {
      // Meanwhile messages in a ring.
      for (int n = 0; n < 20; ++n) {
        std::vector<float> mine = Values(rank, 300), other(300);
        std::vector<Transfer> sends, receives;
        sends.push_back({(rank + 1) % ranks, {ViewOf(mine, at::kFloat)}});
        receives.push_back({(rank + ranks - 1) % ranks, {ViewOf(other, at::kFloat)}});
        const absl::Status status = Await(memory.Exchange(std::move(sends), std::move(receives)));
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(other, Values((rank + ranks - 1) % ranks, 300));
      }
    }
    for (std::thread& thread : threads) thread.join();
    for (int w = 0; w < kWorks; ++w) {
      EXPECT_EQ(values[static_cast<size_t>(w)], Sums(ranks, 100 * w));
    }
  });
}

TEST(SharedMemoryAbortTest, EndsWaitsSoonAndTakesNothingMore) {
  InProcess(SmallGeometry(2), [&](int rank, SharedMemory& memory) {
    if (rank == 1) return;  // never comes
    std::vector<float> values = Values(rank, 5000);
    auto first = memory.AllReduce({ViewOf(values, at::kFloat)}, ReduceOpKind::kSum);
    auto second = memory.AllReduce({ViewOf(values, at::kFloat)}, ReduceOpKind::kSum);
    ASSERT_TRUE(first.ok() && second.ok());
    const absl::StatusOr<bool> not_yet = (*first)->WaitFor(absl::Milliseconds(60));
    ASSERT_TRUE(not_yet.ok() && !*not_yet) << not_yet.status();
    EXPECT_FALSE((*first)->IsDone());
    std::thread aborts([&] {
      absl::SleepFor(absl::Milliseconds(30));
      memory.Abort();
    });
    EXPECT_EQ(Await(*std::move(first)).code(), absl::StatusCode::kCancelled);
    aborts.join();
    EXPECT_TRUE((*second)->IsDone());
    EXPECT_EQ((*second)->WaitFor(absl::ZeroDuration()).status().code(),
              absl::StatusCode::kCancelled);
    EXPECT_EQ(memory.AllReduce({}, ReduceOpKind::kSum).status().code(),
              absl::StatusCode::kCancelled);
    EXPECT_EQ(memory.Exchange({}, {}).status().code(), absl::StatusCode::kCancelled);
    memory.Abort();
  });
}

// Ranks that meet through a store, as threads.
void Meet(int ranks, const Body& body) {
  const std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto mine = store->Clone();
      ASSERT_TRUE(mine.ok());
      auto memory = SharedMemory::Open(**mine, rank, ranks, absl::Now() + kPatience);
      ASSERT_TRUE(memory.ok()) << memory.status();
      body(rank, **memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(SharedMemoryTest, RanksThatMeetShareMemory) {
  const int ranks = GetParam();
  Meet(ranks, [&](int rank, SharedMemory& memory) {
    for (const int64_t count : {1000, 3'000'000}) {
      std::vector<float> values = Values(rank, count);
      const absl::Status status =
          Await(memory.AllReduce({ViewOf(values, at::kFloat)}, ReduceOpKind::kSum));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(values, Sums(ranks, count));
    }
  });
}

TEST(SharedMemoryMeetTest, ARankThatLeavesIsNamedOnlyWhenItIsNeeded) {
  Meet(3, [&](int rank, SharedMemory& memory) {
    std::vector<float> values = Values(rank, 1000);
    absl::Status status =
        Await(memory.AllReduce({ViewOf(values, at::kFloat)}, ReduceOpKind::kSum));
    ASSERT_TRUE(status.ok()) << status;
    if (rank == 1) return;  // its end closes
    std::vector<float> other(5000);
    std::vector<Transfer> sends, receives;
    // Rank 0 makes rank 2 wait, which does not need rank 1.
    if (rank == 0) {
      absl::SleepFor(absl::Milliseconds(100));
      sends.push_back({2, {ViewOf(other, at::kFloat)}});
    } else {
      receives.push_back({0, {ViewOf(other, at::kFloat)}});
    }
    status = Await(memory.Exchange(std::move(sends), std::move(receives)));
    ASSERT_TRUE(status.ok()) << status;
    values = Values(rank, 1000);
    status = Await(memory.AllReduce({ViewOf(values, at::kFloat)}, ReduceOpKind::kSum));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("group rank 1 "), std::string_view::npos) << status;
  });
}

TEST(SharedMemoryMeetTest, AMissingRankIsNamedAtTheDeadline) {
  const std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  auto memory = SharedMemory::Open(*store, 0, 3, absl::Now() + absl::Milliseconds(100));
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(memory.status().message().find("group ranks 1, 2"), std::string_view::npos)
      << memory.status();
}

// A rank whose Unix name nobody has, as it looks from another network namespace.
TEST(SharedMemoryMeetTest, RanksThatDoNotShareMemoryAllLearnIt) {
  const std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  ASSERT_TRUE(store->Set("name/0", "leafpack-elsewhere 00112233445566778899aabbccddeeff").ok());
  ASSERT_TRUE(store->Set("verdict/0", "apart group rank 1 gave up").ok());
  std::vector<std::thread> threads;
  for (int rank = 1; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto mine = store->Clone();
      ASSERT_TRUE(mine.ok());
      auto memory = SharedMemory::Open(**mine, rank, 3, absl::Now() + kPatience);
      EXPECT_EQ(memory.status().code(), absl::StatusCode::kFailedPrecondition) << memory.status();
      EXPECT_NE(memory.status().message().find("group rank 1: "), std::string_view::npos);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SegmentTest, TooLargeIsAnErrorAndNotASignal) {
  const auto created = Segment::Create(size_t{1} << 50);
  EXPECT_EQ(created.status().code(), absl::StatusCode::kResourceExhausted) << created.status();
}

TEST(SegmentTest, OnlySealedSegmentsOfTheAgreedSizeAreMapped) {
  auto created = Segment::Create(1 << 16);
  ASSERT_TRUE(created.ok()) << created.status();
  auto mapped = Segment::Map(created->fd.get(), 1 << 16);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  created->segment.data()[77] = 5;
  EXPECT_EQ(mapped->data()[77], 5);
  EXPECT_EQ(Segment::Map(created->fd.get(), 1 << 17).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_NE(ftruncate(created->fd.get(), 10), 0) << "the size is sealed";
}

// Arenas of ranks that are threads: memory of this process.
struct InProcessArenas {
  std::vector<Arena> arenas;  // by rank
  InProcessArenas(int ranks, int64_t bytes) : arenas(static_cast<size_t>(ranks)) {
    auto memory = std::make_shared<std::vector<std::vector<char>>>(
        static_cast<size_t>(ranks), std::vector<char>(static_cast<size_t>(bytes)));
    for (int rank = 0; rank < ranks; ++rank) {
      Arena& arena = arenas[static_cast<size_t>(rank)];
      arena.rank = rank;
      arena.bytes = bytes;
      arena.memory = memory;
      for (std::vector<char>& each : *memory) arena.bases.push_back(each.data());
    }
  }
  char* At(int rank, int64_t offset) const {
    return arenas[static_cast<size_t>(rank)].bases[static_cast<size_t>(rank)] + offset;
  }
};

// Small copies are reduced by every rank for itself; what is larger than this stays in the arena.
constexpr int64_t kInArenaBytes = 300 << 10;

TEST_P(SharedMemoryTest, EveryDtypeAndOpInAnArena) {
  using enum at::ScalarType;
  const int ranks = GetParam();
  const Geometry geometry(ranks, 2, 16 << 10, 256);
  auto peers = Peers::InProcess(geometry);
  ASSERT_TRUE(peers.ok()) << peers.status();
  std::vector<const char*> slots;
  for (const auto& each : *peers) slots.push_back(geometry.slot(each->base(each->rank()), 0));
  std::vector<std::shared_ptr<SharedMemory>> memories;
  for (auto& each : *peers) memories.push_back(SharedMemory::Make(std::move(each)));
  const int64_t room = 2 * kInArenaBytes;
  const InProcessArenas arenas(ranks, room);
  OnThreads(memories, [&](int rank, SharedMemory& memory) {
    for (const at::ScalarType dtype : {Bool, Char, UInt16, Int, Long, Half, BFloat16, Float, Double,
                                       ComplexFloat, ComplexDouble, Float8_e5m2}) {
      const int64_t element = static_cast<int64_t>(c10::elementSize(dtype));
      const int64_t count = kInArenaBytes / element + 3;
      const size_t bytes = static_cast<size_t>(count * element);
      const std::vector<std::vector<char>> inputs = RandomInputs(ranks, bytes, dtype);
      for (const ReduceOpKind op : {ReduceOpKind::kSum, ReduceOpKind::kAvg, ReduceOpKind::kProduct,
                                    ReduceOpKind::kMax, ReduceOpKind::kBxor}) {
        if (!CheckOpAllowed(op, dtype).ok()) continue;
        // Two leaves with a gap between them, so that slices and chunks end within both.
        char* mine = arenas.At(rank, 64);
        const int64_t first = count / 3;
        char* second = mine + first * element + 640;
        const std::vector<char>& input = inputs[static_cast<size_t>(rank)];
        std::memset(mine + first * element, 77, 640);
        std::memcpy(mine, input.data(), static_cast<size_t>(first * element));
        std::memcpy(second, input.data() + first * element,
                    static_cast<size_t>((count - first) * element));
        const Arena* arena = &arenas.arenas[static_cast<size_t>(rank)];
        const absl::Status status = Await(memory.AllReduce(
            {ViewOf(mine, dtype, {first}, {1}), ViewOf(second, dtype, {count - first}, {1})}, op,
            {arena, arena}));
        ASSERT_TRUE(status.ok()) << status;
        std::vector<const void*> pointers;
        for (const std::vector<char>& each : inputs) pointers.push_back(each.data());
        std::vector<char> expected(bytes);
        ASSERT_TRUE(ReduceInto(op, dtype, pointers, expected.data(), count).ok());
        const size_t split = static_cast<size_t>(first * element);
        ASSERT_EQ(std::memcmp(mine, expected.data(), split), 0) << c10::toString(dtype);
        ASSERT_EQ(std::memcmp(second, expected.data() + split, bytes - split), 0)
            << c10::toString(dtype);
        ASSERT_TRUE(std::all_of(second - 640, second, [](char c) { return c == 77; }));
      }
    }
  });
  // Nothing was copied through the slots.
  for (const char* slot : slots) {
    EXPECT_TRUE(std::all_of(slot, slot + 2 * (16 << 10), [](char c) { return c == 0; }));
  }
}

// Leaves in an arena among others, several operations at once, written anew right after each.
TEST_P(SharedMemoryTest, ArenasAmongOtherLeaves) {
  const int ranks = GetParam();
  const int64_t count = kInArenaBytes / 4;
  const InProcessArenas arenas(ranks, 2 * kInArenaBytes);
  InProcess(Geometry(ranks, 3, 64 << 10, 256), [&](int rank, SharedMemory& memory) {
    const Arena* arena = &arenas.arenas[static_cast<size_t>(rank)];
    auto* shared = reinterpret_cast<float*>(arenas.At(rank, 0));
    auto* shared_too = shared + count;
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < 30; ++round) {
      const auto fill = [&](float* to) {
        for (int64_t j = 0; j < count; ++j) to[j] = ValueOf(rank, j + round);
      };
      std::vector<float> own(static_cast<size_t>(count));
      fill(own.data());
      fill(shared);
      fill(shared_too);
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      auto one = memory.AllReduce({ViewOf(shared, at::kFloat, {count}, {1}), ViewOf(own, at::kFloat)},
                                  ReduceOpKind::kSum, {arena, nullptr});
      auto two = memory.AllReduce({ViewOf(shared_too, at::kFloat, {count}, {1})},
                                  ReduceOpKind::kSum, {arena});
      for (const absl::Status& status : {Await(std::move(two)), Await(std::move(one))}) {
        ASSERT_TRUE(status.ok()) << status;
      }
      const float all = static_cast<float>(ranks * (ranks + 1)) / 2;
      for (int64_t j = 0; j < count; ++j) {
        const float expected = ValueOf(0, j + round) * all;
        ASSERT_EQ(shared[j], expected) << "round " << round << ", element " << j;
        ASSERT_EQ(shared_too[j], expected);
        ASSERT_EQ(own[static_cast<size_t>(j)], expected);
      }
    }
  });
}

// Two ranks in this process whose arenas are segments, mapped by each: as between processes.
struct TwoRanks {
  std::vector<std::shared_ptr<const Arena>> arenas = std::vector<std::shared_ptr<const Arena>>(2);
  std::vector<std::shared_ptr<SharedMemory>> memories;

  explicit TwoRanks(int64_t bytes) {
    const std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        auto arena = OpenArena(*store->Clone().value(), rank, 2, bytes, absl::Now() + kPatience, nullptr);
        ASSERT_TRUE(arena.ok()) << arena.status();
        arenas[static_cast<size_t>(rank)] = *std::move(arena);
      });
    }
    for (std::thread& thread : threads) thread.join();
    auto peers = Peers::InProcess(SmallGeometry(2));
    for (auto& each : *peers) memories.push_back(SharedMemory::Make(std::move(each)));
  }
  float* Leaf(int rank) const {
    return reinterpret_cast<float*>(arenas[static_cast<size_t>(rank)]->bases[static_cast<size_t>(rank)]);
  }
  void Fill(int rank, float value) const {
    std::fill_n(Leaf(rank), arenas[0]->bytes / 4, value);
  }
  absl::StatusOr<std::unique_ptr<DataWork>> Start(int rank) const {
    return memories[static_cast<size_t>(rank)]->AllReduce(
        {ViewOf(Leaf(rank), at::kFloat, {arenas[0]->bytes / 4}, {1})}, ReduceOpKind::kSum,
        {arenas[static_cast<size_t>(rank)].get()});
  }
};

// A rank that stood still while the others gave up writes its slice later, when their leaves are the user's again.
TEST(SharedMemoryArenaTest, ALateRankDoesNotWriteLeavesOfWhoGaveUp) {
  const int64_t count = kInArenaBytes / 4;
  const TwoRanks ranks(kInArenaBytes);
  ASSERT_NE(ranks.arenas[1], nullptr);
  ranks.Fill(0, 1);
  ranks.Fill(1, 2);
  auto gave_up = ranks.Start(0);
  ASSERT_TRUE(gave_up.ok()) << gave_up.status();
  auto late = ranks.Start(1);
  ASSERT_TRUE(late.ok()) << late.status();
  ranks.memories[0]->Abort();
  const auto ended = (*gave_up)->WaitFor(absl::Seconds(10));
  ASSERT_TRUE(absl::IsCancelled(ended.status())) << ended.status();
  EXPECT_TRUE(ranks.arenas[0]->detached());
  EXPECT_FALSE(ranks.arenas[1]->detached());
  ranks.Fill(0, 7);
  // It writes its half everywhere, with what the other rank had when that gave up, and waits for its half.
  const auto waited = (*late)->WaitFor(absl::Milliseconds(100));
  ASSERT_TRUE(waited.ok()) << waited.status();
  EXPECT_FALSE(*waited);
  EXPECT_EQ(ranks.Leaf(1)[count - 1], 3);
  EXPECT_EQ(ranks.Leaf(1)[0], 2);
  for (int64_t j = 0; j < count; ++j) ASSERT_EQ(ranks.Leaf(0)[j], 7) << "element " << j;
  // The arena is of no more use, and the leaf is ordinary memory.
  EXPECT_TRUE(absl::IsCancelled(ranks.Start(0).status()));
  auto fresh = Peers::InProcess(SmallGeometry(1));
  auto alone = SharedMemory::Make(std::move(fresh->front()));
  EXPECT_TRUE(Await(alone->AllReduce({ViewOf(ranks.Leaf(0), at::kFloat, {count}, {1})},
                                     ReduceOpKind::kSum)).ok());
}

// An operation whose arena is detached by another one that failed: its rank would not get what others write.
TEST(SharedMemoryArenaTest, AnOperationInAnArenaThatWasDetachedFails) {
  const TwoRanks ranks(kInArenaBytes);
  ASSERT_NE(ranks.arenas[1], nullptr);
  auto mine = ranks.Start(0);
  auto other = ranks.Start(1);
  ranks.arenas[0]->Detach();
  std::thread thread([&] { EXPECT_TRUE(Await(std::move(other)).ok()); });
  const absl::Status status = Await(std::move(mine));
  thread.join();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::IsFailedPrecondition(ranks.Start(0).status())) << ranks.Start(0).status();
}

// Who gives up before others may write keeps the arena.
TEST(SharedMemoryArenaTest, AFinishedOperationLeavesTheArenaInUse) {
  const TwoRanks ranks(kInArenaBytes);
  ASSERT_NE(ranks.arenas[1], nullptr);
  for (int round = 1; round < 4; ++round) {
    ranks.Fill(0, 1);
    ranks.Fill(1, static_cast<float>(round));
    std::thread thread([&] { EXPECT_TRUE(Await(ranks.Start(1)).ok()); });
    EXPECT_TRUE(Await(ranks.Start(0)).ok());
    thread.join();
    EXPECT_EQ(ranks.Leaf(0)[0], static_cast<float>(round + 1));
    EXPECT_EQ(ranks.Leaf(1)[kInArenaBytes / 4 - 1], static_cast<float>(round + 1));
  }
  ranks.memories[0]->Abort();
  EXPECT_FALSE(ranks.arenas[0]->detached());
}

TEST(SharedMemoryArenaTest, AViewOutsideOfItsArenaIsRefused) {
  const InProcessArenas arenas(1, 4096);
  InProcess(SmallGeometry(1), [&](int, SharedMemory& memory) {
    const Arena* arena = &arenas.arenas[0];
    EXPECT_EQ(memory.AllReduce({ViewOf(arenas.At(0, 0), at::kFloat, {1025}, {1})},
                               ReduceOpKind::kSum, {arena}).status().code(),
              absl::StatusCode::kInternal);
    EXPECT_EQ(memory.AllReduce({ViewOf(arenas.At(0, 0), at::kFloat, {4}, {2})},
                               ReduceOpKind::kSum, {arena}).status().code(),
              absl::StatusCode::kInternal);
  });
}

}  // namespace
}  // namespace leafpack::shm
