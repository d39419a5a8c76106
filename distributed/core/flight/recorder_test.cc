#include "distributed/core/flight/recorder.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

FlightRecorder::Info TestInfo() {
  return {.group = "g", .rank = 1, .global_ranks = {0, 4}, .backend = "fake"};
}

TEST(FlightRecorderTest, KeepsWhatACallIsAndWhenItChanged) {
  FlightRecorder recorder(TestInfo());
  const FlightRecorder::Ticket ticket = recorder.Begin({.kind = "all_reduce",
                                                        .name = "grads",
                                                        .number = 7,
                                                        .leaves = 3,
                                                        .bytes = 48,
                                                        .digest = 5,
                                                        .async = true},
                                                       100);
  recorder.Advance(ticket, FlightState::kAgreed, /*epoch=*/2, 200);
  std::vector<FlightCall> calls = recorder.Calls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].kind, "all_reduce");
  EXPECT_EQ(calls[0].name, "grads");
  EXPECT_EQ(calls[0].number, 7u);
  EXPECT_EQ(calls[0].leaves, 3);
  EXPECT_EQ(calls[0].bytes, 48);
  EXPECT_EQ(calls[0].digest, 5u);
  EXPECT_EQ(calls[0].epoch, 2u);
  EXPECT_TRUE(calls[0].async);
  EXPECT_EQ(calls[0].state, FlightState::kAgreed);
  recorder.Advance(ticket, FlightState::kInData, 300);
  recorder.End(ticket, absl::UnavailableError("rank 3 is gone"), 400);
  recorder.End(ticket, absl::OkStatus(), 500);  // what has ended stays as it ended
  calls = recorder.Calls();
  EXPECT_EQ(calls[0].state, FlightState::kFailed);
  EXPECT_EQ(calls[0].reason, "rank 3 is gone");
  EXPECT_EQ(calls[0].posted, 100);
  EXPECT_EQ(calls[0].agreed, 200);
  EXPECT_EQ(calls[0].in_data, 300);
  EXPECT_EQ(calls[0].ended, 400);
}

TEST(FlightRecorderTest, TransfersHaveAPeerAndATag) {
  FlightRecorder recorder(TestInfo());
  recorder.End(recorder.Begin({.kind = "send", .number = 1, .peer = 0, .tag = 9}), absl::OkStatus());
  const std::vector<FlightCall> calls = recorder.Calls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].peer, 0);
  EXPECT_EQ(calls[0].tag, 9);
  EXPECT_EQ(calls[0].state, FlightState::kDone);
  EXPECT_GT(calls[0].posted, 0);
  EXPECT_GE(calls[0].ended, calls[0].posted);
}

TEST(FlightRecorderTest, TheLastThousandStay) {
  FlightRecorder recorder(TestInfo());
  const FlightRecorder::Ticket first = recorder.Begin({.kind = "all_reduce", .number = 1});
  for (uint64_t i = 2; i <= 2 * FlightRecorder::kCalls + 5; ++i) {
    recorder.End(recorder.Begin({.kind = "barrier", .number = i}), absl::OkStatus());
  }
  recorder.End(first, absl::InternalError("too late to be told"));
  const std::vector<FlightCall> calls = recorder.Calls();
  ASSERT_EQ(calls.size(), FlightRecorder::kCalls);
  EXPECT_EQ(recorder.total(), 2 * FlightRecorder::kCalls + 5);
  for (size_t i = 0; i < calls.size(); ++i) {
    ASSERT_EQ(calls[i].number, FlightRecorder::kCalls + 6 + i);
    ASSERT_EQ(calls[i].state, FlightState::kDone);
  }
}

TEST(FlightRecorderTest, LongTextsAreCut) {
  FlightRecorder recorder(TestInfo());
  const std::string text(10000, 'x');
  recorder.End(recorder.Begin({.kind = "reduce", .name = text}), absl::InternalError(text));
  EXPECT_EQ(recorder.Calls()[0].name.size(), FlightRecorder::kMaxName);
  EXPECT_EQ(recorder.Calls()[0].reason.size(), FlightRecorder::kMaxReason);
}

TEST(FlightRecorderTest, OffRecordsNothing) {
  FlightRecorder recorder(TestInfo());
  FlightRecorder::SetEnabled(false);
  const FlightRecorder::Ticket ticket = recorder.Begin({.kind = "reduce"});
  FlightRecorder::SetEnabled(true);
  recorder.Advance(ticket, FlightState::kAgreed);
  recorder.End(ticket, absl::OkStatus());
  EXPECT_EQ(ticket, 0u);
  EXPECT_EQ(recorder.total(), 0u);
  EXPECT_TRUE(recorder.Calls().empty());
}

// Entries are whole whatever threads do meanwhile: each call's numbers belong together.
TEST(FlightRecorderTest, ThreadsRecordAndReadTogether) {
  FlightRecorder recorder(TestInfo());
  constexpr int kThreads = 4;
  constexpr int64_t kEach = 5000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 1; i <= kEach; ++i) {
        const int64_t value = t * kEach + i;
        const FlightRecorder::Ticket ticket = recorder.Begin({.kind = "send",
                                                              .name = absl::StrCat(value),
                                                              .number = static_cast<uint64_t>(value),
                                                              .bytes = value});
        recorder.Advance(ticket, FlightState::kInData);
        recorder.EndWith(ticket, i % 2 == 0, absl::StrCat("reason ", value));
      }
      --running;
    });
  }
  size_t seen = 0;
  do {
    for (const FlightCall& call : recorder.Calls()) {
      ++seen;
      ASSERT_EQ(call.name, absl::StrCat(call.number));
      ASSERT_EQ(call.bytes, static_cast<int64_t>(call.number));
      if (call.state == FlightState::kFailed) {
        ASSERT_EQ(call.reason, absl::StrCat("reason ", call.number));
      }
    }
  } while (running > 0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(seen, 0u);
  EXPECT_EQ(recorder.total(), uint64_t{kThreads} * kEach);
  EXPECT_EQ(recorder.Calls().size(), FlightRecorder::kCalls);
}

TEST(FlightRecordersTest, LivingOnesAndTheLastThatWereClosed) {
  const size_t before = FlightRecorders().size();
  auto living = FlightRecorder::Create(TestInfo());
  for (int i = 0; i < 20; ++i) {
    auto recorder = FlightRecorder::Create({.group = absl::StrCat("closed ", i), .global_ranks = {0}});
    recorder->set_closed();
  }
  const auto known = FlightRecorders();
  EXPECT_LE(known.size(), before + 1 + 5);
  bool lives = false, last = false;
  for (const auto& recorder : known) {
    lives |= recorder == living;
    last |= recorder->info().group == "closed 19";
  }
  EXPECT_TRUE(lives);
  EXPECT_TRUE(last);
}

}  // namespace
}  // namespace leafpack
