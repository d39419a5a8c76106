// Exchanges over real connections, and what ends them.
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/testing/exchange_checks.h"
#include "distributed/core/testing/ranks.h"
#include "distributed/messages/testing/tested_backend.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

using testing::CheckExchangeAbort;
using testing::CheckExchanges;
using testing::Finish;
using testing::TestedBackend;

constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr RankThreadsOptions kThreads = {.deadline = kPatience, .after_failure = kPatience};

// Returns when all ranks have their context: one that is closed before the others are through with
// connecting would be their error.
std::shared_ptr<DataContext> OpenOrDie(c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
  DataContextOptions options;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.all_local = true;
  options.timeout = kPatience;
  auto context = TestedBackend()->Open(options, absl::Now() + kPatience);
  EXPECT_TRUE(context.ok()) << context.status();
  store->set(absl::StrCat("opened/", rank), std::vector<uint8_t>{1});
  std::vector<std::string> all;
  for (int r = 0; r < size; ++r) all.push_back(absl::StrCat("opened/", r));
  store->wait(all, absl::ToChronoMilliseconds(kPatience));
  return context.value();
}

LeafView ViewOf(std::vector<uint8_t>& bytes) {
  LeafView view;
  view.data = bytes.data();
  view.dtype = at::ScalarType::Byte;
  view.sizes = {static_cast<int64_t>(bytes.size())};
  view.strides = {1};
  return view;
}

class MessageExchangeRanksTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MessageExchangeRanksTest, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

// First, while this process has no threads.
TEST_P(MessageExchangeRanksTest, AsProcesses) {
  const int size = GetParam();
  const testing::TempDir dir;
  const std::vector<int> codes = testing::OnProcesses(size, [&](int rank) {
    auto context =
        OpenOrDie(c10::make_intrusive<c10d::FileStore>(dir.path() + "/store", size), rank, size);
    for (int round = 0; round < 3; ++round) {
      const std::string wrong = CheckExchanges(*context, rank, size);
      if (wrong.empty()) continue;
      std::fprintf(stderr, "%s\n", wrong.c_str());
      return 1;
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(size), 0));
}

TEST_P(MessageExchangeRanksTest, AsThreads) {
  const int size = GetParam();
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(
      size,
      [&](int rank) {
        auto context = OpenOrDie(store, rank, size);
        EXPECT_EQ(CheckExchanges(*context, rank, size), "");
      },
      kThreads);
}

// More than the sockets hold, both ways at once, everybody with everybody.
TEST_P(MessageExchangeRanksTest, LargeViewsBothWays) {
  const int size = GetParam();
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(
      size,
      [&](int rank) {
        auto context = OpenOrDie(store, rank, size);
        constexpr size_t kBytes = (24 << 20) + 5;
        std::vector<uint8_t> out(kBytes, static_cast<uint8_t>(rank + 1));
        std::vector<std::vector<uint8_t>> in(static_cast<size_t>(size),
                                             std::vector<uint8_t>(kBytes));
        std::vector<Transfer> sends, receives;
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          sends.push_back({peer, {ViewOf(out)}});
          receives.push_back({peer, {ViewOf(in[static_cast<size_t>(peer)])}});
        }
        auto work = context->Exchange(std::move(sends), std::move(receives));
        ASSERT_TRUE(work.ok()) << work.status();
        ASSERT_TRUE(Finish(**work).ok());
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          EXPECT_TRUE(in[static_cast<size_t>(peer)] ==
                      std::vector<uint8_t>(kBytes, static_cast<uint8_t>(peer + 1)));
        }
      },
      kThreads);
}

TEST(MessageExchangeTest, AbortEndsExchangesInTheMiddle) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> through{0};
  RunRanksAsThreads(
      3,
      [&](int rank) {
        auto context = OpenOrDie(store, rank, 3);
        if (rank < 2) {
          EXPECT_EQ(CheckExchangeAbort(std::move(context), rank, 3), "");
          ++through;
        }
        while (through < 2) absl::SleepFor(absl::Milliseconds(1));
      },
      kThreads);
}

TEST(MessageExchangeTest, AbortEndsExchangesAndAllReducesTogether) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> over{false};
  RunRanksAsThreads(
      2,
      [&](int rank) {
        auto context = OpenOrDie(store, rank, 2);
        if (rank == 1) {
          while (!over) absl::SleepFor(absl::Milliseconds(1));
          return;
        }
        std::vector<uint8_t> out(1 << 20), in(1 << 20), reduced(1 << 20);
        auto exchange = context->Exchange({{1, {ViewOf(out)}}}, {{1, {ViewOf(in)}}});
        auto reduction = context->AllReduce({ViewOf(reduced)}, ReduceOp::kSum);
        ASSERT_TRUE(exchange.ok() && reduction.ok());
        EXPECT_EQ(Finish(**exchange, absl::Milliseconds(30)).code(),
                  absl::StatusCode::kDeadlineExceeded);
        context->Abort();
        EXPECT_EQ(Finish(**exchange, absl::Seconds(30)).code(), absl::StatusCode::kCancelled);
        EXPECT_EQ(Finish(**reduction, absl::Seconds(30)).code(), absl::StatusCode::kCancelled);
        over = true;
      },
      kThreads);
}

TEST(MessageExchangeTest, PeerThatGoesIsUnavailable) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(
      2,
      [&](int rank) {
        auto context = OpenOrDie(store, rank, 2);
        if (rank == 1) return;
        std::vector<uint8_t> out(1 << 20), in(1 << 20);
        auto work = context->Exchange({{1, {ViewOf(out)}}}, {{1, {ViewOf(in)}}});
        // It may be gone already when the messages are posted.
        const absl::Status status = work.ok() ? Finish(**work) : work.status();
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "group rank 1")) << status;
        EXPECT_FALSE(context->Exchange({{1, {ViewOf(out)}}}, {}).ok());
      },
      kThreads);
}

// A handle that is dropped: the exchange goes on, and its memory lives until it is through.
TEST(MessageExchangeTest, DroppedWorkIsFinished) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(
      2,
      [&](int rank) {
        auto context = OpenOrDie(store, rank, 2);
        const int peer = 1 - rank;
        std::shared_ptr<std::vector<uint8_t>> last;
        auto let_go = std::make_shared<absl::Notification>();
        for (int i = 0; i < 20; ++i) {
          auto out = std::make_shared<std::vector<uint8_t>>(50'000, static_cast<uint8_t>(i + rank));
          auto in = std::make_shared<std::vector<uint8_t>>(50'000);
          LeafView from = ViewOf(*out), to = ViewOf(*in);
          from.keep_alive = out;
          to.keep_alive = in;
          if (i == 19) {
            to.keep_alive = std::shared_ptr<void>(in.get(), [in, let_go](void*) { let_go->Notify(); });
          }
          ASSERT_TRUE(context->Exchange({{peer, {from}}}, {{peer, {to}}}).ok());
          last = in;
        }
        ASSERT_TRUE(let_go->WaitForNotificationWithTimeout(kPatience));
        EXPECT_TRUE(*last == std::vector<uint8_t>(50'000, static_cast<uint8_t>(19 + peer)));
      },
      kThreads);
}

TEST(MessageExchangeTest, AHundredAbortedContextsLeaveNothingBehind) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  int threads = 0, files = 0;
  for (int i = -5; i < 100; ++i) {
    if (i == 0) {
      threads = testing::CountThreads();
      files = testing::CountDescriptors();
    }
    auto prefixed = c10::make_intrusive<c10d::HashStore>();
    std::atomic<int> started{0};
    RunRanksAsThreads(
        2,
        [&](int rank) {
          auto context = OpenOrDie(prefixed, rank, 2);
          std::vector<uint8_t> bytes(4000);
          std::unique_ptr<DataWork> work;
          if (rank == (i & 1)) {
            auto result = context->Exchange({}, {{1 - rank, {ViewOf(bytes)}}});
            ASSERT_TRUE(result.ok());
            work = *std::move(result);
          }
          ++started;
          while (started < 2) absl::SleepFor(absl::Microseconds(100));
          context->Abort();
          if (work != nullptr) {
            const absl::Status status = Finish(*work, absl::Seconds(30));
            EXPECT_FALSE(status.ok());
            EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
          }
        },
        kThreads);
  }
  EXPECT_LE(testing::CountThreads(), threads);
  EXPECT_LE(testing::CountDescriptors(), files);
}

TEST(MessageExchangeTest, StridedViewsKeepToThemselves) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(
      2,
      [&](int rank) {
        auto context = OpenOrDie(store, rank, 2);
        const int peer = 1 - rank;
        std::vector<uint8_t> out(3000), in(2000, 0xff);
        for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(i % 100 + rank);
        LeafView sent = ViewOf(out);
        sent.sizes = {1000};
        sent.strides = {3};
        LeafView received = ViewOf(in);
        received.sizes = {1000};
        received.strides = {2};
        auto work = context->Exchange({{peer, {sent}}}, {{peer, {received}}});
        ASSERT_TRUE(work.ok()) << work.status();
        const absl::Status status = Finish(**work);
        ASSERT_TRUE(status.ok()) << status;
        for (size_t i = 0; i < 1000; ++i) {
          ASSERT_EQ(in[2 * i], static_cast<uint8_t>(3 * i % 100 + static_cast<size_t>(peer))) << i;
          ASSERT_EQ(in[2 * i + 1], 0xff) << i;
        }
      },
      kThreads);
}

TEST(MessageExchangeTest, RefusesWhatItCannotDo) {
  const std::unique_ptr<Backend> backend = TestedBackend();
  EXPECT_TRUE(backend->SupportsExchange(at::ScalarType::QInt8, c10::DeviceType::CPU).ok());
  EXPECT_EQ(backend->SupportsExchange(at::ScalarType::Float, c10::DeviceType::CUDA).code(),
            absl::StatusCode::kUnimplemented);
  auto context = OpenOrDie(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  std::vector<uint8_t> bytes(16);
  EXPECT_TRUE(context->Exchange({}, {}).ok());
  EXPECT_EQ(context->Exchange({{0, {ViewOf(bytes)}}}, {}).status().code(),
            absl::StatusCode::kInternal);
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(
      3,
      [&](int rank) {
        auto three = OpenOrDie(store, rank, 3);
        std::vector<uint8_t> own(16);
        LeafView broken = ViewOf(own);
        broken.strides = {2, 1};
        const int a = rank == 0 ? 1 : 0, b = rank == 2 ? 1 : 2;
        for (const auto& sends : std::vector<std::vector<Transfer>>{
                 {{a, {broken}}}, {{b, {}}, {a, {}}}, {{a, {}}, {a, {}}}, {{3, {}}}, {{-1, {}}}}) {
          EXPECT_EQ(three->Exchange(sends, {}).status().code(), absl::StatusCode::kInternal);
        }
        auto work = three->Exchange({}, {});
        ASSERT_TRUE(work.ok());
        EXPECT_TRUE((*work)->IsDone());
      },
      kThreads);
}

}  // namespace
}  // namespace leafpack
