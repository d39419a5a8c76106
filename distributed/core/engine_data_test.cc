// The data path of groups whose ranks are threads: failures, epochs, restore, resources.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/engine.h"
#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/ranks.h"

namespace leafpack {
namespace {

using testing::Eventually;
using testing::Faults;
using testing::MakeGroups;
using testing::MakeSpec;
using testing::OnRanks;
using testing::RunData;
using testing::SumData;
using testing::SumFrame;

class FailingRankTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Failing, FailingRankTest, ::testing::Values(0, 1, 2));

TEST_P(FailingRankTest, AnErrorInDataIsToldAndTheNextCallSucceeds) {
  const int failing = GetParam();
  std::vector<Group> groups = MakeGroups(3);
  for (int round = 0; round < 3; ++round) {
    Faults(groups[static_cast<size_t>(failing)]).fail_next_op = true;
    absl::BlockingCounter left(3);
    OnRanks(groups, [&](int rank, Group& group) {
      std::vector<float> values = {1};
      const absl::Status status = SumData(group, values);
      EXPECT_FALSE(status.ok());
      const ErrorDetails details = GetErrorDetails(status);
      EXPECT_EQ(details.ranks, std::vector<GlobalRank>{GlobalRank(failing)}) << status;
      EXPECT_FALSE(details.tree_unchanged);
      EXPECT_NE(status.message().find("fake fault"), std::string::npos) << rank << ": " << status;
      const absl::Status next = SumData(group, values);
      EXPECT_TRUE(next.ok()) << rank << ": " << next;
      EXPECT_EQ(values[0], 3);
    });
  }
  EXPECT_EQ(Faults(groups[0]).opens, 4);
}

TEST_P(FailingRankTest, RestoreCallsFailOnAllRanksWithOldValues) {
  const int failing = GetParam();
  std::vector<Group> groups = MakeGroups(3);
  Faults(groups[static_cast<size_t>(failing)]).fail_next_op = true;
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    const absl::Status status = SumData(group, values, {.restore = true});
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(GetErrorDetails(status).tree_unchanged) << status;
    EXPECT_EQ(values[0], 1);
    const absl::Status next = SumData(group, values, {.restore = true});
    EXPECT_TRUE(next.ok()) << next;
    EXPECT_EQ(values[0], 3);
  });
}

TEST_P(FailingRankTest, AnErrorWhileOpeningTheContextIsTold) {
  const int failing = GetParam();
  std::vector<Group> groups = MakeGroups(3);
  Faults(groups[static_cast<size_t>(failing)]).fail_next_open = true;
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    const absl::Status status = SumData(group, values);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("fake context does not open"), std::string::npos) << status;
    const absl::Status next = SumData(group, values);
    EXPECT_TRUE(next.ok()) << next;
  });
}

TEST_P(FailingRankTest, DeadlineInDataEndsTheEpochOnAllRanks) {
  const int failing = GetParam();
  std::vector<Group> groups = MakeGroups(3);
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumData(group, values).ok());
  });
  Faults(groups[static_cast<size_t>(failing)]).stall_next_op = true;
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    const absl::Status status = SumData(group, values, {.timeout = absl::Milliseconds(100)});
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kDeadline);
    const absl::Status next = SumData(group, values);
    EXPECT_TRUE(next.ok()) << next;
  });
}

TEST(EngineDataTest, ARankThatHadFinishedIsTold) {
  std::vector<Group> groups = MakeGroups(2);
  absl::Barrier* both = new absl::Barrier(2);
  OnRanks(groups, [&](int rank, Group& group) {
    auto call = group.engine().Post(MakeSpec({}));
    ASSERT_TRUE(call.ok());
    ASSERT_TRUE((*call)->AwaitDecision().ok());
    ASSERT_TRUE((*call)->EnterData().ok());
    (*call)->LeaveTurnstile();
    std::vector<float> values = {1};
    if (rank == 0) {
      EXPECT_TRUE((*call)->FinishData(absl::OkStatus(), {}).ok());
    }
    if (both->Block()) delete both;
    if (rank == 1) {
      const absl::Status failed = (*call)->FinishData(absl::InternalError("late fault"), {"a", "b"});
      EXPECT_FALSE(failed.ok());
      EXPECT_EQ(GetErrorDetails(failed).paths_done, (std::vector<std::string>{"a", "b"}));
    } else {
      // The notice arrives while this rank computes.
      absl::SleepFor(absl::Milliseconds(300));
    }
    const absl::Status next = SumFrame(group, values);
    EXPECT_EQ(next.code(), absl::StatusCode::kFailedPrecondition) << next;
    EXPECT_EQ(GetErrorDetails(next).kind, ErrorKind::kPeerRefused);
    EXPECT_NE(next.message().find("late fault"), std::string::npos) << next;
    EXPECT_TRUE(SumFrame(group, values).ok());
    EXPECT_TRUE(SumData(group, values).ok());
  });
}

TEST(EngineDataTest, InterruptInDataFailsTheCallEverywhere) {
  std::vector<Group> groups = MakeGroups(2);
  Faults(groups[0]).stall_next_op = true;
  std::atomic<bool> interrupted{false};
  std::thread later([&] {
    absl::SleepFor(absl::Milliseconds(150));
    interrupted = true;
  });
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    testing::CallArgs args;
    if (rank == 1) args.interrupt = [&] { return interrupted.load(); };
    const absl::Status status = SumData(group, values, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_TRUE(SumData(group, values).ok());
  });
  later.join();
}

TEST(EngineDataTest, CallsInFlightEndWithTheEpoch) {
  std::vector<Group> groups = MakeGroups(2);
  Faults(groups[1]).fail_next_op = true;
  OnRanks(groups, [&](int, Group& group) {
    constexpr int kCalls = 10;
    std::vector<absl::Status> results(kCalls);
    absl::BlockingCounter left(kCalls);
    int posted = 0;
    for (int i = 0; i < kCalls; ++i) {
      auto call = group.engine().Post(MakeSpec({.async = true}));
      if (!call.ok()) {
        results[static_cast<size_t>(i)] = call.status();
        left.DecrementCount();
        continue;
      }
      ++posted;
      group.engine().RunInWorker([&, i, call = *std::move(call)] {
        std::vector<float> values = {1};
        results[static_cast<size_t>(i)] = RunData(*call, values);
        left.DecrementCount();
      });
    }
    left.Wait();
    EXPECT_GT(posted, 0);
    EXPECT_FALSE(results[0].ok());
    // Whatever became of the others, the calls stay in step.
    std::vector<float> values = {1};
    for (int i = 0; i < 5; ++i) SumFrame(group, values).IgnoreError();
    values = {1};
    const absl::Status next = SumData(group, values);
    EXPECT_TRUE(next.ok()) << next;
    EXPECT_EQ(values[0], 2);
  });
}

TEST(EngineDataTest, SyncAndAsyncDataCallsEnqueueInOneOrder) {
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int rank, Group& group) {
    for (int i = 0; i < 30; ++i) {
      auto async = group.engine().Post(MakeSpec({.digest = 1, .async = true}));
      ASSERT_TRUE(async.ok());
      std::vector<float> first = {static_cast<float>(rank)};
      absl::Status result;
      absl::BlockingCounter done(1);
      group.engine().RunInWorker([&, call = *std::move(async)] {
        result = RunData(*call, first);
        done.DecrementCount();
      });
      std::vector<float> second = {10};
      const absl::Status status = SumData(group, second, {.digest = 2});
      done.Wait();
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(result.ok()) << result;
      ASSERT_EQ(first[0], 1);
      ASSERT_EQ(second[0], 20);
    }
  });
}

TEST(EngineDataTest, HundredsOfInterruptedDataPhasesLeaveNothingBehind) {
  std::vector<Group> groups = MakeGroups(2);
  const auto round = [&] {
    Faults(groups[0]).stall_next_op = true;
    OnRanks(groups, [&](int rank, Group& group) {
      std::vector<float> values = {1};
      testing::CallArgs args;
      if (rank == 1) args.interrupt = [] { return true; };
      const absl::Status status = SumData(group, values, args);
      EXPECT_FALSE(status.ok());
    });
    // The switch may not have been used, if the interrupt came before the data.
    Faults(groups[0]).stall_next_op = false;
  };
  for (int i = 0; i < 10; ++i) round();
  const int threads = testing::CountThreads();
  const int descriptors = testing::CountDescriptors();
  for (int i = 0; i < 200; ++i) round();
  EXPECT_TRUE(Eventually([&] { return testing::CountThreads() <= threads; }))
      << testing::CountThreads() << " threads, " << threads << " before";
  EXPECT_LE(testing::CountDescriptors(), descriptors);
  EXPECT_TRUE(Eventually([&] { return Faults(groups[0]).works == 0 && Faults(groups[1]).works == 0; }));
  EXPECT_LE(Faults(groups[0]).contexts, 6);
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    const absl::Status status = SumData(group, values);
    EXPECT_TRUE(status.ok()) << status;
  });
}

// Backends that enqueue in the caller's thread may trust what was agreed before, or not ask at all.
TEST(EngineCheckTest, ALayoutThatWasAgreedIsTrustedFromThenOn) {
  std::vector<Group> groups = MakeGroups(2, testing::kPatience, {}, "fake-caller");
  OnRanks(groups, [&](int rank, Group& group) {
    for (int i = 0; i < 50; ++i) {
      std::vector<float> values = {static_cast<float>(rank)};
      const absl::Status status = SumData(group, values, {.check = CheckMode::kFirst});
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(values[0], 1);
    }
  });
}

TEST(EngineCheckTest, ADifferenceFromATrustedCallEndsTheEpochOnAllRanks) {
  std::vector<Group> groups = MakeGroups(2, testing::kPatience, {}, "fake-caller");
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumData(group, values, {.digest = 5, .check = CheckMode::kFirst}).ok());
    const absl::Status status =
        SumData(group, values,
                {.digest = rank == 0 ? uint64_t{5} : uint64_t{6}, .check = CheckMode::kFirst});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << rank << ": " << status;
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kLayoutMismatch) << rank << ": " << status;
    values = {1};
    // A call that asks first ends the matter; one that trusts again could end another epoch.
    absl::Status next = SumData(group, values, {.digest = 5});
    if (!next.ok()) {
      // The rank whose call ended before the epoch did may have to be told of that.
      EXPECT_EQ(GetErrorDetails(next).kind, ErrorKind::kPeerRefused) << rank << ": " << next;
      next = SumData(group, values, {.digest = 5});
    }
    EXPECT_TRUE(next.ok()) << rank << ": " << next;
    EXPECT_EQ(values[0], 2);
  });
}

TEST(EngineCheckTest, UncheckedCallsAreCountedAndCheckedOnesMayFollow) {
  std::vector<Group> groups = MakeGroups(2, testing::kPatience, {}, "fake-caller");
  OnRanks(groups, [&](int rank, Group& group) {
    for (int i = 0; i < 40; ++i) {
      std::vector<float> values = {static_cast<float>(rank)};
      const absl::Status status =
          SumData(group, values, {.check = i % 4 == 3 ? CheckMode::kAlways : CheckMode::kOff});
      ASSERT_TRUE(status.ok()) << i << ": " << status;
      ASSERT_EQ(values[0], 1);
    }
  });
}

TEST(EngineCheckTest, HostBackendsAlwaysAgree) {
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    const absl::Status status =
        SumData(group, values, {.digest = static_cast<uint64_t>(rank), .check = CheckMode::kOff});
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kLayoutMismatch) << status;
    EXPECT_TRUE(GetErrorDetails(status).tree_unchanged);
  });
}

TEST(EngineDataTest, ShutdownWithdrawsWhatDoesNotEnd) {
  std::vector<Group> groups = MakeGroups(2);
  Faults(groups[0]).stall_next_op = true;
  OnRanks(groups, [&](int rank, Group& group) {
    absl::BlockingCounter done(1);
    absl::Status result;
    auto call = group.engine().Post(MakeSpec({.async = true}));
    ASSERT_TRUE(call.ok());
    group.engine().RunInWorker([&, call = *std::move(call)] {
      std::vector<float> values = {1};
      result = RunData(*call, values);
      done.DecrementCount();
    });
    if (rank == 1) {
      EXPECT_TRUE(group.Shutdown(absl::Milliseconds(200)).ok());
    }
    done.Wait();
    EXPECT_FALSE(result.ok());
  });
}

}  // namespace
}  // namespace leafpack
