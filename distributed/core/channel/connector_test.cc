#include "distributed/core/channel/connector.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/channel/channel_testutil.h"
#include "distributed/core/channel/handshake.h"
#include "distributed/core/channel/link.h"
#include "distributed/core/channel/sockets.h"

namespace leafpack {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = Connector::State;

absl::Time Patience() { return absl::Now() + kTestPatience; }

ConnectorOptions Options(int rank, int size) {
  ConnectorOptions options;
  options.rank = rank;
  options.size = size;
  options.library_version = "1.2.3";
  options.loopback_only = true;
  return options;
}

// The rendezvous that rank 0 has left in the store, once it is there.
Rendezvous AwaitRendezvous(KeyValueStore& store) {
  while (!*store.Check("channel")) absl::SleepFor(absl::Milliseconds(1));
  return *DecodeRendezvous(*store.Get("channel"));
}

// A blocking client that speaks bytes of its own.
class RawClient {
 public:
  explicit RawClient(const Rendezvous& rendezvous) {
    absl::StatusOr<Connecting> connecting = ConnectUnix(rendezvous.unix_name);
    while (absl::IsResourceExhausted(connecting.status())) {
      absl::SleepFor(absl::Milliseconds(1));
      connecting = ConnectUnix(rendezvous.unix_name);
    }
    EXPECT_TRUE(connecting.ok()) << connecting.status();
    if (connecting.ok()) fd_ = std::move(connecting->fd);
  }
  void Say(std::string_view bytes) const {
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // What is read until the end of the connection.
  std::string ReadToEnd() const {
    std::string result;
    char bytes[4096];
    while (true) {
      pollfd wait = {fd_.get(), POLLIN, 0};
      if (poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(kTestPatience))) != 1) return "timed out";
      const ssize_t n = recv(fd_.get(), bytes, sizeof bytes, 0);
      if (n <= 0) return result;
      result.append(bytes, static_cast<size_t>(n));
    }
  }

 private:
  TrackedFd fd_;
};

// Rank 0 in a thread of its own, stepped until it ends or the test does.
class RankZero {
 public:
  RankZero(std::unique_ptr<KeyValueStore> store, ConnectorOptions options)
      : connector_(std::move(store), std::move(options)), thread_([this] { Run(); }) {}
  ~RankZero() { Join(); }

  // Waits until all are in (or `until`), then gives what happened.
  void JoinBy(absl::Time until) {
    while (!done_.HasBeenNotified() && absl::Now() < until) done_.WaitForNotificationWithDeadline(until);
    Join();
  }
  Connector& connector() { return connector_; }
  std::vector<Connector::Joined> joined;

 private:
  void Run() {
    while (!stop_.load()) {
      if (StepUntil(connector_, absl::Now() + absl::Milliseconds(20), joined) != State::kConnecting) break;
    }
    done_.Notify();
  }
  void Join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<bool> stop_{false};
  absl::Notification done_;
  Connector connector_;
  std::thread thread_;
};

std::string HelloOf(const Rendezvous& rendezvous, uint32_t rank, uint32_t size) {
  return EncodeHello({kChannelProtocolVersion, rendezvous.token_a, rank, size, "1.2.3"});
}

// Both ends of a connection carry bytes, also those sent right behind the handshake.
void ExpectTalks(TrackedFd zero, TrackedFd other) {
  Link a, b;
  a.Attach(std::move(zero));
  b.Attach(std::move(other));
  ASSERT_TRUE(a.Send("ping").ok());
  ASSERT_TRUE(b.Send("pong").ok());
  std::string scratch(100, '\0');
  for (auto [link, expected] : {std::pair{&a, "pong"}, std::pair{&b, "ping"}}) {
    std::string received;
    while (received.size() < 4) {
      pollfd wait = {link->fd(), POLLIN, 0};
      ASSERT_EQ(poll(&wait, 1, 60000), 1);
      link->ReadAvailable(absl::MakeSpan(scratch), [&](absl::Span<const char> bytes) {
        received.append(bytes.data(), bytes.size());
        return true;
      });
    }
    EXPECT_EQ(received, expected);
  }
}

class ConnectorTransportTest : public testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(ConnectorTransportTest, AllRanksJoin) {
  const auto [size, transport] = GetParam();
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  const auto options = [&, transport = transport, size = size](int rank) {
    ConnectorOptions result = Options(rank, size);
    result.use_unix = transport != "tcp";
    result.use_tcp = transport != "unix";
    return result;
  };
  RankZero zero(*store->Clone(), options(0));
  std::map<int, TrackedFd> ends;
  std::vector<std::unique_ptr<Connector>> others;
  for (int rank = 1; rank < size; ++rank) {
    others.push_back(std::make_unique<Connector>(*store->Clone(), options(rank)));
    EXPECT_EQ(others.back()->fd(), -1);
    std::vector<Connector::Joined> joined;
    EXPECT_EQ(StepUntil(*others.back(), Patience(), joined), State::kConnected) << others.back()->Problem();
    ASSERT_EQ(joined.size(), 1u);
    EXPECT_EQ(joined[0].rank, 0);
    EXPECT_EQ(joined[0].local, transport != "tcp");
    EXPECT_TRUE(others.back()->MissingRanks().empty());
    ends[rank] = std::move(joined[0].fd);
  }
  zero.JoinBy(Patience());
  EXPECT_EQ(zero.connector().state(), State::kConnected);
  EXPECT_EQ(zero.connector().all_local(), transport != "tcp");
  EXPECT_EQ(static_cast<int>(zero.joined.size()), size - 1);
  for (Connector::Joined& one : zero.joined) {
    EXPECT_EQ(one.local, transport != "tcp");
    ExpectTalks(std::move(one.fd), std::move(ends.at(one.rank)));
  }
  // Silent from now on: nobody may be woken for nothing.
  for (const Connector* connector : {static_cast<const Connector*>(&zero.connector()),
                                     static_cast<const Connector*>(others.front().get())}) {
    pollfd wait = {connector->fd(), POLLIN, 0};
    EXPECT_EQ(poll(&wait, 1, 50), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ConnectorTransportTest,
                         testing::Combine(testing::Values(2, 3, 4, 40), testing::Values("both", "unix", "tcp")),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), "_", std::get<1>(test.param));
                         });

// The Unix name cannot be found from another network namespace: TCP is used then.
TEST(ConnectorTest, FallsBackToTcpWhenUnixNameIsUnreachable) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  RankZero zero(*store->Clone(), Options(0, 2));
  Rendezvous rendezvous = AwaitRendezvous(*store);
  rendezvous.unix_name = "leafpack-of-another-host";
  ASSERT_TRUE(store->Set("channel", EncodeRendezvous(rendezvous)).ok());
  Connector one(*store->Clone(), Options(1, 2));
  std::vector<Connector::Joined> joined;
  ASSERT_EQ(StepUntil(one, Patience(), joined), State::kConnected);
  EXPECT_FALSE(joined[0].local);
  zero.JoinBy(Patience());
  EXPECT_FALSE(zero.connector().all_local());
}

TEST(ConnectorTest, LateRankZero) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  Connector one(*store->Clone(), Options(1, 2));
  std::vector<Connector::Joined> joined;
  EXPECT_EQ(StepUntil(one, absl::Now() + absl::Seconds(2), joined), State::kConnecting);
  EXPECT_EQ(one.Problem(), "rank 0 has not opened its channel");
  EXPECT_THAT(one.MissingRanks(), ElementsAre(0));
  RankZero zero(*store->Clone(), Options(0, 2));
  EXPECT_EQ(StepUntil(one, Patience(), joined), State::kConnected);
  zero.JoinBy(Patience());
  EXPECT_EQ(zero.joined.size(), 1u);
}

// Rank 0 hands over who is there; the rest may come seconds later.
TEST(ConnectorTest, LateRankJoinsWhileOthersTalk) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  Connector zero(*store->Clone(), Options(0, 3));
  Connector one(*store->Clone(), Options(1, 3));
  std::vector<Connector::Joined> in_zero, in_one, in_two;
  const absl::Time end = Patience();
  while ((in_zero.empty() || in_one.empty()) && absl::Now() < end) {
    StepUntil(zero, absl::Now() + absl::Milliseconds(5), in_zero);
    StepUntil(one, absl::Now() + absl::Milliseconds(5), in_one);
  }
  ASSERT_EQ(in_zero.size(), 1u);
  EXPECT_EQ(in_zero[0].rank, 1);
  EXPECT_EQ(zero.state(), State::kConnecting);
  EXPECT_THAT(zero.MissingRanks(), ElementsAre(2));
  ExpectTalks(std::move(in_zero[0].fd), std::move(in_one[0].fd));
  StepUntil(zero, absl::Now() + absl::Seconds(2), in_zero);
  Connector two(*store->Clone(), Options(2, 3));
  while ((zero.state() != State::kConnected || in_two.empty()) && absl::Now() < end) {
    StepUntil(two, absl::Now() + absl::Milliseconds(5), in_two);
    StepUntil(zero, absl::Now() + absl::Milliseconds(5), in_zero);
  }
  EXPECT_EQ(zero.state(), State::kConnected);
  EXPECT_TRUE(zero.all_local());
  EXPECT_TRUE(zero.MissingRanks().empty());
}

// Rank 0 is not stepped (it computes, or is stopped): the other one waits, without giving up what it
// said, and joins once when rank 0 comes back.
TEST(ConnectorTest, BusyRankZero) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  ConnectorOptions options = Options(0, 2);
  Connector zero(*store->Clone(), options);
  std::vector<Connector::Joined> in_zero, in_one;
  StepUntil(zero, absl::Now() + absl::Milliseconds(50), in_zero);
  options = Options(1, 2);
  options.hello_timeout = absl::Milliseconds(100);
  Connector one(*store->Clone(), options);
  EXPECT_EQ(StepUntil(one, absl::Now() + absl::Seconds(1), in_one), State::kConnecting);
  EXPECT_THAT(one.Problem(), HasSubstr("took the connection at its Unix name and does not answer"));
  EXPECT_EQ(StepUntil(zero, Patience(), in_zero), State::kConnected);
  EXPECT_EQ(in_zero.size(), 1u);
  EXPECT_EQ(StepUntil(one, Patience(), in_one), State::kConnected);
  ExpectTalks(std::move(in_zero[0].fd), std::move(in_one[0].fd));
}

// The HELLO was sent in time; that rank 0 looks at it late does not matter.
TEST(ConnectorTest, HelloInTimeIsBelievedThoughReadLate) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  ConnectorOptions options = Options(0, 2);
  options.hello_timeout = absl::Milliseconds(50);
  Connector zero(*store->Clone(), options);
  std::vector<Connector::Joined> joined;
  StepUntil(zero, absl::Now() + absl::Milliseconds(1), joined);
  const Rendezvous rendezvous = AwaitRendezvous(*store);
  RawClient client(rendezvous);
  zero.Step();  // accepted
  client.Say(HelloOf(rendezvous, 1, 2));
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(zero.Step(), State::kConnected);
}

TEST(ConnectorTest, StrangersAreClosedInSilence) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  ConnectorOptions options = Options(0, 2);
  options.hello_timeout = absl::Milliseconds(200);
  RankZero zero(*store->Clone(), options);
  const Rendezvous rendezvous = AwaitRendezvous(*store);

  Rendezvous wrong = rendezvous;
  wrong.token_a[15] ^= 1;
  RawClient wrong_token(rendezvous);
  wrong_token.Say(HelloOf(wrong, 1, 2));
  EXPECT_EQ(wrong_token.ReadToEnd(), "");

  RawClient half(rendezvous);
  half.Say(HelloOf(rendezvous, 1, 2).substr(0, 20));
  EXPECT_EQ(half.ReadToEnd(), "");

  RawClient silent(rendezvous);
  EXPECT_EQ(silent.ReadToEnd(), "");

  RawClient huge(rendezvous);
  huge.Say(std::string_view("LPHI\xff\xff\xff\x7f", 8));
  EXPECT_EQ(huge.ReadToEnd(), "");

  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(1 + random() % 100, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    RawClient(rendezvous).Say(bytes);
  }
  // A true HELLO with bytes changed after the token.
  for (size_t at = 0; at < 8; ++at) {
    std::string hello = HelloOf(rendezvous, 1, 2);
    hello[at] = static_cast<char>(hello[at] ^ 0x40);
    RawClient changed(rendezvous);
    changed.Say(hello);
    EXPECT_EQ(changed.ReadToEnd(), "");
  }

  Connector one(*store->Clone(), Options(1, 2));
  std::vector<Connector::Joined> joined;
  EXPECT_EQ(StepUntil(one, Patience(), joined), State::kConnected);
  zero.JoinBy(Patience());
  EXPECT_TRUE(zero.connector().TakeRejected().empty());
}

// Somebody is there but overrun: not a reason to take TCP in place of the Unix name.
TEST(ConnectorTest, FullUnixBacklogIsWaitedFor) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  Connector zero(*store->Clone(), Options(0, 2));
  std::vector<Connector::Joined> in_zero, in_one;
  StepUntil(zero, absl::Now() + absl::Milliseconds(1), in_zero);
  const Rendezvous rendezvous = AwaitRendezvous(*store);
  std::vector<TrackedFd> crowd;
  while (true) {
    absl::StatusOr<Connecting> connecting = ConnectUnix(rendezvous.unix_name);
    if (!connecting.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(connecting.status())) << connecting.status();
      break;
    }
    crowd.push_back(std::move(connecting->fd));
  }
  Connector one(*store->Clone(), Options(1, 2));
  EXPECT_EQ(StepUntil(one, absl::Now() + absl::Milliseconds(200), in_one), State::kConnecting);
  EXPECT_THAT(one.Problem(), HasSubstr("queue of connections is full"));
  crowd.clear();
  const absl::Time end = Patience();
  while (in_one.empty() && absl::Now() < end) {
    StepUntil(zero, absl::Now() + absl::Milliseconds(5), in_zero);
    StepUntil(one, absl::Now() + absl::Milliseconds(5), in_one);
  }
  ASSERT_EQ(in_one.size(), 1u);
  EXPECT_TRUE(in_one[0].local);
}

TEST(ConnectorTest, MoreStrangersThanPlacesOnlyDelay) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  ConnectorOptions options = Options(0, 2);
  options.hello_timeout = absl::Milliseconds(300);
  RankZero zero(*store->Clone(), options);
  const Rendezvous rendezvous = AwaitRendezvous(*store);
  std::vector<RawClient> strangers;
  for (int i = 0; i < 40; ++i) strangers.emplace_back(rendezvous);
  Connector one(*store->Clone(), Options(1, 2));
  std::vector<Connector::Joined> joined;
  EXPECT_EQ(StepUntil(one, Patience(), joined), State::kConnected);
  for (const RawClient& stranger : strangers) EXPECT_EQ(stranger.ReadToEnd(), "");
}

struct RejectCase {
  std::string name;
  std::function<void(ConnectorOptions&)> change;
  std::string text;
  bool lost;
};

class ConnectorRejectTest : public testing::TestWithParam<RejectCase> {};

TEST_P(ConnectorRejectTest, BothSidesSayWhy) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  RankZero zero(*store->Clone(), Options(0, 3));
  ConnectorOptions good = Options(2, 3);
  Connector two(*store->Clone(), good);
  std::vector<Connector::Joined> joined;
  ASSERT_EQ(StepUntil(two, Patience(), joined), State::kConnected);

  ConnectorOptions options = Options(1, 3);
  GetParam().change(options);
  Connector one(*store->Clone(), options);
  EXPECT_EQ(StepUntil(one, Patience(), joined), State::kFailed);
  EXPECT_EQ(one.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(one.status().message()),
              AllOf(HasSubstr("rank 0 turned this rank away"), HasSubstr(GetParam().text)));
  EXPECT_EQ(one.Step(), State::kFailed);
  zero.JoinBy(absl::Now() + absl::Milliseconds(100));
  std::vector<Connector::Rejected> rejected = zero.connector().TakeRejected();
  ASSERT_EQ(rejected.size(), 1u);
  EXPECT_EQ(rejected[0].rank, options.rank);
  EXPECT_EQ(rejected[0].rank_is_lost, GetParam().lost);
  EXPECT_THAT(std::string(rejected[0].reason.message()), HasSubstr(GetParam().text));
  EXPECT_EQ(zero.connector().state(), State::kConnecting);
}

INSTANTIATE_TEST_SUITE_P(
    Reasons, ConnectorRejectTest,
    testing::Values(
        RejectCase{"Size", [](auto& o) { o.size = 4; },
                   "rank 1 says that the group has 4 ranks, rank 0 says 3", true},
        RejectCase{"LaterProtocol", [](auto& o) { o.protocol_version = 9; },
                   "rank 1 speaks version 9 of the protocol, rank 0 version 2", true},
        RejectCase{"Library", [](auto& o) { o.library_version = "2.0"; },
                   "rank 1 runs leafpack 2.0, rank 0 leafpack 1.2.3", true},
        RejectCase{"Duplicate", [](auto& o) { o.rank = 2; }, "two processes came as rank 2", false},
        RejectCase{"OutOfRange", [](auto& o) { o.rank = 3; }, "rank 3 is not a rank", false}),
    [](const auto& test) { return test.param.name; });

// A HELLO of a later protocol may be longer; it still learns why it cannot join.
TEST(ConnectorTest, LongerHelloOfLaterVersion) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  RankZero zero(*store->Clone(), Options(0, 2));
  const Rendezvous rendezvous = AwaitRendezvous(*store);
  std::string hello = EncodeHello({7, rendezvous.token_a, 1, 2, "9.9"}) + "news of later versions";
  hello[4] = static_cast<char>(hello.size() - kHandshakePrefixBytes);
  RawClient later(rendezvous);
  later.Say(hello);
  const std::string answer = later.ReadToEnd();
  ASSERT_GT(answer.size(), kHandshakePrefixBytes);
  absl::StatusOr<Reply> reply = DecodeReply(std::string_view(answer).substr(kHandshakePrefixBytes));
  ASSERT_TRUE(reply.ok());
  EXPECT_FALSE(reply->welcome);
  EXPECT_TRUE(TokensEqual(reply->token, rendezvous.token_b));
  EXPECT_THAT(reply->reason, HasSubstr("version 7"));
}

// The store still has the address of a run that is over.
TEST(ConnectorTest, StaleAddressThenFreshOne) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  {
    RankZero dead(*store->Clone(), Options(0, 2));
    AwaitRendezvous(*store);
  }
  Connector one(*store->Clone(), Options(1, 2));
  std::vector<Connector::Joined> joined;
  EXPECT_EQ(StepUntil(one, absl::Now() + absl::Milliseconds(500), joined), State::kConnecting);
  EXPECT_THAT(one.Problem(), AllOf(HasSubstr("127.0.0.1"), HasSubstr("Connection refused")));
  RankZero zero(*store->Clone(), Options(0, 2));
  EXPECT_EQ(StepUntil(one, Patience(), joined), State::kConnected);
}

// The stale address is served by somebody else: one who is silent, one who talks, one who closes.
TEST(ConnectorTest, StaleAddressThatAnotherServes) {
  for (const std::string answer : {"silence", "close", "noise", "wrong token"}) {
    SCOPED_TRACE(answer);
    std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
    TcpAddress address{false, "127.0.0.1", 0};
    absl::StatusOr<TrackedFd> listener = ListenTcp(address, 10);
    ASSERT_TRUE(listener.ok());
    Rendezvous stale{kChannelProtocolVersion, *NewToken(), *NewToken(), "", {address}};
    ASSERT_TRUE(store->Set("channel", EncodeRendezvous(stale)).ok());
    Connector one(*store->Clone(), Options(1, 2));
    std::vector<Connector::Joined> joined;
    TrackedFd taken;
    const absl::Time end = absl::Now() + absl::Milliseconds(400);
    while (absl::Now() < end) {
      EXPECT_EQ(StepUntil(one, absl::Now() + absl::Milliseconds(5), joined), State::kConnecting);
      TrackedFd fd = Accept(listener->get());
      if (!fd.valid()) continue;
      std::string bytes;
      if (answer == "noise") bytes = "HTTP/1.1 400 Bad Request\r\n\r\n";
      if (answer == "wrong token") bytes = EncodeReply({true, *NewToken(), ""});
      if (!bytes.empty()) {
        EXPECT_GT(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
      }
      if (answer == "silence") taken = std::move(fd);
    }
    RankZero zero(*store->Clone(), Options(0, 2));
    EXPECT_EQ(StepUntil(one, Patience(), joined), State::kConnected) << one.Problem();
  }
}

TEST(ConnectorTest, GarbageInTheStoreThenAnAddress) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  ASSERT_TRUE(store->Set("channel", "leafpack-channel 1\ntoken_a 00").ok());
  Connector one(*store->Clone(), Options(1, 2));
  std::vector<Connector::Joined> joined;
  EXPECT_EQ(StepUntil(one, absl::Now() + absl::Milliseconds(200), joined), State::kConnecting);
  EXPECT_THAT(one.Problem(), HasSubstr("no address of a rank 0"));
  RankZero zero(*store->Clone(), Options(0, 2));
  EXPECT_EQ(StepUntil(one, Patience(), joined), State::kConnected);
}

TEST(ConnectorTest, UnknownInterface) {
  ConnectorOptions options = Options(0, 2);
  options.interface_name = "no-such-if0";
  Connector zero(NewInMemoryStore(), options);
  EXPECT_EQ(zero.Step(), State::kFailed);
  EXPECT_EQ(zero.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(zero.status().message()), AllOf(HasSubstr("no-such-if0"), HasSubstr("lo")));
}

TEST(ConnectorTest, NoWayIn) {
  ConnectorOptions options = Options(0, 2);
  options.use_unix = options.use_tcp = false;
  Connector zero(NewInMemoryStore(), options);
  EXPECT_EQ(zero.Step(), State::kFailed);
  EXPECT_EQ(zero.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(zero.status().message()), HasSubstr("cannot listen"));
}

TEST(ConnectorTest, NamedInterface) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  ConnectorOptions options = Options(0, 2);
  options.interface_name = "lo";
  RankZero zero(*store->Clone(), options);
  const Rendezvous rendezvous = AwaitRendezvous(*store);
  ASSERT_EQ(rendezvous.tcp.size(), 1u);
  EXPECT_THAT(rendezvous.tcp[0].host, testing::AnyOf("127.0.0.1", "::1"));
}

// A store whose calls fail, or block until the test is over.
class FaultyStore : public KeyValueStore {
 public:
  explicit FaultyStore(absl::Notification* until) : until_(until) {}
  absl::StatusOr<bool> Check(std::string_view) override { return Fault(); }
  absl::StatusOr<std::string> Get(std::string_view) override { return Fault(); }
  absl::Status Set(std::string_view, std::string_view) override { return Fault(); }
  absl::StatusOr<std::unique_ptr<KeyValueStore>> Clone() override { return Fault(); }

 private:
  absl::Status Fault() const {
    if (until_ != nullptr) until_->WaitForNotification();
    return absl::UnavailableError("the server is gone");
  }
  absl::Notification* const until_;
};

TEST(ConnectorTest, FailingStoreIsGivenUp) {
  for (int rank : {0, 1}) {
    ConnectorOptions options = Options(rank, 2);
    options.store_patience = absl::Milliseconds(300);
    Connector connector(std::make_unique<FaultyStore>(nullptr), options);
    std::vector<Connector::Joined> joined;
    EXPECT_EQ(StepUntil(connector, absl::Now() + absl::Milliseconds(50), joined), State::kConnecting);
    EXPECT_THAT(connector.Problem(), HasSubstr("the server is gone"));
    EXPECT_TRUE(connector.StoreFails());
    EXPECT_EQ(StepUntil(connector, Patience(), joined), State::kFailed);
    EXPECT_EQ(connector.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(connector.status().message()), HasSubstr("the server is gone"));
  }
}

// A store call that hangs holds up neither a step nor the destructor.
TEST(ConnectorTest, HangingStore) {
  static absl::Notification over;  // outlives the threads that are left behind
  for (int rank : {0, 1}) {
    Connector connector(std::make_unique<FaultyStore>(&over), Options(rank, 2));
    std::vector<Connector::Joined> joined;
    EXPECT_EQ(StepUntil(connector, absl::Now() + absl::Milliseconds(100), joined), State::kConnecting);
  }
  over.Notify();
}

TEST(ConnectorTest, DestroyedInEveryState) {
  std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  { Connector never_stepped(*store->Clone(), Options(0, 2)); }
  for (int steps = 1; steps < 30; ++steps) {
    Connector zero(*store->Clone(), Options(0, 2));
    Connector one(*store->Clone(), Options(1, 2));
    for (int i = 0; i < steps; ++i) {
      zero.Step();
      one.Step();
      absl::SleepFor(absl::Microseconds(200));
    }
  }
}

}  // namespace
}  // namespace leafpack
