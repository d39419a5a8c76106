// Ranks that are killed, stopped, late or interrupted, before and during the data of an all-reduce:
// who is told what, what is left in the tree, and whether the group can be used again. Each test is a
// row of the table in docs/errors.md, with real processes.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/fault_testutil.h"
#include "distributed/tree/share.h"
#include "testing/faults.h"
#include "testing/matchers.h"
#include "testing/processes.h"

namespace leafpack {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Deadline of calls that are not meant to reach it. An error that takes this long is a time-out.
constexpr absl::Duration kTimeout = absl::Seconds(40);
// Deadline of calls that are meant to reach it.
constexpr absl::Duration kShort = absl::Milliseconds(300);
// The same, of calls whose data must be under way by then.
constexpr absl::Duration kLessShort = absl::Seconds(2);
// How long a rank is stopped at most; the others let it go on when they have given up.
constexpr absl::Duration kStopped = absl::Seconds(30);
// By then at the latest an error that needs no deadline is there, on a loaded machine too.
constexpr absl::Duration kSoon = absl::Seconds(15);

std::vector<int> RanksOf(const absl::Status& status) {
  std::vector<int> ranks;
  for (const GlobalRank rank : GetErrorDetails(status).ranks) ranks.push_back(rank.value());
  return ranks;
}

std::string SizeName(TreeSize size) { return size == TreeSize::kFrame ? "Frame" : "Data"; }

struct Setting {
  int ranks;
  int faulty;
  TreeSize size;
};

std::string SettingName(const ::testing::TestParamInfo<Setting>& info) {
  return absl::StrCat(info.param.ranks, "RanksFaulty", info.param.faulty, SizeName(info.param.size));
}

// Every role, both sizes.
const auto kSettings =
    ::testing::Values(Setting{2, 0, TreeSize::kFrame}, Setting{2, 1, TreeSize::kData},
                      Setting{3, 0, TreeSize::kData}, Setting{3, 1, TreeSize::kFrame},
                      Setting{4, 3, TreeSize::kFrame}, Setting{4, 2, TreeSize::kData});

class BeforeData : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Roles, BeforeData, kSettings, SettingName);

// A rank comes after the others' deadline. They name it, it is told that they gave up, the group can
// be used.
TEST_P(BeforeData, ALateRankIsNamedAndTold) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const TensorDict tree = MakeTestTree(rank.rank(), setting.size);
    const Snapshot before(tree);
    if (rank.rank() == setting.faulty) {
      ASSERT_TRUE(rank.Await(0, setting.ranks - 1));  // all the others have given up
      const absl::Status status = AllReduce(tree, group, {.name = "late"});
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_EQ(static_cast<int>(GetErrorDetails(status).kind), static_cast<int>(ErrorKind::kDeadline))
          << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("given up by rank"));
      EXPECT_THAT(RanksOf(status), Not(Contains(setting.faulty))) << status;
    } else {
      const absl::Time start = absl::Now();
      const absl::Status status = AllReduce(tree, group, {.timeout = kShort, .name = "late"});
      const absl::Duration took = absl::Now() - start;
      EXPECT_LT(took, kSoon);
      if (status.code() == absl::StatusCode::kCancelled) {
        // Another rank's deadline came first, by a little.
        EXPECT_THAT(std::string(status.message()), HasSubstr("given up by rank"));
      } else {
        // The first deadline of all that wait ends the call.
        if (setting.ranks == 2) {
          EXPECT_GE(took, kShort * 0.9);
        }
        ExpectFault(status, absl::StatusCode::kDeadlineExceeded, ErrorKind::kDeadline,
                    {setting.faulty});
      }
      rank.Signal(0);
    }
    before.ExpectUnchanged();
    ASSERT_TRUE(rank.Barrier(1));
    ExpectUsable(group);
  });
}

// A rank is stopped when the others call: the same, and it goes on afterwards.
TEST_P(BeforeData, AStoppedRankIsNamedAndTheGroupIsUsableWhenItGoesOn) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    ASSERT_TRUE(rank.Barrier(0));
    const TensorDict tree = MakeTestTree(rank.rank(), setting.size);
    const Snapshot before(tree);
    if (rank.rank() == setting.faulty) {
      StopSelfFor(kStopped);
      EXPECT_THAT(AllReduce(tree, group), Not(IsOk()));
    } else {
      const absl::Time until = absl::Now() + absl::Seconds(30);
      while (!IsStopped(rank.PidOf(setting.faulty)) && absl::Now() < until) {
        absl::SleepFor(absl::Milliseconds(2));
      }
      const absl::Time start = absl::Now();
      const absl::Status status = AllReduce(tree, group, {.timeout = kShort});
      const absl::Duration took = absl::Now() - start;
      // At most the deadline, and a second of grace when rank 0 does not answer; the rest is slack.
      EXPECT_LT(took, kSoon);
      if (status.code() != absl::StatusCode::kCancelled) {
        ExpectFault(status, absl::StatusCode::kDeadlineExceeded, ErrorKind::kDeadline,
                    {setting.faulty});
      }
      const ErrorDetails details = GetErrorDetails(status);
      EXPECT_TRUE(details.tree_unchanged) << status;
      EXPECT_EQ(details.outcome_unknown, setting.faulty == 0) << status;
      LetGoOn(rank, setting.faulty, 2);
    }
    before.ExpectUnchanged();
    ExpectUsableSoon(rank, group, 1);
  });
}

// A rank is killed while the others wait for it. They are told at once, and ever after.
TEST_P(BeforeData, AKilledRankIsNamedAtOnce) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.ExpectExit(setting.faulty, {0, SIGKILL});
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    ASSERT_TRUE(rank.Barrier(0));
    if (rank.rank() == setting.faulty) {
      absl::SleepFor(absl::Milliseconds(300));  // so that the others are waiting
      KillSelf();
    }
    const TensorDict tree = MakeTestTree(rank.rank(), setting.size);
    const Snapshot before(tree);
    const absl::Time start = absl::Now();
    for (int i = 0; i < 3; ++i) {
      ExpectFault(AllReduce(tree, group), absl::StatusCode::kUnavailable, ErrorKind::kPeerLost,
                  {setting.faulty});
    }
    EXPECT_LT(absl::Now() - start, kSoon);
    before.ExpectUnchanged();
    // Who leaves early is named as well.
    rank.Signal(1);
    EXPECT_TRUE(rank.Await(1, setting.ranks - 1));
  });
}

// A rank that was killed before the channel was made is known by the deadline only.
TEST_P(BeforeData, ARankKilledBeforeItConnectedIsNamedAtTheDeadline) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.ExpectExit(setting.faulty, {0, SIGKILL});
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ASSERT_TRUE(rank.Barrier(0));
    if (rank.rank() == setting.faulty) KillSelf();
    const TensorDict tree = MakeTestTree(rank.rank(), setting.size);
    const Snapshot before(tree);
    for (int i = 0; i < 2; ++i) {
      const absl::Status status = AllReduce(tree, group, {.timeout = kShort});
      EXPECT_THAT(status.code(),
                  AnyOf(Eq(absl::StatusCode::kDeadlineExceeded), Eq(absl::StatusCode::kCancelled)))
          << status;
      if (status.code() == absl::StatusCode::kDeadlineExceeded) {
        EXPECT_THAT(RanksOf(status), Contains(setting.faulty)) << status;
      }
    }
    before.ExpectUnchanged();
  });
}

// A wait is interrupted before the data began.
TEST_P(BeforeData, AnInterruptEndsTheCallOnAllRanks) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const int late = (setting.faulty + 1) % setting.ranks;
    const TensorDict tree = MakeTestTree(rank.rank(), setting.size);
    const Snapshot before(tree);
    AllReduceOptions options;
    const absl::Time start = absl::Now();
    if (rank.rank() == setting.faulty) {
      options.interrupt = [&] { return absl::Now() - start > absl::Milliseconds(300); };
      const absl::Status status = AllReduce(tree, group, options);
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_EQ(static_cast<int>(GetErrorDetails(status).kind),
                static_cast<int>(ErrorKind::kInterrupted))
          << status;
      rank.Signal(0);
    } else {
      if (rank.rank() == late) {
        ASSERT_TRUE(rank.Await(0));  // so that the call is never granted
      }
      const absl::Status status = AllReduce(tree, group, options);
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_EQ(RanksOf(status), std::vector<int>{setting.faulty}) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("interrupted"));
    }
    EXPECT_LT(absl::Now() - start, kSoon);
    before.ExpectUnchanged();
    ASSERT_TRUE(rank.Barrier(1));
    ExpectUsable(group);
  });
}

// A rank leaves by the front door while the others go on.
TEST_P(BeforeData, ARankThatLeftIsNamed) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.Run([&](RankContext& rank) {
    Group group = MakeTestGroup(rank, kTimeout);
    const TensorDict tree = MakeTestTree(rank.rank(), setting.size);
    ASSERT_THAT(AllReduce(tree, group), IsOk());
    ExpectSummed(tree, setting.ranks);
    if (rank.rank() == setting.faulty) return;  // at once after the last call
    const Snapshot before(tree);
    const absl::Time start = absl::Now();
    ExpectFault(AllReduce(tree, group), absl::StatusCode::kUnavailable, ErrorKind::kPeerLost,
                {setting.faulty});
    EXPECT_LT(absl::Now() - start, kSoon);
    before.ExpectUnchanged();
    rank.Signal(1);
    EXPECT_TRUE(rank.Await(1, setting.ranks - 1));
  });
}

// During data: a tree of many messages, and a fault after the first of them has arrived.

// Whether the leaves stand in memory that the ranks share. Small ones would be copied then, and what is reduced by
// vectors of the machine would be over before a rank can be stopped in the midst of it.
const bool kShared = std::getenv("LEAFPACK_TEST_SHARE") != nullptr;
const int64_t kLeaves = kShared ? 256 : 4096;
const int64_t kLeafElements = kShared ? 131'072 : 4096;
const at::ScalarType kLeafType = kShared ? at::kHalf : at::kFloat;

TensorDict MakeLongTree(int rank, const Group& group) {
  TensorDict tree;
  for (int64_t i = 0; i < kLeaves; ++i) {
    EXPECT_THAT(tree.Set({"leaf", i}, at::empty({kLeafElements}, kLeafType)), IsOk());
  }
  Fill(tree, rank);
  if (!kShared) return tree;
  absl::StatusOr<TensorDict> shared = Share(tree, group);
  EXPECT_THAT(shared, IsOk());
  return shared.ok() ? *std::move(shared) : tree;
}

AllReduceOptions LongCall(OnFailure on_failure, absl::Duration timeout = kTimeout) {
  AllReduceOptions options;
  options.bucketing = Bucketing::PerLeaf();
  options.timeout = timeout;
  options.on_failure = on_failure;
  options.max_in_flight_bytes = 32 << 10;  // two messages
  return options;
}

// Starts the long call and returns when its data is under way: a message of it has arrived. With
// restore none shows before all have, so there it is a moment after all ranks have made the call: short
// beside the tens of milliseconds that the fastest backend needs for this data.
constexpr int kCalling = 60;  // the event of ranks that make the long call
absl::StatusOr<TreeWork> StartLongCall(RankContext& rank, const TensorDict& tree, const Group& group,
                                       const AllReduceOptions& options) {
  absl::StatusOr<TreeWork> work = AllReduceAsync(tree, group, options);
  if (!work.ok()) return work;
  EXPECT_TRUE(rank.Await(kCalling, rank.size() - 1));
  if (options.on_failure == OnFailure::kRestore) {
    absl::SleepFor(absl::Milliseconds(5));
    return work;
  }
  const absl::Time until = absl::Now() + absl::Seconds(30);
  while (!work->bucket(0).IsDone() && !work->IsDone() && absl::Now() < until) {
    absl::SleepFor(absl::Microseconds(100));
  }
  EXPECT_TRUE(work->bucket(0).IsDone());
  return work;
}

// The long call on the other ranks.
absl::Status LongAllReduce(RankContext& rank, const TensorDict& tree, const Group& group,
                           const AllReduceOptions& options) {
  rank.Signal(kCalling);
  return AllReduce(tree, group, options);
}

// What an error during data must leave: with restore, everything as it was; else the paths that the
// error says are done hold the sum, and what it calls unchanged is unchanged.
void ExpectTold(const absl::Status& status, const TensorDict& tree, const Snapshot& before, int ranks,
                OnFailure on_failure) {
  const ErrorDetails details = GetErrorDetails(status);
  if (on_failure == OnFailure::kRestore) {
    EXPECT_TRUE(details.tree_unchanged) << status;
    EXPECT_THAT(details.paths_done, IsEmpty()) << status;
    before.ExpectUnchanged();
    return;
  }
  if (details.tree_unchanged) {
    before.ExpectUnchanged();
    EXPECT_THAT(details.paths_done, IsEmpty()) << status;
  }
  // In shared memory a late rank may find that the others had done all of theirs when they gave up.
  if (!kShared) {
    EXPECT_LT(details.paths_done.size(), static_cast<size_t>(kLeaves)) << status;
  }
  const std::set<std::string> paths_done(details.paths_done.begin(), details.paths_done.end());
  TensorDict done;
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    if (paths_done.count(path.ToString()) > 0) {
      EXPECT_THAT(done.Set(path, leaf), IsOk());
    }
  });
  EXPECT_EQ(done.num_leaves(), paths_done.size()) << status;
  ExpectSummed(done, ranks);
}

struct DataSetting {
  int ranks;
  int faulty;
  OnFailure on_failure;
};

std::string DataSettingName(const ::testing::TestParamInfo<DataSetting>& info) {
  return absl::StrCat(info.param.ranks, "RanksFaulty", info.param.faulty,
                      info.param.on_failure == OnFailure::kRestore ? "Restore" : "Report");
}

class DuringData : public ::testing::TestWithParam<DataSetting> {};
// With restore leaves are staged, wherever they stand: one run of these tests is enough for that.
std::vector<DataSetting> DataSettings() {
  std::vector<DataSetting> settings = {{2, 0, OnFailure::kReport},
                                       {2, 1, OnFailure::kRestore},
                                       {3, 1, OnFailure::kReport},
                                       {3, 0, OnFailure::kRestore},
                                       {4, 3, OnFailure::kReport}};
  if (kShared) {
    std::erase_if(settings, [](const DataSetting& s) { return s.on_failure == OnFailure::kRestore; });
    settings.push_back({2, 1, OnFailure::kReport});
  }
  return settings;
}
INSTANTIATE_TEST_SUITE_P(Roles, DuringData, ::testing::ValuesIn(DataSettings()), DataSettingName);

TEST_P(DuringData, AKilledRankIsNamedSoon) {
  const DataSetting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.ExpectExit(setting.faulty, {0, SIGKILL});
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const TensorDict tree = MakeLongTree(rank.rank(), group);
    const Snapshot before(tree);
    ASSERT_TRUE(rank.Barrier(0));
    if (rank.rank() == setting.faulty) {
      const absl::StatusOr<TreeWork> work =
          StartLongCall(rank, tree, group, LongCall(setting.on_failure));
      KillSelf();
    }
    const absl::Time start = absl::Now();
    const absl::Status status = LongAllReduce(rank, tree, group, LongCall(setting.on_failure));
    ExpectFault(status, absl::StatusCode::kUnavailable, ErrorKind::kPeerLost, {setting.faulty});
    EXPECT_LT(absl::Now() - start, kSoon);
    ExpectTold(status, tree, before, setting.ranks, setting.on_failure);
    const TensorDict next = MakeTestTree(rank.rank(), TreeSize::kFrame);
    ExpectFault(AllReduce(next, group), absl::StatusCode::kUnavailable, ErrorKind::kPeerLost,
                {setting.faulty});
    ExpectFilled(next, rank.rank());
    rank.Signal(1);
    EXPECT_TRUE(rank.Await(1, setting.ranks - 1));
  });
}

TEST_P(DuringData, AStoppedRankIsNamedAndTheGroupIsUsableWhenItGoesOn) {
  const DataSetting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.SetTimeout(absl::Seconds(100));
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const TensorDict tree = MakeLongTree(rank.rank(), group);
    const Snapshot before(tree);
    ASSERT_TRUE(rank.Barrier(0));
    const AllReduceOptions options = LongCall(setting.on_failure, kLessShort);
    if (rank.rank() == setting.faulty) {
      const absl::StatusOr<TreeWork> work = StartLongCall(rank, tree, group, options);
      ASSERT_THAT(work, IsOk());
      StopSelfFor(kStopped);
      const absl::Status status = work->Wait();
      EXPECT_THAT(status, Not(IsOk()));
      ExpectTold(status, tree, before, setting.ranks, setting.on_failure);
      rank.Signal(3);
    } else {
      const absl::Time start = absl::Now();
      const absl::Status status = LongAllReduce(rank, tree, group, options);
      EXPECT_LT(absl::Now() - start, kSoon);
      const Snapshot after(tree);
      LetGoOn(rank, setting.faulty, 2);
      EXPECT_THAT(status.code(),
                  AnyOf(Eq(absl::StatusCode::kDeadlineExceeded), Eq(absl::StatusCode::kCancelled)))
          << status;
      EXPECT_THAT(RanksOf(status), Contains(setting.faulty)) << status;
      EXPECT_EQ(GetErrorDetails(status).outcome_unknown, setting.faulty == 0) << status;
      ExpectTold(status, tree, before, setting.ranks, setting.on_failure);
      // What the late rank still does is not seen here.
      EXPECT_TRUE(rank.Await(3));
      after.ExpectUnchanged();
    }
    ExpectUsableSoon(rank, group, 1);
    if (!kShared) return;
    // The leaves are ordinary ones here, and perhaps not everywhere.
    Fill(tree, rank.rank());
    EXPECT_THAT(AllReduce(tree, group), IsOk());
    ExpectSummed(tree, setting.ranks);
  });
}

TEST_P(DuringData, AnInterruptEndsTheCallOnAllRanks) {
  const DataSetting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.SetTimeout(absl::Seconds(100));
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const TensorDict tree = MakeLongTree(rank.rank(), group);
    const Snapshot before(tree);
    ASSERT_TRUE(rank.Barrier(0));
    AllReduceOptions options = LongCall(setting.on_failure);
    absl::Status status;
    if (rank.rank() == setting.faulty) {
      const absl::StatusOr<TreeWork> work = StartLongCall(rank, tree, group, options);
      ASSERT_THAT(work, IsOk());
      status = work->Wait(absl::InfiniteDuration(), [] { return true; });
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
        EXPECT_EQ(static_cast<int>(GetErrorDetails(status).kind),
                  static_cast<int>(ErrorKind::kInterrupted))
            << status;
      }
    } else {
      status = LongAllReduce(rank, tree, group, options);
      if (!status.ok()) {
        EXPECT_THAT(RanksOf(status), Contains(setting.faulty)) << status;
      }
    }
    // A rank may have been through already; with restore all or none are.
    rank.Signal(status.ok() ? 1 : 2);
    if (status.ok()) {
      ExpectSummed(tree, setting.ranks);
    } else {
      ExpectTold(status, tree, before, setting.ranks, setting.on_failure);
    }
    ASSERT_TRUE(rank.Barrier(3));
    if (setting.on_failure == OnFailure::kRestore) {
      EXPECT_THAT(rank.Count(1), AnyOf(Eq(0), Eq(setting.ranks)));
    }
    ExpectUsableSoon(rank, group, 4);
  });
}

// Rank 1 wants a shorter deadline than the data needs (rank 0 is stopped for a while meanwhile, so the
// data cannot end): the call fails on rank 1, and all are in step again.
TEST(DuringDataMore, ADeadlineDuringDataIsTold) {
  for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
    if (kShared && on_failure == OnFailure::kRestore) continue;
    RankProcesses job(3);
    job.SetTimeout(absl::Seconds(100));
    job.Run([&](RankContext& rank) {
      const Group group = MakeTestGroup(rank, kTimeout);
      ExpectUsable(group);
      const TensorDict tree = MakeLongTree(rank.rank(), group);
      const Snapshot before(tree);
      ASSERT_TRUE(rank.Barrier(0));
      absl::Status status;
      if (rank.rank() == 2) {
        const absl::StatusOr<TreeWork> work = StartLongCall(rank, tree, group, LongCall(on_failure));
        ASSERT_THAT(work, IsOk());
        StopSelfFor(kStopped);
        status = work->Wait();
      } else {
        status = LongAllReduce(
            rank, tree, group, LongCall(on_failure, rank.rank() == 1 ? kLessShort : kTimeout));
        LetGoOn(rank, 2, 2);
      }
      EXPECT_THAT(status, Not(IsOk()));
      if (rank.rank() == 1) {
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_THAT(RanksOf(status), Contains(2)) << status;
      }
      ExpectTold(status, tree, before, 3, on_failure);
      ExpectUsableSoon(rank, group, 1);
    });
  }
}

// Exit right after the last call, of both kinds, async too: every rank has its result.
TEST(Exit, RightAfterTheLastCall) {
  for (const TreeSize size : {TreeSize::kFrame, TreeSize::kData}) {
    for (int leaver = 0; leaver < 3; ++leaver) {
      RankProcesses job(3);
      job.Run([&](RankContext& rank) {
        const Group group = MakeTestGroup(rank, kTimeout);
        const TensorDict tree = MakeTestTree(rank.rank(), size);
        if (rank.rank() != leaver) absl::SleepFor(absl::Milliseconds(50 * rank.rank()));
        ASSERT_THAT(AllReduce(tree, group), IsOk());
        ExpectSummed(tree, 3);
        if (rank.rank() == leaver) _exit(0);  // as a child of multiprocessing: no handlers run
      });
    }
  }
}

// Interrupted data phases leave no thread and no descriptor behind.
TEST(Leaks, FailedCallsLeaveNothing) {
  RankProcesses job(2);
  job.SetTimeout(absl::Seconds(150));
  job.Run([](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    int threads = 0, descriptors = 0;
    for (int i = 0; i < 12; ++i) {
      const TensorDict tree = MakeTestTree(rank.rank(), int64_t{8} << 20);
      AllReduceOptions options;
      options.bucketing = Bucketing::PerLeaf();
      if (rank.rank() == 1) {
        const absl::Time start = absl::Now();
        options.interrupt = [start] { return absl::Now() - start > absl::Milliseconds(1); };
      }
      (void)AllReduce(tree, group, options);
      ExpectUsableSoon(rank, group, 10 + i);
      if (::testing::Test::HasFailure()) return;
      if (i == 3) {
        threads = CountThreads();
        descriptors = CountDescriptors();
      }
    }
    EXPECT_LE(CountThreads(), threads + 4);  // at most 4 contexts that are being ended
    EXPECT_LE(CountDescriptors(), descriptors + 16);
  });
}

}  // namespace
}  // namespace leafpack
