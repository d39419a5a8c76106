#include "distributed/core/channel/understudy.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "distributed/core/channel/channel_testutil.h"
#include "distributed/core/channel/waiter.h"

namespace leafpack {
namespace {

using Next = Understudy::Next;

class CountingClient : public Understudy::Client {
 public:
  Next OnReady(absl::Time) override {
    ++ready;
    return on_ready ? on_ready() : Next{};
  }
  Next OnTick(absl::Time) override {
    ++ticks;
    return on_tick ? on_tick() : Next{};
  }
  std::atomic<int> ready{0}, ticks{0};
  std::function<Next()> on_ready, on_tick;
};

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + kTestPatience;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

std::unique_ptr<Understudy::Registration> Register(Understudy::Client& client) {
  auto registration = Understudy::Get().Register(&client);
  EXPECT_TRUE(registration.ok()) << registration.status();
  return *std::move(registration);
}

TEST(UnderstudyTest, ServesAnEventOnce) {
  WakeEvent event;
  CountingClient client;
  client.on_ready = [&] {
    event.Drain();
    return Next{};
  };
  auto registration = Register(client);
  ASSERT_TRUE(registration->Watch(event.fd(), false).ok());
  for (int round = 1; round <= 20; ++round) {
    event.Signal();
    ASSERT_TRUE(Eventually([&] { return client.ready == round; }));
  }
  EXPECT_EQ(client.ticks, 0);
}

TEST(UnderstudyTest, DataThatIsLeftIsServedAgain) {
  WakeEvent event;
  CountingClient client;
  client.on_ready = [&] {
    if (client.ready == 5) event.Drain();
    return Next{};
  };
  auto registration = Register(client);
  event.Signal();
  ASSERT_TRUE(registration->Watch(event.fd(), false).ok());
  ASSERT_TRUE(Eventually([&] { return client.ready == 5; }));
}

TEST(UnderstudyTest, SleepsWhileNothingIsDisarmed) {
  WakeEvent event;
  CountingClient client;
  auto registration = Register(client);
  ASSERT_TRUE(registration->Watch(event.fd(), false).ok());
  absl::SleepFor(absl::Milliseconds(100));
  const uint64_t before = Understudy::Get().wakeups();
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(Understudy::Get().wakeups(), before);
}

// While callers serve the group, the first event is the only one that wakes the thread for the
// group's descriptors; when they stop, the group is served and armed again.
TEST(UnderstudyTest, StreamOfCallsWakesItOnce) {
  WakeEvent event;
  CountingClient client;
  std::atomic<bool> leading{true};
  client.on_ready = client.on_tick = [&] {
    if (leading) return Next{.rearm = false};
    event.Drain();
    return Next{};
  };
  auto registration = Register(client);
  ASSERT_TRUE(registration->Watch(event.fd(), false).ok());
  const absl::Time end = absl::Now() + absl::Milliseconds(500);
  absl::Time last = absl::Now();
  int stalls = 0;
  while (absl::Now() < end) {
    registration->NoteUse();
    if (absl::Now() - last >= kTick) ++stalls;
    last = absl::Now();
    event.Signal();
    absl::SleepFor(absl::Microseconds(300));
  }
  EXPECT_EQ(client.ready, 1);
  // At ticks the thread asks the client only if it saw no use since the last one: never, but for
  // ticks at which a loaded machine let this thread stand still.
  EXPECT_LE(client.ticks, stalls + 1);
  leading = false;
  const int before = client.ticks;
  EXPECT_TRUE(Eventually([&] { return client.ticks > before; }));
  event.Signal();
  EXPECT_TRUE(Eventually([&] { return client.ready >= 2; }));
}

TEST(UnderstudyTest, EnsureArmedActsOnDisarmedOnly) {
  WakeEvent event;
  CountingClient client;
  std::atomic<bool> leading{true};
  client.on_ready = client.on_tick = [&] {
    if (leading) return Next{.rearm = false};
    event.Drain();
    return Next{};
  };
  auto registration = Register(client);
  ASSERT_TRUE(registration->Watch(event.fd(), false).ok());
  registration->EnsureArmed();
  absl::SleepFor(absl::Milliseconds(30));
  EXPECT_EQ(client.ticks, 0);
  event.Signal();
  ASSERT_TRUE(Eventually([&] { return client.ready == 1; }));
  leading = false;
  registration->NoteUse();
  const int before = client.ticks;
  registration->EnsureArmed();
  ASSERT_TRUE(Eventually([&] { return client.ticks > before; }));
  event.Signal();
  EXPECT_TRUE(Eventually([&] { return client.ready == 2; }));
}

TEST(UnderstudyTest, WakeByAndPoke) {
  CountingClient client;
  auto registration = Register(client);
  const absl::Time start = absl::Now();
  std::atomic<int64_t> at{0};
  client.on_tick = [&] {
    at = absl::ToUnixNanos(absl::Now());
    return Next{};
  };
  registration->WakeBy(start + absl::Milliseconds(60));
  registration->WakeBy(start + absl::Seconds(100));  // later than what is set: nothing changes
  ASSERT_TRUE(Eventually([&] { return client.ticks == 1; }));
  EXPECT_GE(absl::FromUnixNanos(at), start + absl::Milliseconds(60));
  registration->Poke();
  ASSERT_TRUE(Eventually([&] { return client.ticks == 2; }));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(client.ticks, 2);
}

TEST(UnderstudyTest, AnswerSetsTheNextWake) {
  CountingClient client;
  client.on_tick = [&] {
    Next next;
    if (client.ticks < 5) next.wake_at = absl::Now() + absl::Milliseconds(2);
    return next;
  };
  auto registration = Register(client);
  registration->Poke();
  ASSERT_TRUE(Eventually([&] { return client.ticks == 5; }));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(client.ticks, 5);
}

// A wish that comes while the client is being served is not lost in its answer.
TEST(UnderstudyTest, WishDuringServiceIsKept) {
  CountingClient client;
  std::unique_ptr<Understudy::Registration> registration;
  client.on_tick = [&] {
    if (client.ticks == 1) registration->Poke();
    if (client.ticks == 2) registration->WakeBy(absl::Now() + absl::Milliseconds(1));
    return Next{};
  };
  registration = Register(client);
  registration->Poke();
  EXPECT_TRUE(Eventually([&] { return client.ticks == 3; }));
}

TEST(UnderstudyTest, WritingIsWatchedOnRequest) {
  auto [a, b] = SocketPair();
  std::vector<char> bytes(1 << 16);
  while (send(a.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  CountingClient client;
  std::unique_ptr<Understudy::Registration> registration;
  client.on_ready = [&, fd = a.get()] {
    EXPECT_TRUE(registration->Watch(fd, false).ok());
    return Next{};
  };
  registration = Register(client);
  ASSERT_TRUE(registration->Watch(a.get(), false).ok());
  ASSERT_TRUE(registration->Watch(a.get(), true).ok());
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(client.ready, 0);
  while (recv(b.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_TRUE(Eventually([&] { return client.ready == 1; }));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(client.ready, 1);
  registration->Unwatch(a.get());
  b.Close();
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(client.ready, 1);
}

TEST(UnderstudyTest, HangUpIsAnEvent) {
  auto [a, b] = SocketPair();
  CountingClient client;
  std::unique_ptr<Understudy::Registration> registration;
  client.on_ready = [&, fd = a.get()] {
    registration->Unwatch(fd);
    return Next{};
  };
  registration = Register(client);
  ASSERT_TRUE(registration->Watch(a.get(), false).ok());
  b.Close();
  EXPECT_TRUE(Eventually([&] { return client.ready == 1; }));
}

TEST(UnderstudyTest, UnregisterWaitsForTheMethodThatRuns) {
  WakeEvent event;
  std::atomic<bool> inside{false}, left{false};
  CountingClient client;
  client.on_ready = [&] {
    inside = true;
    absl::SleepFor(absl::Milliseconds(100));
    left = true;
    return Next{};
  };
  auto registration = Register(client);
  event.Signal();
  ASSERT_TRUE(registration->Watch(event.fd(), false).ok());
  ASSERT_TRUE(Eventually([&] { return inside.load(); }));
  registration->Unregister();
  EXPECT_TRUE(left);
  EXPECT_FALSE(registration->Watch(event.fd(), false).ok());
  registration->Poke();
  registration->Unwatch(event.fd());
  registration->Unregister();
}

TEST(UnderstudyTest, UnregisterFromItsOwnMethod) {
  CountingClient client;
  std::unique_ptr<Understudy::Registration> registration;
  std::atomic<bool> left{false};
  client.on_tick = [&] {
    registration->Unregister();
    left = true;
    return Next{.rearm = true, .wake_at = absl::Now()};
  };
  registration = Register(client);
  registration->Poke();
  ASSERT_TRUE(Eventually([&] { return left.load(); }));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(client.ticks, 1);
}

// Clients come, are served and go, from several threads at once. A method that ran after Unregister
// would touch freed memory.
TEST(UnderstudyTest, RegisterAndUnregisterRaces) {
  std::vector<std::thread> threads;
  std::atomic<int> served{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t, &served] {
      std::mt19937 random(t);
      for (int round = 0; round < 1500; ++round) {
        WakeEvent event;
        auto client = std::make_unique<CountingClient>();
        client->on_ready = client->on_tick = [&, rearm = random() % 2 == 0] {
          ++served;
          event.Drain();
          return Next{.rearm = rearm, .wake_at = absl::Now() + absl::Microseconds(100)};
        };
        auto registration = Register(*client);
        EXPECT_TRUE(registration->Watch(event.fd(), false).ok());
        for (unsigned i = random() % 4; i > 0; --i) {
          event.Signal();
          if (random() % 2 == 0) registration->Poke();
          if (random() % 2 == 0) registration->NoteUse();
          if (random() % 4 == 0) std::this_thread::yield();
          if (random() % 16 == 0) absl::SleepFor(absl::Microseconds(100));
        }
        if (random() % 2 == 0) registration->Unwatch(event.fd());
        registration.reset();
        client.reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(served.load(), 100);
}

// A client that lives in static storage and is served while the process exits.
struct StaticClient {
  StaticClient() : registration(Register(client)) {}
  ~StaticClient() {
    registration->Poke();
    registration->Unregister();
  }
  CountingClient client;
  std::unique_ptr<Understudy::Registration> registration;
};

void ExitWhileServed() {
  static StaticClient before;
  CountingClient late;
  late.on_tick = [] { return Next{.rearm = true, .wake_at = absl::Now()}; };
  auto registration = Register(late);
  registration->Poke();
  static StaticClient after;
  std::exit(7);  // with `late` still registered
}

void QuickExit() {
  static StaticClient client;
  quick_exit(8);
}

TEST(UnderstudyExitTest, StaticClientsAndExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ExitWhileServed(), testing::ExitedWithCode(7), "");
  EXPECT_EXIT(QuickExit(), testing::ExitedWithCode(8), "");
}

}  // namespace
}  // namespace leafpack
