#include "distributed/mailbox/mailbox.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/log/scoped_mock_log.h"
#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "distributed/core/channel/handshake.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/channel/sockets.h"
#include "distributed/core/error.h"
#include "distributed/core/lost_ranks.h"
#include "distributed/mailbox/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/faults.h"
#include "testing/threads.h"

namespace leafpack::mailbox {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr absl::Duration kLong = absl::Seconds(30);

// The mailboxes of some ranks; global ranks are 10 more than group ranks.
class Mailboxes {
 public:
  explicit Mailboxes(int ranks) : store_(NewInMemoryStore()) {
    for (int r = 0; r < ranks; ++r) {
      MailboxOptions options;
      options.rank = r;
      for (int i = 0; i < ranks; ++i) options.global_ranks.emplace_back(10 + i);
      absl::StatusOr<std::shared_ptr<Mailbox>> box =
          Mailbox::Open(*store_->Clone(), std::move(options));
      EXPECT_THAT(box, IsOk());
      boxes_.push_back(*std::move(box));
    }
  }
  ~Mailboxes() {
    for (const std::shared_ptr<Mailbox>& box : boxes_) box->Close(absl::Now() + absl::Seconds(5));
  }
  Mailbox& operator[](int rank) { return *boxes_[static_cast<size_t>(rank)]; }
  KeyValueStore& store() { return *store_; }
  // As if the process had gone.
  void Drop(int rank) { boxes_[static_cast<size_t>(rank)]->Close(absl::Now()); }

 private:
  std::unique_ptr<KeyValueStore> store_;
  std::vector<std::shared_ptr<Mailbox>> boxes_;
};

std::string Pattern(size_t size, int seed) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 251 + static_cast<size_t>(seed));
  return bytes;
}

TransferSpec SendSpec(std::string& bytes, int to, int64_t tag, absl::Duration timeout = kLong) {
  TransferSpec spec;
  spec.is_send = true;
  spec.name = "send";
  spec.peer = to;
  spec.offer.kind = PayloadKind::kBytes;
  spec.offer.tag = tag;
  spec.offer.bytes = static_cast<int64_t>(bytes.size());
  spec.offer.digest = bytes.size();
  spec.timeout = timeout;
  spec.has_memory = true;
  spec.segments = {{bytes.data(), spec.offer.bytes}};
  return spec;
}

// Receives as many bytes as `bytes` has.
TransferSpec RecvSpec(std::string& bytes, std::optional<int> from, int64_t tag,
                      absl::Duration timeout = kLong) {
  TransferSpec spec = SendSpec(bytes, 0, tag, timeout);
  spec.is_send = false;
  spec.name = "recv";
  spec.peer = from;
  spec.judge = [](int, const Offer& offer, std::string_view) -> absl::StatusOr<std::vector<Segment>> {
    return WithErrorDetails(
        absl::FailedPreconditionError(absl::StrCat("the sender has ", offer.bytes, " bytes")),
        {.kind = ErrorKind::kLayoutMismatch, .path = "w"});
  };
  return spec;
}

TransferPtr Post(Mailbox& box, TransferSpec spec, bool async = true) {
  spec.async = async;
  std::vector<TransferSpec> specs;
  specs.push_back(std::move(spec));
  absl::StatusOr<std::vector<TransferPtr>> posted = box.Post(std::move(specs));
  EXPECT_THAT(posted, IsOk());
  return posted.ok() ? (*posted)[0] : nullptr;
}

absl::Status Wait(Mailbox& box, const TransferPtr& transfer) {
  const auto result = box.WaitUntil(*transfer, absl::Now() + absl::Seconds(60), nullptr);
  return result.has_value() ? *result : absl::InternalError("it hangs");
}

absl::Status Finish(Mailbox& box, TransferSpec spec) {
  return Wait(box, Post(box, std::move(spec), /*async=*/false));
}

TEST(MailboxTest, BytesOfEverySize) {
  Mailboxes boxes(2);
  const std::vector<size_t> sizes = {0, 1, 100, 65536, 65537, 1 << 20, (3 << 20) + 17};
  RunRanksAsThreads(2, [&](int rank) {
    for (const size_t size : sizes) {
      std::string bytes = rank == 0 ? Pattern(size, 1) : std::string(size, 'x');
      EXPECT_THAT(Finish(boxes[rank], rank == 0 ? SendSpec(bytes, 1, 0) : RecvSpec(bytes, 0, 0)), IsOk());
      EXPECT_TRUE(bytes == Pattern(size, 1)) << size;
    }
  });
}

TEST(MailboxTest, ManyPiecesAndBothDirectionsAtOnce) {
  Mailboxes boxes(3);
  RunRanksAsThreads(3, [&](int rank) {
    std::vector<std::string> out, in;
    std::vector<TransferSpec> specs;
    const size_t size = 5 << 20;
    for (int r = 0; r < 3; ++r) {
      out.push_back(Pattern(size, rank * 3 + r));
      in.push_back(std::string(size, ' '));
    }
    for (int r = 0; r < 3; ++r) {
      if (r == rank) continue;
      specs.push_back(SendSpec(out[static_cast<size_t>(r)], r, 7));
      specs.push_back(RecvSpec(in[static_cast<size_t>(r)], r, 7));
      for (TransferSpec* spec : {&specs[specs.size() - 2], &specs[specs.size() - 1]}) {
        // Pieces of 1 to some 2000 bytes.
        char* data = spec->segments[0].data;
        spec->segments.clear();
        for (size_t at = 0, n = 1; at < size; at += n, n = n * 7 % 2003 + 1) {
          spec->segments.push_back({data + at, static_cast<int64_t>(std::min(n, size - at))});
        }
        spec->async = true;
      }
    }
    absl::StatusOr<std::vector<TransferPtr>> posted = boxes[rank].Post(std::move(specs));
    ASSERT_THAT(posted, IsOk());
    for (const TransferPtr& transfer : *posted) EXPECT_THAT(Wait(boxes[rank], transfer), IsOk());
    for (int r = 0; r < 3; ++r) {
      if (r == rank) continue;
      EXPECT_TRUE(in[static_cast<size_t>(r)] == Pattern(size, r * 3 + rank)) << r;
    }
  });
}

// More than a receiver lets wait: the rest is offered as it receives.
TEST(MailboxTest, MoreSendsThanMayWait) {
  Mailboxes boxes(2);
  constexpr int kSends = static_cast<int>(kMaxWaitingOffers) + 3000;
  std::vector<std::string> out, in;
  for (int i = 0; i < kSends; ++i) {
    out.push_back(absl::StrCat(1000000 + i));
    in.push_back(std::string(7, ' '));
  }
  std::vector<TransferSpec> sends, receives;
  for (int i = 0; i < kSends; ++i) {
    sends.push_back(SendSpec(out[static_cast<size_t>(i)], 1, 3, absl::Seconds(120)));
    sends.back().async = true;
    receives.push_back(RecvSpec(in[static_cast<size_t>(i)], 0, 3, absl::Seconds(120)));
    receives.back().async = true;
  }
  // One that is received first: it shows that the connection stands while all others wait.
  std::string first = "first", got = "     ";
  const TransferPtr before = Post(boxes[1], RecvSpec(got, 0, 4, absl::Seconds(120)));
  absl::StatusOr<std::vector<TransferPtr>> sent = boxes[0].Post(std::move(sends));
  ASSERT_THAT(sent, IsOk());
  std::string late = "late ", got_late = "     ";
  const TransferPtr behind = Post(boxes[0], SendSpec(late, 1, 5, absl::Seconds(120)));
  EXPECT_THAT(Finish(boxes[1], RecvSpec(got_late, 0, 5, absl::Milliseconds(300))),
              StatusIs(Code::kDeadlineExceeded));
  absl::StatusOr<std::vector<TransferPtr>> received = boxes[1].Post(std::move(receives));
  ASSERT_THAT(received, IsOk());
  for (const TransferPtr& transfer : *received) ASSERT_THAT(Wait(boxes[1], transfer), IsOk());
  for (const TransferPtr& transfer : *sent) ASSERT_THAT(Wait(boxes[0], transfer), IsOk());
  EXPECT_TRUE(in == out);
  EXPECT_THAT(Finish(boxes[1], RecvSpec(got_late, 0, 5)), IsOk());
  EXPECT_THAT(Wait(boxes[0], behind), IsOk());
  const TransferPtr last = Post(boxes[0], SendSpec(first, 1, 4));
  EXPECT_THAT(Wait(boxes[1], before), IsOk());
  EXPECT_THAT(Wait(boxes[0], last), IsOk());
}

TEST(MailboxTest, TagsInAnyOrderAndTheOrderWithinATag) {
  Mailboxes boxes(2);
  RunRanksAsThreads(2, [&](int rank) {
    const size_t size = 200000;
    std::vector<std::string> bytes;
    for (int i = 0; i < 6; ++i) bytes.push_back(rank == 0 ? Pattern(size, i) : std::string(size, ' '));
    std::vector<TransferPtr> posted;
    for (size_t i = 0; i < 6; ++i) {
      // Sent: tags 0 1 2 0 1 2; received: 2 1 0 2 1 0.
      posted.push_back(Post(boxes[rank], rank == 0
                                             ? SendSpec(bytes[i], 1, static_cast<int64_t>(i % 3))
                                             : RecvSpec(bytes[i], 0, static_cast<int64_t>(2 - i % 3))));
    }
    for (const TransferPtr& transfer : posted) EXPECT_THAT(Wait(boxes[rank], transfer), IsOk());
    if (rank == 0) return;
    for (size_t i = 0; i < 6; ++i) {
      const int sent = static_cast<int>(i < 3 ? 2 - i : 5 - (i - 3));
      EXPECT_TRUE(bytes[i] == Pattern(size, sent)) << i;
    }
  });
}

TEST(MailboxTest, FromAnyRank) {
  Mailboxes boxes(4);
  RunRanksAsThreads(4, [&](int rank) {
    for (int round = 0; round < 3; ++round) {
      if (rank != 0) {
        std::string bytes = Pattern(1000, rank);
        EXPECT_THAT(Finish(boxes[rank], SendSpec(bytes, 0, 5)), IsOk());
        continue;
      }
      for (int i = 0; i < 3; ++i) {
        std::string bytes(1000, ' ');
        const TransferPtr receive = Post(boxes[0], RecvSpec(bytes, std::nullopt, 5), false);
        ASSERT_THAT(Wait(boxes[0], receive), IsOk());
        EXPECT_TRUE(bytes == Pattern(1000, boxes[0].source(*receive)));
      }
    }
  });
}

TEST(MailboxTest, AMismatchIsToldToBothAndSpoilsNothing) {
  Mailboxes boxes(2);
  RunRanksAsThreads(2, [&](int rank) {
    for (const size_t size : {size_t{10}, size_t{1} << 20}) {
      std::string bytes(rank == 0 ? size : size + 1, 'a');
      const absl::Status status =
          Finish(boxes[rank], rank == 0 ? SendSpec(bytes, 1, 0) : RecvSpec(bytes, 0, 0));
      EXPECT_THAT(status, StatusIs(Code::kFailedPrecondition,
                                   HasSubstr(absl::StrCat("the sender has ", size, " bytes"))));
      const ErrorDetails details = GetErrorDetails(status);
      EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch);
      EXPECT_EQ(details.path, "w");
      EXPECT_THAT(details.ranks, ElementsAre(GlobalRank(11 - rank)));
      EXPECT_TRUE(details.tree_unchanged);
      std::string good = rank == 0 ? Pattern(300, 3) : std::string(300, ' ');
      EXPECT_THAT(Finish(boxes[rank], rank == 0 ? SendSpec(good, 1, 0) : RecvSpec(good, 0, 0)), IsOk());
      EXPECT_TRUE(good == Pattern(300, 3));
    }
  });
}

TEST(MailboxTest, NobodyReceives) {
  Mailboxes boxes(2);
  std::string bytes(10, 'a');
  // Its mailbox is there, but nobody looks at it.
  EXPECT_THAT(Finish(boxes[0], SendSpec(bytes, 1, 4, absl::Milliseconds(200))),
              StatusIs(Code::kDeadlineExceeded,
                       HasSubstr("rank 11 took the connection and does not answer")));
  // Somebody does, but receives nothing with this tag.
  std::string other(5, 'b');
  const TransferPtr receive = Post(boxes[1], RecvSpec(other, 0, 9));
  const absl::Status late = Finish(boxes[0], SendSpec(bytes, 1, 4, absl::Seconds(1)));
  EXPECT_THAT(late, StatusIs(Code::kDeadlineExceeded,
                             HasSubstr("rank 11 has posted no receive for tag 4 within 1s")));
  EXPECT_THAT(GetErrorDetails(late).ranks, ElementsAre(GlobalRank(11)));
  EXPECT_EQ(GetErrorDetails(late).kind, ErrorKind::kDeadline);
  // Who comes to receive what was withdrawn is told; what comes after it is not spoiled.
  std::string in(10, ' ');
  EXPECT_THAT(Finish(boxes[1], RecvSpec(in, 0, 4)),
              StatusIs(Code::kCancelled, HasSubstr("rank 10 gave up this send: its deadline passed")));
  const TransferPtr again = Post(boxes[0], SendSpec(bytes, 1, 4));
  EXPECT_THAT(Finish(boxes[1], RecvSpec(in, 0, 4)), IsOk());
  EXPECT_EQ(in, bytes);
  EXPECT_THAT(Wait(boxes[0], again), IsOk());
  boxes[1].Cancel(receive);
  EXPECT_THAT(Wait(boxes[1], receive), StatusIs(Code::kCancelled, HasSubstr("given up")));
}

TEST(MailboxTest, NobodySends) {
  Mailboxes boxes(3);
  std::string in(10, ' ');
  EXPECT_THAT(Finish(boxes[0], RecvSpec(in, 1, 4, absl::Milliseconds(100))),
              StatusIs(Code::kDeadlineExceeded,
                       HasSubstr("recv from rank 11 on rank 10: rank 11 has sent nothing with tag 4; "
                                 "it has not connected within 100ms")));
  EXPECT_THAT(Finish(boxes[0], RecvSpec(in, std::nullopt, 4, absl::Milliseconds(100))),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("recv from any rank on rank 10")));
  // The receive that was given up is not there any more when the bytes come.
  std::string bytes = Pattern(10, 1);
  const TransferPtr send = Post(boxes[1], SendSpec(bytes, 0, 4));
  EXPECT_THAT(Finish(boxes[0], RecvSpec(in, 1, 4)), IsOk());
  EXPECT_EQ(in, bytes);
  EXPECT_THAT(Wait(boxes[1], send), IsOk());
  const TransferPtr wrong = Post(boxes[1], SendSpec(bytes, 0, 6));
  const absl::Status status = Finish(boxes[0], RecvSpec(in, 1, 4, absl::Seconds(1)));
  EXPECT_THAT(status, StatusIs(Code::kDeadlineExceeded, HasSubstr("offered are tags 6")));
  boxes[1].Cancel(wrong);
}

TEST(MailboxTest, AMailboxThatIsNotThere) {
  const std::unique_ptr<KeyValueStore> store = NewInMemoryStore();
  MailboxOptions options;
  options.global_ranks = {GlobalRank(0), GlobalRank(1)};
  absl::StatusOr<std::shared_ptr<Mailbox>> box = Mailbox::Open(*store->Clone(), options);
  ASSERT_THAT(box, IsOk());
  std::string bytes(10, 'a');
  EXPECT_THAT(Finish(**box, SendSpec(bytes, 1, 0, absl::Milliseconds(100))),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 1 has not opened its mailbox")));
  // An address of an earlier run leads nowhere; the new one is found.
  Rendezvous stale;
  stale.protocol_version = kMailboxProtocolVersion;
  stale.unix_name = "leafpack-p2p-no-such-name";
  ASSERT_THAT(store->Set("rank/1", EncodeRendezvous(stale)), IsOk());
  EXPECT_THAT(Finish(**box, SendSpec(bytes, 1, 0, absl::Milliseconds(300))),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 1 cannot be reached")));
  const TransferPtr send = Post(**box, SendSpec(bytes, 1, 0));
  options.rank = 1;
  absl::StatusOr<std::shared_ptr<Mailbox>> other = Mailbox::Open(*store->Clone(), options);
  ASSERT_THAT(other, IsOk());
  std::string in(10, ' ');
  EXPECT_THAT(Finish(**other, RecvSpec(in, 0, 0)), IsOk());
  EXPECT_THAT(Wait(**box, send), IsOk());
  (*box)->Close(absl::Now() + absl::Seconds(1));
  (*other)->Close(absl::Now() + absl::Seconds(1));
}

TEST(MailboxTest, AnInterruptIsToldToTheOtherSide) {
  Mailboxes boxes(2);
  std::string bytes(1 << 20, 'a'), in(1 << 20, ' ');
  // The send is offered and waits; then it is interrupted.
  const TransferPtr send = Post(boxes[0], SendSpec(bytes, 1, 1), false);
  std::string other(1, ' ');
  const TransferPtr serve = Post(boxes[1], RecvSpec(other, 0, 99));
  const auto status = boxes[0].WaitUntil(*send, absl::InfiniteFuture(), [] { return true; });
  ASSERT_TRUE(status.has_value());
  EXPECT_THAT(*status, StatusIs(Code::kCancelled, HasSubstr("the wait was interrupted")));
  EXPECT_EQ(GetErrorDetails(*status).kind, ErrorKind::kInterrupted);
  const TransferPtr next = Post(boxes[0], SendSpec(bytes, 1, 2));
  EXPECT_THAT(Finish(boxes[1], RecvSpec(in, 0, 2)), IsOk());
  EXPECT_THAT(Wait(boxes[0], next), IsOk());
  boxes[1].Cancel(serve);
}

// A receiver gives up in the middle of the data; what was on its way does no harm to the next.
TEST(MailboxTest, CancelledInTheMiddleOfTheData) {
  Mailboxes boxes(2);
  std::string hello(1, 'h'), heard(1, ' ');  // connects them
  const TransferPtr first = Post(boxes[0], SendSpec(hello, 1, 1));
  EXPECT_THAT(Finish(boxes[1], RecvSpec(heard, 0, 1)), IsOk());
  EXPECT_THAT(Wait(boxes[0], first), IsOk());
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::string bytes = Pattern(8 << 20, round), in(8 << 20, ' ');
    const TransferPtr send = Post(boxes[0], SendSpec(bytes, 1, 1));
    const TransferPtr receive = Post(boxes[1], RecvSpec(in, 0, 1));
    absl::SleepFor(absl::Microseconds(random() % 6000));
    const bool by_sender = round % 2 == 0;
    boxes[by_sender ? 0 : 1].Cancel(by_sender ? send : receive);
    std::fill((by_sender ? bytes : in).begin(), (by_sender ? bytes : in).end(), 'z');
    // A receive that had not met its send when it was given up leaves it waiting.
    if (!boxes[0].WaitUntil(*send, absl::Now() + absl::Seconds(2), nullptr).has_value()) {
      boxes[0].Cancel(send);
    }
    const absl::Status sent = Wait(boxes[0], send);
    const absl::Status received = Wait(boxes[1], receive);
    // Either both, or neither; but for a DONE that crosses the cancelling.
    if (by_sender && sent.ok()) {
      EXPECT_THAT(received, IsOk());
    } else if (!by_sender && !sent.ok()) {
      EXPECT_THAT(received, StatusIs(Code::kCancelled));
    }
    if (!received.ok()) {
      EXPECT_THAT(received, StatusIs(Code::kCancelled));
    }
    if (!by_sender && !received.ok()) {
      EXPECT_EQ(in.find_first_not_of('z'), std::string::npos) << "written after its end";
    }
    std::string small = Pattern(1000, round), got(1000, ' ');
    const TransferPtr next = Post(boxes[0], SendSpec(small, 1, 1));
    absl::Status last = Finish(boxes[1], RecvSpec(got, 0, 1));
    // The withdrawn send may be found first, by a receive that came too late for it.
    if (!last.ok()) last = Finish(boxes[1], RecvSpec(got, 0, 1));
    EXPECT_THAT(last, IsOk());
    EXPECT_TRUE(got == small);
    EXPECT_THAT(Wait(boxes[0], next), IsOk());
  }
}

TEST(MailboxTest, ARankThatLeavesIsNamed) {
  Mailboxes boxes(3);
  std::string bytes(10, 'a'), in(10, ' ');
  const TransferPtr first = Post(boxes[1], SendSpec(bytes, 0, 1));
  EXPECT_THAT(Finish(boxes[0], RecvSpec(in, 1, 1)), IsOk());
  EXPECT_THAT(Wait(boxes[1], first), IsOk());
  const TransferPtr receive = Post(boxes[0], RecvSpec(in, 1, 2));
  const TransferPtr any = Post(boxes[0], RecvSpec(in, std::nullopt, 3));
  boxes.Drop(1);
  const absl::Status gone = Wait(boxes[0], receive);
  EXPECT_THAT(gone, StatusIs(Code::kUnavailable, HasSubstr("rank 11 has left the group")));
  EXPECT_EQ(GetErrorDetails(gone).kind, ErrorKind::kPeerLost);
  EXPECT_THAT(Finish(boxes[0], SendSpec(bytes, 1, 0)), StatusIs(Code::kUnavailable));
  EXPECT_THAT(Finish(boxes[0], RecvSpec(in, 1, 0)), StatusIs(Code::kUnavailable));
  // Others are not concerned.
  const TransferPtr other = Post(boxes[2], SendSpec(bytes, 0, 3));
  EXPECT_THAT(Wait(boxes[0], any), IsOk());
  EXPECT_THAT(Wait(boxes[2], other), IsOk());
  const TransferPtr last = Post(boxes[0], RecvSpec(in, std::nullopt, 3));
  boxes.Drop(2);
  EXPECT_THAT(Wait(boxes[0], last), StatusIs(Code::kUnavailable));
}

TEST(MailboxTest, ClosingEndsWhatIsUnderWay) {
  Mailboxes boxes(2);
  std::string bytes(100, 'a'), in(100, ' ');
  const TransferPtr send = Post(boxes[0], SendSpec(bytes, 1, 1));
  const TransferPtr receive = Post(boxes[0], RecvSpec(in, 1, 1));
  const absl::Time start = absl::Now();
  boxes[0].Close(absl::Now() + absl::Milliseconds(200));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_THAT(Wait(boxes[0], send), StatusIs(Code::kCancelled, HasSubstr("shut down")));
  EXPECT_THAT(Wait(boxes[0], receive), StatusIs(Code::kCancelled, HasSubstr("shut down")));
  std::vector<TransferSpec> specs;
  specs.push_back(SendSpec(bytes, 1, 0));
  EXPECT_THAT(boxes[0].Post(std::move(specs)), StatusIs(Code::kFailedPrecondition));
}

TEST(MailboxTest, NothingIsLeftBehind) {
  absl::SleepFor(absl::Milliseconds(50));
  const int descriptors = CountDescriptors();
  const int threads = CountThreads();
  {
    Mailboxes boxes(3);
    std::string bytes(1 << 20, 'a'), in(1 << 20, ' ');
    const TransferPtr send = Post(boxes[0], SendSpec(bytes, 1, 1));
    EXPECT_THAT(Finish(boxes[1], RecvSpec(in, 0, 1)), IsOk());
    EXPECT_THAT(Wait(boxes[0], send), IsOk());
    const TransferPtr never = Post(boxes[2], RecvSpec(in, std::nullopt, 1));
    EXPECT_GT(CountDescriptors(), descriptors);
  }
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(CountThreads(), threads);
}

// Whoever waits in the listener while no descriptor is left must not keep the mailbox busy.
TEST(MailboxTest, WithoutDescriptorsItWaitsInPeace) {
  Mailboxes boxes(2);
  std::string in(8, ' ');
  const TransferPtr waiting = Post(boxes[0], RecvSpec(in, 1, 1, absl::Milliseconds(1500)), /*async=*/false);
  std::string value;
  while (value.empty()) {
    if (*boxes.store().Check("rank/0")) value = *boxes.store().Get("rank/0");
  }
  absl::SleepFor(absl::Milliseconds(200));  // the mailboxes have all that they open
  absl::ScopedMockLog log(absl::MockLogDefault::kIgnoreUnexpected);
  EXPECT_CALL(log, Log(absl::LogSeverity::kWarning, ::testing::_,
                       HasSubstr("rank 10 cannot take a connection")))
      .Times(1);
  log.StartCapturingLogs();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto cpu = [] {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return absl::DurationFromTimespec(now);
  };
  {
    // A connection needs no descriptor of the other side until it is taken.
    absl::StatusOr<Connecting> connecting = ConnectUnix(DecodeRendezvous(value)->unix_name);
    ASSERT_THAT(connecting, IsOk());
    rlimit none = before;
    none.rlim_cur = 3;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const absl::Duration start = cpu();
    EXPECT_THAT(Wait(boxes[0], waiting), StatusIs(Code::kDeadlineExceeded));
    EXPECT_LT(cpu() - start, absl::Milliseconds(300));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  log.StopCapturingLogs();
  // With descriptors it takes connections again.
  std::string bytes(8, 'a');
  const TransferPtr send = Post(boxes[1], SendSpec(bytes, 0, 2));
  EXPECT_THAT(Finish(boxes[0], RecvSpec(in, 1, 2)), IsOk());
  EXPECT_THAT(Wait(boxes[1], send), IsOk());
  EXPECT_EQ(in, bytes);
}

// A rank that the control channel lost before it made a connection is given up soon.
TEST(MailboxTest, ALossThatTheChannelTells) {
  auto lost = std::make_shared<LostRanks>();
  MailboxOptions options;
  for (int i = 0; i < 3; ++i) options.global_ranks.emplace_back(10 + i);
  options.lost = lost;
  absl::StatusOr<std::shared_ptr<Mailbox>> box = Mailbox::Open(NewInMemoryStore(), options);
  ASSERT_THAT(box, IsOk());
  std::string bytes(8, 'a'), in(8, ' ');
  const TransferPtr send = Post(**box, SendSpec(bytes, 1, 1));
  const TransferPtr receive = Post(**box, RecvSpec(in, 1, 1));
  const TransferPtr other = Post(**box, RecvSpec(in, 2, 1));
  const TransferPtr any = Post(**box, RecvSpec(in, std::nullopt, 7));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE((*box)->IsDone(*send));
  lost->Add(1, "it hung up");
  for (const TransferPtr& transfer : {send, receive}) {
    const absl::Status status = Wait(**box, transfer);
    EXPECT_THAT(status, StatusIs(Code::kUnavailable, HasSubstr("rank 11 is gone: it hung up")));
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kPeerLost);
    EXPECT_THAT(GetErrorDetails(status).ranks, ElementsAre(GlobalRank(11)));
  }
  EXPECT_THAT(Finish(**box, SendSpec(bytes, 1, 1)), StatusIs(Code::kUnavailable));
  EXPECT_FALSE((*box)->IsDone(*other));
  EXPECT_FALSE((*box)->IsDone(*any));
  lost->Add(2, "it left");
  EXPECT_THAT(Wait(**box, other), StatusIs(Code::kUnavailable));
  EXPECT_THAT(Wait(**box, any), StatusIs(Code::kUnavailable));
  (*box)->Close(absl::Now());
}

// ---- Bytes that no mailbox sends.

// A connection to the mailbox of rank 0 that has passed for rank 1.
TrackedFd Impostor(KeyValueStore& store, Mailbox& box, TransferPtr& serving, std::string& in) {
  serving = Post(box, RecvSpec(in, 1, 42));
  std::string value;
  while (value.empty()) {
    if (*store.Check("rank/0")) value = *store.Get("rank/0");
  }
  const Rendezvous address = *DecodeRendezvous(value);
  absl::StatusOr<Connecting> connecting = ConnectUnix(address.unix_name);
  EXPECT_THAT(connecting, IsOk());
  Hello hello;
  hello.protocol_version = kMailboxProtocolVersion;
  hello.token = address.token_a;
  hello.rank = 1;
  hello.size = 2;
  const std::string greeting = EncodeHello(hello);
  EXPECT_EQ(send(connecting->fd.get(), greeting.data(), greeting.size(), 0),
            static_cast<ssize_t>(greeting.size()));
  char reply[25];
  size_t got = 0;
  while (got < sizeof reply) {
    pollfd fd = {connecting->fd.get(), POLLIN, 0};
    if (poll(&fd, 1, 10000) != 1) break;
    const ssize_t n = recv(connecting->fd.get(), reply + got, sizeof reply - got, 0);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  EXPECT_EQ(got, sizeof reply);
  return std::move(connecting->fd);
}

void Say(const TrackedFd& fd, std::string_view bytes) {
  (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

TEST(MailboxTest, HostileBytesEndTheConnectionAndNothingElse) {
  std::string data_header = EncodeRecord(RecordType::kData, 1, "x");
  Offer offer;
  offer.kind = PayloadKind::kBytes;
  offer.tag = 42;
  offer.bytes = 8;
  offer.digest = 8;
  Offer negative = offer;
  negative.bytes = -1;
  Offer vast = offer;
  vast.bytes = INT64_MAX;
  const std::string good = EncodeRecord(RecordType::kOffer, 1, EncodeOffer(offer, ""));
  const std::vector<std::string> hostile = {
      std::string(64, '\xff'),
      std::string(64, '\0'),
      data_header,
      EncodeRecord(RecordType::kOffer, 2, EncodeOffer(offer, "")),
      EncodeRecord(RecordType::kOffer, 1, EncodeOffer(negative, "")),
      EncodeRecord(RecordType::kOffer, 1, EncodeOffer(offer, "short"), kFlagEager),
      EncodeRecord(RecordType::kOffer, 1, EncodeOffer(offer, "unasked!")),
      EncodeRecord(RecordType::kOffer, 1, "cut"),
      good + good,
      // More data than was offered.
      good + EncodeRecord(RecordType::kData, 1, std::string(9, 'y')),
      EncodeRecord(RecordType::kDescription, 7, "x", kFlagLast),
      EncodeRecord(RecordType::kWithdraw, 9, std::string(5, '\0')),
      EncodeRecord(RecordType::kAccept, 1),
      EncodeRecord(RecordType::kDone, 1),
      EncodeRecord(RecordType::kBye, 0, "cut"),
      std::string("\xff\xff\xff\x7f\x03\0\0\0\1\0\0\0\0\0\0\0", 16),
  };
  for (size_t i = 0; i < hostile.size(); ++i) {
    SCOPED_TRACE(i);
    Mailboxes boxes(2);
    TransferPtr serving;
    std::string in(8, ' ');
    const TrackedFd fd = Impostor(boxes.store(), boxes[0], serving, in);
    Say(fd, hostile[i]);
    const absl::Status status = Wait(boxes[0], serving);
    EXPECT_THAT(status, StatusIs(Code::kUnavailable, HasSubstr("no record of this protocol")));
    EXPECT_THAT(GetErrorDetails(status).ranks, ElementsAre(GlobalRank(11)));
  }
  // An offer of more than there can be is refused without memory for it.
  Mailboxes boxes(2);
  TransferPtr serving;
  std::string in(8, ' ');
  const TrackedFd fd = Impostor(boxes.store(), boxes[0], serving, in);
  Say(fd, EncodeRecord(RecordType::kOffer, 1, EncodeOffer(vast, "")));
  EXPECT_THAT(Wait(boxes[0], serving), StatusIs(Code::kFailedPrecondition));
}

TEST(MailboxTest, RandomBytesAndStrangers) {
  std::mt19937 random(20);
  for (int round = 0; round < 40; ++round) {
    Mailboxes boxes(2);
    TransferPtr serving;
    std::string in(8, ' ');
    const TrackedFd fd = Impostor(boxes.store(), boxes[0], serving, in);
    Offer offer;
    offer.tag = static_cast<int64_t>(random() % 3);
    std::string bytes = EncodeRecord(RecordType::kOffer, 1, EncodeOffer(offer, ""), kFlagEager);
    for (int n = 0; n < 3; ++n) bytes[random() % bytes.size()] = static_cast<char>(random());
    Say(fd, bytes + std::string(100, static_cast<char>(random())));
    shutdown(fd.get(), SHUT_WR);
    EXPECT_THAT(Wait(boxes[0], serving), StatusIs(Code::kUnavailable));
  }
  // Strangers are closed in silence, and hinder nobody.
  Mailboxes boxes(2);
  std::string bytes(10, 'a'), in(10, ' ');
  const TransferPtr receive = Post(boxes[1], RecvSpec(in, 0, 1));
  std::string value;
  while (value.empty()) {
    if (*boxes.store().Check("rank/1")) value = *boxes.store().Get("rank/1");
  }
  const Rendezvous address = *DecodeRendezvous(value);
  std::vector<TrackedFd> strangers;
  for (int i = 0; i < 100; ++i) {
    absl::StatusOr<Connecting> connecting = ConnectUnix(address.unix_name);
    if (!connecting.ok()) continue;
    if (i % 2 == 0) Say(connecting->fd, "GET / HTTP/1.1\r\n\r\n");
    strangers.push_back(std::move(connecting->fd));
  }
  EXPECT_THAT(Finish(boxes[0], SendSpec(bytes, 1, 1)), IsOk());
  EXPECT_THAT(Wait(boxes[1], receive), IsOk());
}

}  // namespace
}  // namespace leafpack::mailbox
