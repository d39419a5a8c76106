// Groups whose ranks are processes: ranks that are killed, stopped, or gone right after their last
// call; forks with an open group. This process has no threads, so that it may fork.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/engine.h"
#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/child_check.h"
#include "distributed/core/testing/ranks.h"

namespace leafpack {
namespace {

using testing::CallArgs;
using testing::Eventually;
using testing::Faults;
using testing::Fork;
using testing::MakeFileGroup;
using testing::MakeFrame;
using testing::MakeSpec;
using testing::NamesOnly;
using testing::OnProcesses;
using testing::Shared;
using testing::SumData;
using testing::SumFrame;
using testing::TempDir;

constexpr int kRanks = 3;

std::string Text(const absl::Status& status) { return status.ToString(); }

enum class Moment { kIdle, kOthersWait, kWaiting, kData, kRestore };

struct KillCase {
  Moment moment;
  int victim;
};

std::vector<KillCase> KillCases() {
  std::vector<KillCase> cases;
  for (Moment moment : {Moment::kIdle, Moment::kOthersWait, Moment::kWaiting, Moment::kData,
                        Moment::kRestore}) {
    for (int victim = 0; victim < kRanks; ++victim) cases.push_back({moment, victim});
  }
  return cases;
}

std::string KillCaseName(const ::testing::TestParamInfo<KillCase>& kill_case) {
  static constexpr const char* kNames[] = {"Idle", "OthersWait", "Waiting", "Data", "Restore"};
  return absl::StrCat(kNames[static_cast<int>(kill_case.param.moment)], "Rank",
                      kill_case.param.victim);
}

class KilledRankTest : public ::testing::TestWithParam<KillCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, KilledRankTest, ::testing::ValuesIn(KillCases()), KillCaseName);

TEST_P(KilledRankTest, IsNamedToTheOthers) {
  const auto [moment, victim] = GetParam();
  TempDir dir;
  struct Flags {
    std::atomic<int> waiting, killed, through;
  };
  auto& flags = Shared<Flags>();
  const std::vector<int> codes = OnProcesses(kRanks, [&, moment = moment, victim = victim](int rank) {
    Group group = MakeFileGroup(dir.path() + "/store", rank, kRanks);
    std::vector<float> values = {1};
    absl::Status status = SumData(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    values = {1};
    const bool data = moment == Moment::kData || moment == Moment::kRestore;
    if (rank == victim) {
      switch (moment) {
        case Moment::kIdle:
          flags.killed = 1;
          kill(getpid(), SIGKILL);
          break;
        case Moment::kOthersWait:
          Eventually([&] { return flags.waiting == kRanks - 1; });
          usleep(50'000);
          kill(getpid(), SIGKILL);
          break;
        case Moment::kWaiting: {
          auto call = group.engine().Post(MakeFrame({1}, {.digest = 2}));
          flags.killed = 1;
          kill(getpid(), SIGKILL);
          break;
        }
        case Moment::kData:
        case Moment::kRestore: {
          auto call = group.engine().Post(MakeSpec({.restore = moment == Moment::kRestore}));
          LEAFPACK_CHILD_CHECK((*call)->AwaitDecision().ok(), "");
          LEAFPACK_CHILD_CHECK((*call)->EnterData().ok(), "");
          usleep(50'000);
          kill(getpid(), SIGKILL);
          break;
        }
      }
      return 1;
    }
    if (moment == Moment::kIdle || moment == Moment::kWaiting) {
      LEAFPACK_CHILD_CHECK(Eventually([&] { return flags.killed != 0; }), "");
      usleep(20'000);
    }
    ++flags.waiting;
    const absl::Time start = absl::Now();
    status = data ? SumData(group, values, {.restore = moment == Moment::kRestore})
                  : SumFrame(group, values, {.digest = 2});
    if (moment == Moment::kWaiting && status.ok()) {
      // Its part had come before its death was seen.
      LEAFPACK_CHILD_CHECK(values[0] == kRanks, values[0]);
    } else {
      LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kUnavailable, Text(status));
      LEAFPACK_CHILD_CHECK(GetErrorDetails(status).kind == ErrorKind::kPeerLost, Text(status));
      LEAFPACK_CHILD_CHECK(NamesOnly(status, victim), Text(status));
      LEAFPACK_CHILD_CHECK(GetErrorDetails(status).tree_unchanged == (moment != Moment::kData),
                           Text(status));
    }
    if (moment == Moment::kRestore) LEAFPACK_CHILD_CHECK(values[0] == 1, values[0]);
    // The deadline is a minute away: it was not what ended the call.
    LEAFPACK_CHILD_CHECK(absl::Now() - start < testing::kPatience / 2, "");
    // For good.
    status = SumFrame(group, values);
    LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kUnavailable, Text(status));
    LEAFPACK_CHILD_CHECK(NamesOnly(status, victim), Text(status));
    // Who leaves is named from then on, too.
    ++flags.through;
    LEAFPACK_CHILD_CHECK(Eventually([&] { return flags.through == kRanks - 1; }), "");
    return 0;
  });
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(codes[static_cast<size_t>(r)], r == victim ? 128 + SIGKILL : 0) << "rank " << r;
  }
}

TEST(StoppedRankTest, RankZeroPastTheDeadlineLeavesTheCallInDoubtAndTheGroupUsable) {
  TempDir dir;
  struct Flags {
    std::atomic<int> in_doubt, stopping;
  };
  auto& flags = Shared<Flags>();
  const auto body = [&](int rank) {
    Group group = MakeFileGroup(dir.path() + "/store", rank, kRanks);
    std::vector<float> values = {1};
    absl::Status status = SumFrame(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    values = {1};
    if (rank == 0) {
      flags.stopping = 1;
      kill(getpid(), SIGSTOP);
    } else {
      LEAFPACK_CHILD_CHECK(Eventually([&] { return flags.stopping != 0; }), "");
      usleep(50'000);
    }
    status = SumFrame(group, values, {.timeout = absl::Milliseconds(200)});
    if (rank == 0) {
      LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kCancelled, Text(status));
    } else {
      LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kDeadlineExceeded, Text(status));
      LEAFPACK_CHILD_CHECK(GetErrorDetails(status).outcome_unknown, Text(status));
      LEAFPACK_CHILD_CHECK(GetErrorDetails(status).tree_unchanged, Text(status));
      LEAFPACK_CHILD_CHECK(NamesOnly(status, 0), Text(status));
      ++flags.in_doubt;
    }
    LEAFPACK_CHILD_CHECK(values[0] == 1, values[0]);
    // Held until the doubt is resolved.
    status = SumFrame(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    LEAFPACK_CHILD_CHECK(values[0] == kRanks, values[0]);
    status = SumData(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    return 0;
  };
  std::vector<pid_t> pids;
  for (int r = 0; r < kRanks; ++r) pids.push_back(Fork([&, r] { return body(r); }));
  EXPECT_TRUE(Eventually([&] { return flags.in_doubt == kRanks - 1; }));
  kill(pids[0], SIGCONT);
  for (pid_t pid : pids) EXPECT_EQ(testing::Wait(pid), 0);
}

TEST(StoppedRankTest, AnotherRankInDataIsNamedAndTheGroupUsable) {
  TempDir dir;
  struct Flags {
    std::atomic<int> failed;
  };
  auto& flags = Shared<Flags>();
  constexpr int kStopped = 2;
  const auto body = [&](int rank) {
    Group group = MakeFileGroup(dir.path() + "/store", rank, kRanks);
    std::vector<float> values = {1};
    absl::Status status = SumData(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    if (rank == kStopped) {
      auto call = group.engine().Post(MakeSpec({.timeout = absl::Milliseconds(1500)}));
      LEAFPACK_CHILD_CHECK((*call)->AwaitDecision().ok(), "");
      LEAFPACK_CHILD_CHECK((*call)->EnterData().ok(), "");
      kill(getpid(), SIGSTOP);
      LEAFPACK_CHILD_CHECK(Eventually([&] { return !(*call)->Poll().ok(); }), "");
      status = (*call)->FinishData(absl::UnknownError("stopped"), {});
      LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kDeadlineExceeded, Text(status));
    } else {
      status = SumData(group, values, {.timeout = absl::Milliseconds(1500)});
      LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kDeadlineExceeded, Text(status));
      LEAFPACK_CHILD_CHECK(NamesOnly(status, kStopped), Text(status));
      ++flags.failed;
    }
    values = {1};
    status = SumData(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    LEAFPACK_CHILD_CHECK(values[0] == kRanks, values[0]);
    return 0;
  };
  std::vector<pid_t> pids;
  for (int r = 0; r < kRanks; ++r) pids.push_back(Fork([&, r] { return body(r); }));
  EXPECT_TRUE(Eventually([&] { return flags.failed == kRanks - 1; }));
  kill(pids[kStopped], SIGCONT);
  for (pid_t pid : pids) EXPECT_EQ(testing::Wait(pid), 0);
}

TEST(TcpStoreTest, FramesAndDataOverAStoreThatRankZeroServes) {
  struct Flags {
    std::atomic<int> port, through;
  };
  auto& flags = Shared<Flags>();
  const auto codes = OnProcesses(kRanks, [&](int rank) {
    Group group = testing::MakeTcpGroup(flags.port, rank, kRanks);
    for (int i = 0; i < 100; ++i) {
      std::vector<float> values = {1};
      const absl::Status status = i % 10 == 0 ? SumData(group, values) : SumFrame(group, values);
      LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
      LEAFPACK_CHILD_CHECK(values[0] == kRanks, values[0]);
    }
    // A new epoch, and with it a new connection to the store.
    if (rank == 1) Faults(group).fail_next_op = true;
    std::vector<float> values = {1};
    LEAFPACK_CHILD_CHECK(!SumData(group, values).ok(), "");
    values = {1};
    const absl::Status status = SumData(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    // The store must not go before the others are through with it.
    ++flags.through;
    LEAFPACK_CHILD_CHECK(Eventually([&] { return flags.through == kRanks; }), "");
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(kRanks, 0));
}

enum class Last { kFrame, kData, kRestore, kAsyncFrame };
enum class Exit { kUnderscore, kExit };

class LastCallTest : public ::testing::TestWithParam<std::tuple<Last, Exit>> {};
INSTANTIATE_TEST_SUITE_P(Kinds, LastCallTest,
                         ::testing::Combine(::testing::Values(Last::kFrame, Last::kData,
                                                              Last::kRestore, Last::kAsyncFrame),
                                            ::testing::Values(Exit::kUnderscore, Exit::kExit)));

TEST_P(LastCallTest, IsNotLostByAnExitRightAfterIt) {
  const Last last = std::get<0>(GetParam());
  const Exit exit_kind = std::get<1>(GetParam());
  // exit() also ends libtorch, which takes a while.
  const int rounds = exit_kind == Exit::kExit ? 2 : 10;
  for (int round = 0; round < rounds; ++round) {
    TempDir dir;
    const auto codes = OnProcesses(kRanks, [&](int rank) {
      // Leaked: no destructor runs before the process ends.
      static Group* const group = new Group(MakeFileGroup(dir.path() + "/store", rank, kRanks));
      std::vector<float> values = {1};
      absl::Status status;
      if (last == Last::kFrame) {
        status = SumFrame(*group, values);
      } else if (last == Last::kAsyncFrame) {
        auto call = group->engine().Post(MakeFrame(values, {.async = true}));
        status = call.status();
        if (status.ok()) status = (*call)->AwaitDecision();
        if (status.ok()) values = testing::FrameValues(**call);
      } else {
        status = SumData(*group, values, {.restore = last == Last::kRestore});
      }
      LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
      LEAFPACK_CHILD_CHECK(values[0] == kRanks, values[0]);
      if (exit_kind == Exit::kExit) exit(0);
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(kRanks, 0)) << "round " << round;
  }
}

TEST(ExitTest, CallsInFlightAreDrainedByTheExitHook) {
  TempDir dir;
  const auto codes = OnProcesses(kRanks, [&](int rank) {
    static Group* const group = new Group(MakeFileGroup(dir.path() + "/store", rank, kRanks));
    std::vector<float> values = {1};
    absl::Status status = SumFrame(*group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    if (rank == 1) {
      // Posted, not awaited: exit() has to see it through.
      static auto* const call = new absl::StatusOr<std::shared_ptr<Call>>(
          group->engine().Post(MakeFrame({1}, {.async = true})));
      LEAFPACK_CHILD_CHECK(call->ok(), "");
      exit(0);
    }
    usleep(200'000);
    values = {1};
    status = SumFrame(*group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(kRanks, 0));
}

TEST(ExitTest, AGroupWhoseOthersNeverComeDoesNotHoldTheExit) {
  TempDir dir;
  const pid_t pid = Fork([&] {
    const int rank = 1;
    static Group* const group = new Group(MakeFileGroup(dir.path() + "/store", rank, kRanks));
    std::vector<float> values = {1};
    const absl::Status status = SumFrame(*group, values, {.timeout = absl::Milliseconds(50)});
    LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kDeadlineExceeded, Text(status));
    auto call = group->engine().Post(MakeFrame({1}, {.async = true}));
    exit(0);
    return 0;
  });
  EXPECT_EQ(testing::Wait(pid), 0);
}

TEST(ForkTest, TheChildIsRefusedAndTheParentGoesOn) {
  TempDir dir;
  const auto codes = OnProcesses(2, [&](int rank) {
    Group group = MakeFileGroup(dir.path() + "/store", rank, 2);
    std::vector<float> values = {1};
    absl::Status status = SumData(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    const pid_t child = fork();
    if (child == 0) {
      status = SumFrame(group, values);
      const bool refused = status.code() == absl::StatusCode::kFailedPrecondition;
      group.Shutdown(absl::Seconds(1)).IgnoreError();
      {
        Group gone = std::move(group);
      }
      exit(refused ? 0 : 1);
    }
    LEAFPACK_CHILD_CHECK(testing::Wait(child) == 0, "child");
    for (int i = 0; i < 100; ++i) {
      status = SumFrame(group, values);
      LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    }
    status = SumData(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(ForkTest, AChildDoesNotHideTheDeathOfItsParent) {
  TempDir dir;
  struct Flags {
    std::atomic<int> seen;
  };
  auto& flags = Shared<Flags>();
  const auto codes = OnProcesses(2, [&](int rank) {
    Group group = MakeFileGroup(dir.path() + "/store", rank, 2);
    std::vector<float> values = {1};
    absl::Status status = SumFrame(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    if (rank == 1) {
      if (fork() == 0) {
        Eventually([&] { return flags.seen != 0; });
        _exit(0);
      }
      kill(getpid(), SIGKILL);
    }
    status = SumFrame(group, values);
    flags.seen = 1;
    LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kUnavailable, Text(status));
    return 0;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 128 + SIGKILL}));
}

TEST(ForkTest, AChildMayMakeGroupsOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer ends a child that starts threads after a fork with threads";
#endif
  TempDir dir;
  const auto codes = OnProcesses(2, [&](int rank) {
    Group group = MakeFileGroup(dir.path() + "/store", rank, 2);
    std::vector<float> values = {1};
    absl::Status status = SumFrame(group, values);
    LEAFPACK_CHILD_CHECK(status.ok(), Text(status));
    const pid_t child = Fork([&] {
      Group own = MakeFileGroup(dir.path() + "/children", rank, 2);
      std::vector<float> sum = {1};
      const absl::Status s = SumData(own, sum);
      LEAFPACK_CHILD_CHECK(s.ok(), Text(s));
      return sum[0] == 2 ? 0 : 1;
    });
    LEAFPACK_CHILD_CHECK(testing::Wait(child) == 0, "child");
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace leafpack
