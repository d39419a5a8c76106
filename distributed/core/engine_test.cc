// Groups whose ranks are threads of this process: agreement, refusals, deadlines, data.
#include "distributed/core/engine.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/ranks.h"

namespace leafpack {
namespace {

using testing::CallArgs;
using testing::Eventually;
using testing::Faults;
using testing::MakeFrame;
using testing::MakeGroups;
using testing::MakeSpec;
using testing::OnRanks;
using testing::RunData;
using testing::SumData;
using testing::SumFrame;

std::vector<int> RankValues(const std::vector<GlobalRank>& ranks) {
  std::vector<int> values;
  for (GlobalRank rank : ranks) values.push_back(rank.value());
  return values;
}

class EngineSizeTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineSizeTest, ::testing::Values(1, 2, 3, 4));

TEST_P(EngineSizeTest, FramesInARowAreSummedToEqualBits) {
  const int size = GetParam();
  const int rounds = 10000 / size;
  std::vector<Group> groups = MakeGroups(size);
  std::vector<std::vector<float>> last(static_cast<size_t>(size));
  OnRanks(groups, [&](int rank, Group& group) {
    for (int i = 0; i < rounds; ++i) {
      std::vector<float> values = {0.1f * static_cast<float>(rank + 1), static_cast<float>(i)};
      const absl::Status status = SumFrame(group, values);
      ASSERT_TRUE(status.ok()) << status << " in round " << i;
      ASSERT_EQ(values[1], static_cast<float>(i * size));
      last[static_cast<size_t>(rank)] = values;
    }
  });
  for (const std::vector<float>& values : last) EXPECT_EQ(values, last[0]);
}

TEST_P(EngineSizeTest, DataCallsInARow) {
  const int size = GetParam();
  std::vector<Group> groups = MakeGroups(size);
  OnRanks(groups, [&](int rank, Group& group) {
    for (int i = 0; i < 20; ++i) {
      std::vector<float> values(100, static_cast<float>(rank + i));
      const absl::Status status = SumData(group, values, {.restore = i % 2 == 1});
      ASSERT_TRUE(status.ok()) << status;
      if (size == 1) continue;  // the identity
      ASSERT_EQ(values[99], static_cast<float>(size * (size - 1) / 2 + size * i));
    }
  });
  EXPECT_EQ(Faults(groups[0]).opens, size > 1 ? 1 : 0);
}

TEST_P(EngineSizeTest, RefusalOfAnyRankReachesAllOthers) {
  const int size = GetParam();
  std::vector<Group> groups = MakeGroups(size);
  for (int refuser = 0; refuser < size; ++refuser) {
    OnRanks(groups, [&](int rank, Group& group) {
      std::vector<float> values = {1};
      if (rank == refuser) {
        const absl::Status mine = group.engine().Refuse(
            CollectiveKind::kAllReduce, absl::InvalidArgumentError("leaf 'w' overlaps itself"),
            absl::Now() + testing::kPatience);
        EXPECT_EQ(mine, absl::InvalidArgumentError("leaf 'w' overlaps itself"));
      } else {
        const absl::Status status = SumFrame(group, values, {.name = "all_reduce 'g'"});
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        EXPECT_NE(status.message().find("all_reduce 'g'"), std::string::npos) << status;
        EXPECT_NE(status.message().find("leaf 'w' overlaps itself"), std::string::npos) << status;
        EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kPeerRefused);
        EXPECT_EQ(RankValues(GetErrorDetails(status).ranks), std::vector<int>{refuser});
        EXPECT_EQ(values[0], 1);
      }
      const absl::Status next = SumFrame(group, values);
      EXPECT_TRUE(next.ok()) << next;
    });
  }
}

TEST(EngineTest, MismatchNamesTheFirstDifferenceAndGlobalRanks) {
  std::vector<Group> groups =
      MakeGroups(3, testing::kPatience, {GlobalRank(4), GlobalRank(9), GlobalRank(2)});
  OnRanks(groups, [&](int rank, Group& group) {
    CallArgs args;
    args.digest = rank == 2 ? 7 : 8;
    args.description = {{"op", "op", "sum", true},
                        {"a", "a", "float32 [3]", false},
                        {rank == 2 ? "k9" : "k8", rank == 2 ? "k9" : "k8", "float32 [3]", false}};
    std::vector<float> values = {1};
    const absl::Status status = SumFrame(group, values, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    const std::string text(status.message());
    EXPECT_NE(text.find("k8"), std::string::npos) << text;
    EXPECT_NE(text.find("k9"), std::string::npos) << text;
    EXPECT_NE(text.find("ranks 4 and 9"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
    const ErrorDetails details = GetErrorDetails(status);
    EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch);
    EXPECT_EQ(details.path.substr(0, 1), "k");
    EXPECT_TRUE(details.tree_unchanged);
    EXPECT_TRUE(SumFrame(group, values).ok());
  });
}

TEST(EngineTest, SoftDigestsAreCompared) {
  std::vector<Group> groups = MakeGroups(2);
  for (const bool equal : {true, false}) {
    OnRanks(groups, [&](int rank, Group& group) {
      CallArgs args;
      args.soft_digest = equal ? 5 : static_cast<uint64_t>(rank);
      auto call = group.engine().Post(MakeSpec(args));
      ASSERT_TRUE(call.ok());
      ASSERT_TRUE((*call)->AwaitDecision().ok());
      EXPECT_EQ((*call)->soft_digests_agree(), equal);
      std::vector<float> values = {1};
      EXPECT_TRUE(RunData(**call, values).ok());
    });
  }
}

class LateRankTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Late, LateRankTest, ::testing::Values(0, 1, 2));

TEST_P(LateRankTest, ALateFirstCallIsWaitedFor) {
  const int late = GetParam();
  std::vector<Group> groups = MakeGroups(3);
  OnRanks(groups, [&](int rank, Group& group) {
    if (rank == late) absl::SleepFor(absl::Milliseconds(300));
    std::vector<float> values = {1};
    const absl::Status status = SumFrame(group, values);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(values[0], 3);
  });
}

TEST_P(LateRankTest, TheDeadlineNamesTheLateRankAndTheLateRankIsTold) {
  const int late = GetParam();
  std::vector<Group> groups = MakeGroups(3);
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumFrame(group, values).ok());
  });
  absl::BlockingCounter gave_up(2);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    if (rank == late) {
      gave_up.Wait();
      const absl::Status status = SumFrame(group, values);
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kDeadline);
    } else {
      const absl::Status status = SumFrame(group, values, {.timeout = absl::Milliseconds(200)});
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kDeadline);
      EXPECT_EQ(RankValues(GetErrorDetails(status).ranks), std::vector<int>{late}) << status;
      EXPECT_FALSE(GetErrorDetails(status).outcome_unknown);
      gave_up.DecrementCount();
    }
    EXPECT_EQ(values[0], 1);
    const absl::Status next = SumFrame(group, values);
    EXPECT_TRUE(next.ok()) << next;
    EXPECT_EQ(values[0], 3);
  });
}

TEST(EngineTest, DeadlineBeforeTheChannelOpensNamesRankZeroAndKeepsTheCallsInStep) {
  std::vector<Group> groups = MakeGroups(2);
  std::vector<float> values = {1};
  const absl::Status status = SumFrame(groups[1], values, {.timeout = absl::Milliseconds(100)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(RankValues(GetErrorDetails(status).ranks), std::vector<int>{0});
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> mine = {2};
    if (rank == 0) {
      const absl::Status first = SumFrame(group, mine);
      EXPECT_EQ(first.code(), absl::StatusCode::kCancelled) << first;
    }
    const absl::Status second = SumFrame(group, mine);
    EXPECT_TRUE(second.ok()) << second;
    EXPECT_EQ(mine[0], 4);
  });
}

TEST(EngineTest, ManyAsyncFramesInFlight) {
  constexpr int kCalls = 200;
  std::vector<Group> groups = MakeGroups(3);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<std::shared_ptr<Call>> calls;
    for (int i = 0; i < kCalls; ++i) {
      auto call = group.engine().Post(MakeFrame({static_cast<float>(i + rank)}, {.async = true}));
      ASSERT_TRUE(call.ok()) << call.status();
      EXPECT_EQ((*call)->number(), static_cast<uint64_t>(i + 1));
      calls.push_back(*std::move(call));
    }
    for (int i = kCalls - 1; i >= 0; --i) {
      Call& call = *calls[static_cast<size_t>(i)];
      const absl::Status status = call.AwaitDecision();
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(testing::FrameValues(call), std::vector<float>{static_cast<float>(3 * i + 3)});
    }
  });
}

TEST(EngineTest, AFullWindowWaitsForRoomUntilTheDeadline) {
  // 64 posts without a decision are on their way, 64 more wait for them; the next one has to wait.
  constexpr int kWindow = 128;
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumFrame(group, values).ok());
  });
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < kWindow; ++i) {
    auto call = groups[1].engine().Post(MakeFrame({1}, {.async = true}));
    ASSERT_TRUE(call.ok()) << call.status();
    calls.push_back(*std::move(call));
  }
  const auto full =
      groups[1].engine().Post(MakeFrame({1}, {.timeout = absl::Milliseconds(100), .async = true}));
  EXPECT_EQ(full.status().code(), absl::StatusCode::kDeadlineExceeded) << full.status();
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    for (int i = 0; i < kWindow && rank == 0; ++i) {
      values = {1};
      const absl::Status status = SumFrame(group, values);
      ASSERT_TRUE(status.ok()) << status;
    }
    if (rank == 0) {
      // The post that found no room has a number like every other.
      const absl::Status status = SumFrame(group, values);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    }
    const absl::Status next = SumFrame(group, values);
    EXPECT_TRUE(next.ok()) << next;
  });
  for (const std::shared_ptr<Call>& call : calls) EXPECT_TRUE(call->AwaitDecision().ok());
}

TEST(EngineTest, ManyAsyncDataCallsGoThroughTheWorkerInOrder) {
  constexpr int kCalls = 40;
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<absl::Status> results(kCalls, absl::UnknownError("not run"));
    std::vector<std::vector<float>> values(kCalls);
    absl::BlockingCounter left(kCalls);
    for (int i = 0; i < kCalls; ++i) {
      auto call = group.engine().Post(MakeSpec({.async = true}));
      ASSERT_TRUE(call.ok()) << call.status();
      values[static_cast<size_t>(i)] = {static_cast<float>(i + rank)};
      group.engine().RunInWorker([&, i, call = *std::move(call)] {
        results[static_cast<size_t>(i)] = RunData(*call, values[static_cast<size_t>(i)]);
        left.DecrementCount();
      });
    }
    left.Wait();
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(results[static_cast<size_t>(i)].ok()) << results[static_cast<size_t>(i)];
      EXPECT_EQ(values[static_cast<size_t>(i)][0], static_cast<float>(2 * i + 1));
    }
  });
}

TEST(EngineTest, NobodyNeedsToWaitForAsyncFrames) {
  std::vector<Group> groups = MakeGroups(2);
  std::vector<std::shared_ptr<Call>> calls;
  for (Group& group : groups) {
    auto call = group.engine().Post(MakeFrame({1}, {.async = true}));
    ASSERT_TRUE(call.ok());
    calls.push_back(*std::move(call));
  }
  // Nobody leads: the understudy carries the calls, even where they are only looked at.
  for (const std::shared_ptr<Call>& call : calls) {
    EXPECT_TRUE(Eventually([&] {
      auto done = call->AwaitDecisionUntil(absl::InfinitePast());
      return done.ok() && *done;
    }));
  }
}

TEST(EngineTest, TheUnderstudyOfRankZeroAnswersWhileItComputes) {
  std::vector<Group> groups = MakeGroups(3);
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumFrame(group, values).ok());
  });
  absl::Notification answered;
  OnRanks(groups, [&](int rank, Group& group) {
    if (rank == 0) {
      answered.WaitForNotification();  // "computes": makes no call
      std::vector<float> values = {1};
      EXPECT_EQ(SumFrame(group, values).code(), absl::StatusCode::kFailedPrecondition);
    } else if (rank == 1) {
      group.engine().Refuse(CollectiveKind::kAllReduce, absl::InternalError("no"), absl::Now()).IgnoreError();
    } else {
      std::vector<float> values = {1};
      const absl::Status status = SumFrame(group, values, {.timeout = absl::Milliseconds(100)});
      // Rank 1 refused, so the withdrawal is answered with that.
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      answered.Notify();
    }
  });
}

TEST(EngineTest, InterruptGivesTheCallUpEverywhere) {
  std::vector<Group> groups = MakeGroups(2);
  std::atomic<bool> interrupted{false};
  std::thread later([&] {
    absl::SleepFor(absl::Milliseconds(100));
    interrupted = true;
  });
  std::vector<float> values = {1};
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> mine = {1};
    if (rank == 1) {
      // Rank 0 opens the channel with its own first call, below.
      const absl::Status status =
          SumFrame(group, mine, {.digest = 3, .interrupt = [&] { return interrupted.load(); }});
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kInterrupted);
    } else {
      EXPECT_TRUE(Eventually([&] { return interrupted.load(); }));
      absl::SleepFor(absl::Milliseconds(200));
      const absl::Status status = SumFrame(group, mine, {.digest = 3});
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    }
    EXPECT_TRUE(SumFrame(group, mine).ok());
  });
  later.join();
}

// What is asked whether to interrupt a wait may wait in the same group: nobody leads meanwhile.
TEST(EngineTest, AnInterruptCheckMayCallTheSameGroup) {
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> mine = {1};
    ASSERT_TRUE(SumFrame(group, mine).ok());
    for (const bool comes : {true, false}) {
      absl::Status inner, outer;
      const absl::Time start = absl::Now();
      if (rank == 0) {
        bool asked = false;
        std::vector<float> other = {1};
        const absl::Duration timeout = comes ? absl::Minutes(2) : absl::Milliseconds(400);
        outer = SumFrame(group, mine, {.digest = 1, .timeout = timeout, .interrupt = [&] {
                           if (!std::exchange(asked, true)) {
                             inner = SumFrame(group, other, {.digest = 2, .timeout = timeout});
                           }
                           return false;
                         }});
        EXPECT_TRUE(asked);
      } else {
        absl::SleepFor(absl::Milliseconds(comes ? 200 : 1500));
        outer = SumFrame(group, mine, {.digest = 1});
        inner = SumFrame(group, mine, {.digest = 2});
      }
      const absl::StatusCode want = comes       ? absl::StatusCode::kOk
                                    : rank == 0 ? absl::StatusCode::kDeadlineExceeded
                                                : absl::StatusCode::kCancelled;
      EXPECT_EQ(outer.code(), want) << outer;
      EXPECT_EQ(inner.code(), want) << inner;
      EXPECT_LT(absl::Now() - start, absl::Minutes(1));
    }
    EXPECT_TRUE(SumFrame(group, mine).ok());
  });
}

TEST(EngineTest, DroppedHandlesAreWithdrawn) {
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumFrame(group, values).ok());
    if (rank == 1) {
      ASSERT_TRUE(group.engine().Post(MakeFrame({1})).ok());  // and dropped
    } else {
      absl::SleepFor(absl::Milliseconds(100));
      const absl::Status status = SumFrame(group, values);
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    }
    EXPECT_TRUE(SumFrame(group, values).ok());
  });
}

TEST(EngineTest, AnErrorThatNobodySawIsRaisedByTheNextCallAndTold) {
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    if (rank == 1) group.engine().RememberError(absl::DataLossError("bad async call"));
    const absl::Status status = SumFrame(group, values);
    if (rank == 1) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_NE(status.message().find("bad async call"), std::string::npos);
    }
    EXPECT_TRUE(SumFrame(group, values).ok());
  });
}

TEST(EngineTest, TwoGroupsFromTwoThreadsAtOnce) {
  std::vector<Group> a = MakeGroups(2), b = MakeGroups(2);
  const auto stream = [](std::vector<Group>& groups) {
    OnRanks(groups, [](int, Group& group) {
      for (int i = 0; i < 1000; ++i) {
        std::vector<float> values = {1};
        const absl::Status status = SumFrame(group, values);
        ASSERT_TRUE(status.ok()) << status;
      }
    });
  };
  std::thread other([&] { stream(b); });
  stream(a);
  other.join();
}

TEST(EngineTest, ShutDownGroupsTakeNoCallsAndTheOthersHear) {
  std::vector<Group> groups = MakeGroups(3);
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumFrame(group, values).ok());
  });
  EXPECT_TRUE(groups[1].Shutdown(absl::Seconds(5)).ok());
  std::vector<float> values = {1};
  EXPECT_EQ(SumFrame(groups[1], values).code(), absl::StatusCode::kFailedPrecondition);
  for (int rank : {0, 2}) {
    const absl::Status status = SumFrame(groups[static_cast<size_t>(rank)], values);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kPeerLost);
    EXPECT_EQ(RankValues(GetErrorDetails(status).ranks), std::vector<int>{1});
  }
}

TEST(EngineTest, ShutdownOfRankZeroAfterTheLastCallLosesNothing) {
  for (int round = 0; round < 50; ++round) {
    std::vector<Group> groups = MakeGroups(3);
    OnRanks(groups, [&](int rank, Group& group) {
      std::vector<float> values = {1};
      const absl::Status status = SumFrame(group, values);
      EXPECT_TRUE(status.ok()) << status << " on rank " << rank;
      EXPECT_TRUE(group.Shutdown(absl::Seconds(5)).ok());
    });
  }
}

TEST(GroupTest, ChecksItsArguments) {
  testing::RegisterFakeBackend();
  std::vector<Group> groups = MakeGroups(2, testing::kPatience, {GlobalRank(5), GlobalRank(3)});
  EXPECT_EQ(groups[1].global_rank(), GlobalRank(3));
  EXPECT_EQ(*groups[0].ToGroup(GlobalRank(3)), GroupRank(1));
  EXPECT_EQ(groups[0].ToGroup(GlobalRank(4)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(groups[0].ToGlobal(GroupRank(2)).status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace leafpack
