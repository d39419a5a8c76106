#include "distributed/core/channel/link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/channel/channel_testutil.h"
#include "distributed/core/channel/lane.h"
#include "distributed/core/channel/segment.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;

std::string Pattern(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Reads all there is, and once more for a hang-up behind it; `state` gets how it ended.
std::string ReadAll(Link& link, Link::ReadState* state = nullptr, size_t scratch_bytes = 65536) {
  std::string result, scratch(scratch_bytes, '\0');
  Link::ReadState got;
  size_t before;
  do {
    before = result.size();
    got = link.ReadAvailable(absl::MakeSpan(scratch), [&](absl::Span<const char> bytes) {
      result.append(bytes.data(), bytes.size());
      return true;
    });
  } while (got == Link::ReadState::kMore || (got == Link::ReadState::kDrained && result.size() > before));
  if (state != nullptr) *state = got;
  return result;
}

struct Pair {
  Pair() {
    auto [x, y] = SocketPair();
    a.Attach(std::move(x));
    b.Attach(std::move(y));
  }
  Link a, b;
};

TEST(LinkTest, SendsAtOnce) {
  Pair pair;
  ASSERT_TRUE(pair.a.Send("hello").ok());
  const std::string_view parts[] = {" two", "", " parts"};
  ASSERT_TRUE(pair.a.Send(parts).ok());
  EXPECT_EQ(pair.a.queued_bytes(), 0u);
  EXPECT_FALSE(pair.a.wants_write());
  Link::ReadState state;
  EXPECT_EQ(ReadAll(pair.b, &state), "hello two parts");
  EXPECT_EQ(state, Link::ReadState::kDrained);
}

TEST(LinkTest, QueuesBeforeAttach) {
  auto [x, y] = SocketPair();
  Link a, b;
  b.Attach(std::move(y));
  ASSERT_TRUE(a.Send("one ").ok());
  absl::StatusOr<Link::SendId> id = a.Send("two ");
  ASSERT_TRUE(a.Send("three").ok());
  EXPECT_FALSE(a.wants_write());
  EXPECT_EQ(a.queued_bytes(), 13u);
  EXPECT_FALSE(a.HasBegun(*id));
  std::string scratch(10, '\0');
  EXPECT_EQ(a.ReadAvailable(absl::MakeSpan(scratch), [](auto) { return true; }), Link::ReadState::kDrained);
  a.Attach(std::move(x));
  EXPECT_EQ(a.queued_bytes(), 0u);
  EXPECT_TRUE(a.HasBegun(*id));
  EXPECT_EQ(ReadAll(b), "one two three");
}

// Records of all sizes through a small socket buffer, in pieces, arrive whole and in order.
TEST(LinkTest, PartialWritesKeepOrder) {
  for (const size_t scratch : {size_t{1000}, size_t{65536}}) {
    Pair pair;
    const int small = 4096;
    setsockopt(pair.a.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    std::string sent, received;
    std::mt19937 random(7);
    for (unsigned i = 0; i < 300; ++i) {
      const std::string record = Pattern(random() % 5000, i);
      const std::string_view parts[] = {std::string_view(record).substr(0, record.size() / 3),
                                        std::string_view(record).substr(record.size() / 3)};
      ASSERT_TRUE(pair.a.Send(parts).ok());
      sent += record;
      if (i % 7 == 0) received += ReadAll(pair.b, nullptr, scratch);
    }
    EXPECT_TRUE(pair.a.wants_write());
    while (pair.a.wants_write()) {
      ASSERT_TRUE(pair.a.Flush().ok());
      received += ReadAll(pair.b, nullptr, scratch);
    }
    EXPECT_TRUE(received == sent);
  }
}

TEST(LinkTest, HugeRecord) {
  Pair pair;
  const std::string record = Pattern(size_t{32} << 20, 1);
  std::string received;
  ASSERT_TRUE(pair.a.Send(record).ok());
  EXPECT_TRUE(pair.a.wants_write());
  while (received.size() < record.size()) {
    received += ReadAll(pair.b);
    ASSERT_TRUE(pair.a.Flush().ok());
  }
  EXPECT_TRUE(received == record);
  EXPECT_EQ(pair.a.queued_bytes(), 0u);
}

TEST(LinkTest, QueueIsBounded) {
  Link link({.max_queued_bytes = 100});
  ASSERT_TRUE(link.Send(std::string(60, 'a')).ok());
  const absl::StatusOr<Link::SendId> refused = link.Send(std::string(41, 'b'));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("41 bytes"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("60 of at most 100"));
  EXPECT_TRUE(link.Send(std::string(40, 'c')).ok());
}

// A record that has begun goes out whole though it passes the bound.
TEST(LinkTest, BegunRecordPassesBound) {
  auto [x, y] = SocketPair();
  Link a({.max_queued_bytes = 10}), b;
  a.Attach(std::move(x));
  b.Attach(std::move(y));
  const std::string record = Pattern(4 << 20, 3);
  ASSERT_TRUE(a.Send(record).ok());
  EXPECT_FALSE(a.Send("x").ok());
  std::string received;
  while (received.size() < record.size()) {
    received += ReadAll(b);
    ASSERT_TRUE(a.Flush().ok());
  }
  EXPECT_TRUE(received == record);
}

TEST(LinkTest, WhatWaitsBehindAFullSocketHasNotBegun) {
  Pair pair;
  const std::string big = Pattern(1 << 20, 5);
  absl::StatusOr<Link::SendId> gone = pair.a.Send("gone");
  absl::StatusOr<Link::SendId> begun = pair.a.Send(big);
  absl::StatusOr<Link::SendId> waiting = pair.a.Send("waiting");
  ASSERT_TRUE(waiting.ok());
  EXPECT_TRUE(pair.a.HasBegun(*gone));
  EXPECT_TRUE(pair.a.HasBegun(*begun));
  EXPECT_FALSE(pair.a.HasBegun(*waiting));
  std::string received;
  do {
    ASSERT_TRUE(pair.a.Flush().ok());
    received += ReadAll(pair.b);
  } while (pair.a.wants_write());
  received += ReadAll(pair.b);
  EXPECT_TRUE(received == "gone" + big + "waiting");
  EXPECT_TRUE(pair.a.HasBegun(*waiting));
}

TEST(LinkTest, SinkStopsAndLimit) {
  Pair pair;
  ASSERT_TRUE(pair.a.Send(std::string(1000, 'x')).ok());
  std::string scratch(100, '\0');
  int calls = 0;
  EXPECT_EQ(pair.b.ReadAvailable(absl::MakeSpan(scratch), [&](auto) { return ++calls < 3; }),
            Link::ReadState::kMore);
  EXPECT_EQ(calls, 3);
  size_t bytes = 0;
  const auto count = [&](absl::Span<const char> span) {
    bytes += span.size();
    return true;
  };
  EXPECT_EQ(pair.b.ReadAvailable(absl::MakeSpan(scratch), count, 200), Link::ReadState::kMore);
  EXPECT_EQ(bytes, 200u);
  EXPECT_EQ(pair.b.ReadAvailable(absl::MakeSpan(scratch), count), Link::ReadState::kDrained);
  EXPECT_EQ(bytes, 700u);
}

TEST(LinkTest, HangUpComesAfterAllBytesThoughWritingFailed) {
  Pair pair;
  ASSERT_TRUE(pair.a.Send("unread").ok());  // makes the close below a reset
  ASSERT_TRUE(pair.b.Send(std::string(100000, 'z')).ok());
  pair.b.Close();
  const absl::StatusOr<Link::SendId> failed = pair.a.Send("more");
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(pair.a.hung_up());
  EXPECT_FALSE(pair.a.wants_write());
  EXPECT_EQ(pair.a.Flush().code(), absl::StatusCode::kUnavailable);
  Link::ReadState state;
  EXPECT_EQ(ReadAll(pair.a, &state).size(), 100000u);
  EXPECT_EQ(state, Link::ReadState::kHungUp);
  EXPECT_TRUE(pair.a.hung_up());
  EXPECT_FALSE(pair.a.hang_up_reason().empty());
  EXPECT_EQ(pair.a.Send("x").status().code(), absl::StatusCode::kUnavailable);
}

TEST(LinkTest, CloseEndsBothSides) {
  Pair pair;
  ASSERT_TRUE(pair.a.Send("bye").ok());
  pair.a.Close();
  pair.a.Close();
  EXPECT_EQ(pair.a.fd(), -1);
  EXPECT_FALSE(pair.a.Send("x").ok());
  Link::ReadState state;
  EXPECT_EQ(ReadAll(pair.a, &state), "");
  EXPECT_EQ(state, Link::ReadState::kHungUp);
  EXPECT_EQ(ReadAll(pair.b, &state), "bye");
  EXPECT_EQ(state, Link::ReadState::kHungUp);
}

// A process that is killed after it sent: what it sent is read, then the hang-up, also when we wrote to
// it in between.
TEST(LinkTest, LastBytesOfKilledPeer) {
  for (int round = 0; round < 20; ++round) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const pid_t child = fork();
    if (child == 0) {
      const std::string bytes(50000, 'k');
      const ssize_t n = write(fds[1], bytes.data(), bytes.size());
      if (n == static_cast<ssize_t>(bytes.size())) raise(SIGKILL);
      _exit(1);
    }
    close(fds[1]);
    Link link;
    link.Attach(TrackedFd::Open([&] { return fds[0]; }));
    // Writes that succeed, then fail, while the last bytes wait.
    int status = 0;
    if (round % 2 == 0) {
      ASSERT_EQ(waitpid(child, &status, 0), child);
    }
    while (link.Send("are you there?").ok() && link.Flush().ok()) {
    }
    EXPECT_FALSE(link.hung_up());
    Link::ReadState state = Link::ReadState::kDrained;
    std::string received;
    while (state != Link::ReadState::kHungUp) {
      pollfd wait = {link.fd(), POLLIN, 0};
      ASSERT_EQ(poll(&wait, 1, 60000), 1);
      received += ReadAll(link, &state);
    }
    EXPECT_EQ(received.size(), 50000u);
    if (round % 2 == 1) {
      ASSERT_EQ(waitpid(child, &status, 0), child);
    }
    EXPECT_TRUE(WIFSIGNALED(status));
  }
}

// Two links with a lane between them, as between processes of one host.
struct LanePair {
  explicit LanePair(bool peer_has_it = true) {
    auto [x, y] = SocketPair();
    absl::StatusOr<Lane::Made> made = Lane::Make();
    EXPECT_TRUE(made.ok()) << made.status();
    memory = std::move(made->fd);
    a.AttachWithLane(std::move(x), std::move(made->lane));
    std::unique_ptr<Lane> lane;
    if (peer_has_it) lane = *Lane::Open(memory);
    b.AttachWithLane(std::move(y), std::move(lane));
  }
  TrackedFd memory;
  Link a, b;
};

bool IsReadable(const Link& link) {
  pollfd wait = {link.fd(), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

TEST(LinkWithLaneTest, RecordsComeInOrderBothWays) {
  LanePair pair;
  ASSERT_TRUE(pair.a.Send("hello").ok());
  const std::string_view parts[] = {" two", "", " parts"};
  ASSERT_TRUE(pair.a.Send(parts).ok());
  ASSERT_TRUE(pair.b.Send("back").ok());
  Link::ReadState state;
  EXPECT_EQ(ReadAll(pair.b, &state), "hello two parts");
  EXPECT_EQ(state, Link::ReadState::kDrained);
  EXPECT_EQ(ReadAll(pair.a), "back");
}

TEST(LinkWithLaneTest, TheSocketIsQuietWhileTheReaderIsAwake) {
  LanePair pair;
  ASSERT_TRUE(pair.a.Send("first").ok());
  EXPECT_TRUE(IsReadable(pair.b)) << "asleep at first";
  EXPECT_EQ(ReadAll(pair.b), "first");
  pair.b.SetAsleep(true);  // has the next read look at the socket too
  EXPECT_EQ(ReadAll(pair.b), "");
  pair.b.SetAsleep(false);
  ASSERT_TRUE(pair.a.Send("second").ok());
  EXPECT_FALSE(IsReadable(pair.b));
  EXPECT_TRUE(pair.b.SetAsleep(true)) << "nobody will wake for the record that is there";
  EXPECT_EQ(ReadAll(pair.b), "second");
  EXPECT_FALSE(pair.b.SetAsleep(true));
  EXPECT_FALSE(IsReadable(pair.b));
  ASSERT_TRUE(pair.a.Send("third").ok());
  EXPECT_TRUE(IsReadable(pair.b));
  EXPECT_EQ(ReadAll(pair.b), "third");
  EXPECT_EQ(ReadAll(pair.b), "");
  EXPECT_FALSE(IsReadable(pair.b)) << "the sign was taken";
}

// Records that do not fit go by the socket, and nothing overtakes anything.
TEST(LinkWithLaneTest, DetoursKeepOrder) {
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    for (const size_t scratch : {size_t{3}, size_t{1000}, size_t{65536}}) {
      LanePair pair;
      const int small = 4096;
      setsockopt(pair.a.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
      std::mt19937 random(seed);
      std::string sent, received;
      const unsigned records = scratch < 10 ? 60 : 400;
      for (unsigned i = 0; i < records; ++i) {
        const size_t size = random() % 20 == 0 ? random() % 300000 : random() % 9000;
        const std::string record = Pattern(size, i);
        ASSERT_TRUE(pair.a.Send(record).ok());
        sent += record;
        if (random() % 3 == 0) pair.b.SetAsleep(random() % 2 == 0);
        if (random() % 5 == 0) received += ReadAll(pair.b, nullptr, scratch);
        if (random() % 5 == 0) {
          ASSERT_TRUE(pair.a.Flush().ok());
        }
      }
      while (pair.a.wants_write()) {
        ASSERT_TRUE(pair.a.Flush().ok());
        received += ReadAll(pair.b, nullptr, scratch);
      }
      pair.b.SetAsleep(true);
      received += ReadAll(pair.b, nullptr, scratch);
      EXPECT_EQ(received.size(), sent.size());
      ASSERT_TRUE(received == sent) << "seed " << seed << ", " << scratch << " bytes a read";
    }
  }
}

TEST(LinkWithLaneTest, ReadsInPiecesAndStops) {
  LanePair pair;
  std::string sent;
  for (unsigned i = 0; i < 100; ++i) {
    const std::string record = Pattern(1 + i * 70, i);
    ASSERT_TRUE(pair.a.Send(record).ok());
    sent += record;
  }
  std::string received, scratch(512, '\0');
  int calls = 0;
  const auto sink = [&](absl::Span<const char> bytes) {
    received.append(bytes.data(), bytes.size());
    return ++calls % 3 != 0;
  };
  while (received.size() < sent.size()) {
    ASSERT_NE(pair.b.ReadAvailable(absl::MakeSpan(scratch), sink, /*max_bytes=*/5000),
              Link::ReadState::kHungUp);
    ASSERT_TRUE(pair.a.Flush().ok());
    // What is left although the socket may be silent.
    if (received.size() < sent.size()) {
      ASSERT_TRUE(pair.b.SetAsleep(true) || IsReadable(pair.b)) << received.size();
    }
  }
  EXPECT_TRUE(received == sent);
}

TEST(LinkWithLaneTest, APeerWithoutItsEndSpeaksByTheSocket) {
  LanePair pair(/*peer_has_it=*/false);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pair.a.Send("to b").ok());
    EXPECT_EQ(ReadAll(pair.b), "to b");
    ASSERT_TRUE(pair.b.Send("to a").ok());
    EXPECT_EQ(ReadAll(pair.a), "to a");
  }
  EXPECT_FALSE(pair.b.has_lane());
  EXPECT_FALSE(pair.b.SetAsleep(true));
}

TEST(LinkWithLaneTest, WhatWasQueuedBeforeComesFirst) {
  auto [x, y] = SocketPair();
  absl::StatusOr<Lane::Made> made = Lane::Make();
  ASSERT_TRUE(made.ok());
  Link a, b;
  ASSERT_TRUE(a.Send("one ").ok());
  ASSERT_TRUE(a.Send("two ").ok());
  b.AttachWithLane(std::move(y), *Lane::Open(made->fd));
  a.AttachWithLane(std::move(x), std::move(made->lane));
  ASSERT_TRUE(a.Send("three").ok());
  EXPECT_EQ(ReadAll(b), "one two three");
}

TEST(LinkWithLaneTest, NonsenseInTheMemoryIsAHangUp) {
  LanePair pair;
  ASSERT_TRUE(pair.a.Send("12345678").ok());
  absl::StatusOr<Segment> memory = Segment::Map(pair.memory.get(), Lane::MemoryBytes());
  ASSERT_TRUE(memory.ok()) << memory.status();
  memory->data()[Lane::MemoryBytes() - 2 * Lane::kCapacity] = 100;  // the length
  Link::ReadState state;
  EXPECT_EQ(ReadAll(pair.b, &state), "");
  EXPECT_EQ(state, Link::ReadState::kHungUp);
  EXPECT_THAT(pair.b.hang_up_reason(), HasSubstr("makes no sense"));
}

// As LastBytesOfKilledPeer: what stands in the lane outlives its writer.
TEST(LinkWithLaneTest, LastRecordsOfAKilledPeer) {
  for (int round = 0; round < 20; ++round) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    absl::StatusOr<Lane::Made> made = Lane::Make();
    ASSERT_TRUE(made.ok());
    const int memory = dup(made->fd.get());  // its own is closed in the child
    const pid_t child = fork();
    if (child == 0) {
      Link link;
      absl::StatusOr<std::unique_ptr<Lane>> lane = Lane::Open(TrackedFd::Open([&] { return memory; }));
      if (!lane.ok()) _exit(1);
      link.AttachWithLane(TrackedFd::Open([&] { return fds[1]; }), *std::move(lane));
      for (int i = 0; i < 50; ++i) {
        if (!link.Send(std::string(1000, 'k')).ok()) _exit(1);
      }
      raise(SIGKILL);
    }
    close(fds[1]);
    close(memory);
    Link link;
    link.AttachWithLane(TrackedFd::Open([&] { return fds[0]; }), std::move(made->lane));
    int status = 0;
    if (round % 2 == 0) {
      ASSERT_EQ(waitpid(child, &status, 0), child);
      while (link.Send("are you there?").ok()) {
      }
      EXPECT_FALSE(link.hung_up());
    }
    Link::ReadState state = Link::ReadState::kDrained;
    std::string received;
    while (state != Link::ReadState::kHungUp) {
      if (!link.SetAsleep(true)) {
        pollfd wait = {link.fd(), POLLIN, 0};
        ASSERT_EQ(poll(&wait, 1, 60000), 1);
      }
      received += ReadAll(link, &state);
    }
    EXPECT_EQ(received.size(), 50000u);
    if (round % 2 == 1) {
      ASSERT_EQ(waitpid(child, &status, 0), child);
    }
    EXPECT_TRUE(WIFSIGNALED(status));
  }
}

}  // namespace
}  // namespace leafpack
