// Ranks that are killed, stopped, late or interrupted, before and during the data of reduce and
// reduce_scatter. Each test is a row of the table in docs/errors.md, with real processes.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/fault_testutil.h"
#include "distributed/tree/reduce.h"
#include "testing/faults.h"
#include "testing/matchers.h"
#include "testing/processes.h"

namespace leafpack {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Eq;
using ::testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Seconds(40);
// Deadline of calls that are meant to reach it, and of those whose data must be under way by then.
constexpr absl::Duration kShort = absl::Milliseconds(300);
constexpr absl::Duration kLessShort = absl::Seconds(2);
constexpr absl::Duration kSoon = absl::Seconds(15);

enum class Collective { kReduce, kReduceScatter };

struct Setting {
  Collective collective;
  int ranks;
  int faulty;
  int root;  // of reduce
  OnFailure on_failure = OnFailure::kReport;
};

std::string SettingName(const ::testing::TestParamInfo<Setting>& info) {
  const Setting& s = info.param;
  return absl::StrCat(s.collective == Collective::kReduce ? absl::StrCat("ReduceTo", s.root)
                                                          : "ReduceScatter",
                      "Of", s.ranks, "Faulty", s.faulty,
                      s.on_failure == OnFailure::kRestore ? "Restore" : "");
}

std::vector<Setting> Settings() {
  using enum Collective;
  return {{kReduce, 2, 1, 0},
          {kReduce, 2, 0, 0, OnFailure::kRestore},
          {kReduce, 3, 1, 2, OnFailure::kRestore},
          {kReduce, 4, 3, 3},
          {kReduceScatter, 2, 0, -1},
          {kReduceScatter, 3, 2, -1, OnFailure::kRestore},
          {kReduceScatter, 4, 1, -1}};
}

// The trees of one rank: one, or one for each rank.
struct Trees {
  std::vector<TensorDict> trees;
  std::vector<Snapshot> before;

  Trees(const Setting& setting, int rank, int64_t leaves, int64_t elements) {
    const int count = setting.collective == Collective::kReduce ? 1 : setting.ranks;
    for (int i = 0; i < count; ++i) {
      TensorDict& tree = trees.emplace_back();
      for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        EXPECT_THAT(tree.Set({"leaf", leaf}, at::empty({elements}, at::kFloat)), IsOk());
      }
      Fill(tree, rank);
      before.emplace_back(tree);
    }
  }
};

absl::Status CallOnce(const Setting& setting, const Trees& trees, const Group& group,
                 const ReduceOptions& options) {
  if (setting.collective == Collective::kReduce) {
    return Reduce(trees.trees[0], GroupRank(setting.root), group, options);
  }
  return ReduceScatter(trees.trees, group, options);
}

// After an error: leaves that take no result are as they were; the others as the error says.
void ExpectTold(const Setting& setting, const absl::Status& status, const Trees& trees, int rank) {
  const ErrorDetails details = GetErrorDetails(status);
  for (size_t i = 0; i < trees.trees.size(); ++i) {
    const bool written = setting.collective == Collective::kReduce ? rank == setting.root
                                                                   : static_cast<int>(i) == rank;
    if (!written || details.tree_unchanged || setting.on_failure == OnFailure::kRestore) {
      trees.before[i].ExpectUnchanged();
      continue;
    }
    TensorDict done;
    size_t found = 0;
    trees.trees[i].Visit([&](const NestedKey& path, const at::Tensor& leaf) {
      const NestedKey full = setting.collective == Collective::kReduce
                                 ? path
                                 : NestedKey{KeyComponent(rank)}.Join(path);
      if (std::ranges::count(details.paths_done, full.ToString()) == 0) return;
      ++found;
      EXPECT_THAT(done.Set(path, leaf), IsOk());
    });
    EXPECT_EQ(found, details.paths_done.size()) << status;
    ExpectSummed(done, setting.ranks);
  }
  if (details.tree_unchanged) {
    EXPECT_THAT(details.paths_done, IsEmpty()) << status;
  }
}

class ReduceBeforeData : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Roles, ReduceBeforeData, ::testing::ValuesIn(Settings()), SettingName);

TEST_P(ReduceBeforeData, ALateRankIsNamedAndTold) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    ASSERT_TRUE(rank.Barrier(0));
    const Trees trees(setting, rank.rank(), 2, 100'000);
    const ReduceOptions options = {
        .timeout = rank.rank() == setting.faulty ? kTimeout : kShort,
        .on_failure = setting.on_failure};
    if (rank.rank() == setting.faulty) {
      ASSERT_TRUE(rank.Await(1, setting.ranks - 1));
    }
    const absl::Status status = CallOnce(setting, trees, group, options);
    if (rank.rank() == setting.faulty) {
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    } else {
      rank.Signal(1);
      EXPECT_THAT(status.code(),
                  AnyOf(Eq(absl::StatusCode::kDeadlineExceeded), Eq(absl::StatusCode::kCancelled)))
          << status;
    }
    EXPECT_TRUE(GetErrorDetails(status).tree_unchanged) << status;
    for (const Snapshot& before : trees.before) before.ExpectUnchanged();
    ExpectUsableSoon(rank, group, 2);
  });
}

TEST_P(ReduceBeforeData, AKilledRankIsNamedAtOnce) {
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
    const Trees trees(setting, rank.rank(), 2, 100'000);
    const absl::Time start = absl::Now();
    for (int i = 0; i < 2; ++i) {
      ExpectFault(CallOnce(setting, trees, group, {.on_failure = setting.on_failure}),
                  absl::StatusCode::kUnavailable, ErrorKind::kPeerLost, {setting.faulty});
    }
    EXPECT_LT(absl::Now() - start, kSoon);
    for (const Snapshot& before : trees.before) before.ExpectUnchanged();
    rank.Signal(1);
    EXPECT_TRUE(rank.Await(1, setting.ranks - 1));
  });
}

// Enough bytes that data is still under way when the faulty rank's first look at its interrupt, some
// 50 ms after the data began, brings the fault.
constexpr int64_t kLeaves = 24;
constexpr int64_t kBytes = int64_t{160} << 20;

Trees LongTrees(const Setting& setting, int rank) {
  const int64_t trees = setting.collective == Collective::kReduce ? 1 : setting.ranks;
  return Trees(setting, rank, kLeaves, kBytes / kLeaves / trees / 4);
}

// The faulty rank comes last, and `fault` strikes it while data moves.
absl::Status RunLong(const Setting& setting, RankContext& rank, const Trees& trees,
                     const Group& group, absl::Duration timeout, InterruptCheck fault) {
  ReduceOptions options = {.timeout = timeout, .on_failure = setting.on_failure};
  if (rank.rank() == setting.faulty) {
    EXPECT_TRUE(rank.Await(60, setting.ranks - 1));
    absl::SleepFor(absl::Milliseconds(50));
    options.interrupt = std::move(fault);
  } else {
    rank.Signal(60);
  }
  return CallOnce(setting, trees, group, options);
}

class ReduceDuringData : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Roles, ReduceDuringData, ::testing::ValuesIn(Settings()), SettingName);

TEST_P(ReduceDuringData, AKilledRankIsNamedSoon) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.ExpectExit(setting.faulty, {0, SIGKILL});
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const Trees trees = LongTrees(setting, rank.rank());
    ASSERT_TRUE(rank.Barrier(0));
    const absl::Time start = absl::Now();
    const absl::Status status = RunLong(setting, rank, trees, group, kTimeout, [] {
      KillSelf();
      return true;
    });
    ExpectFault(status, absl::StatusCode::kUnavailable, ErrorKind::kPeerLost, {setting.faulty});
    EXPECT_LT(absl::Now() - start, kSoon);
    ExpectTold(setting, status, trees, rank.rank());
    rank.Signal(1);
    EXPECT_TRUE(rank.Await(1, setting.ranks - 1));
  });
}

TEST_P(ReduceDuringData, AStoppedRankIsNamedAndTheGroupIsUsableWhenItGoesOn) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.SetTimeout(absl::Seconds(100));
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const Trees trees = LongTrees(setting, rank.rank());
    ASSERT_TRUE(rank.Barrier(0));
    bool stopped = false;
    const absl::Status status =
        RunLong(setting, rank, trees, group, kLessShort, [&stopped] {
          // The others let it go on when they have given up.
          if (!std::exchange(stopped, true)) StopSelfFor(absl::Seconds(30));
          return false;
        });
    EXPECT_FALSE(status.ok());
    if (rank.rank() != setting.faulty) {
      EXPECT_THAT(status.code(),
                  AnyOf(Eq(absl::StatusCode::kDeadlineExceeded), Eq(absl::StatusCode::kCancelled)))
          << status;
      std::vector<int> named;
      for (const GlobalRank r : GetErrorDetails(status).ranks) named.push_back(r.value());
      EXPECT_THAT(named, Contains(setting.faulty)) << status;
      LetGoOn(rank, setting.faulty, 2);
    }
    ExpectTold(setting, status, trees, rank.rank());
    ExpectUsableSoon(rank, group, 1);
  });
}

TEST_P(ReduceDuringData, AnInterruptEndsTheCallOnAllRanks) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const Trees trees = LongTrees(setting, rank.rank());
    ASSERT_TRUE(rank.Barrier(0));
    const absl::Time start = absl::Now();
    const absl::Status status =
        RunLong(setting, rank, trees, group, kTimeout, [] { return true; });
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    if (rank.rank() == setting.faulty) {
      EXPECT_EQ(static_cast<int>(GetErrorDetails(status).kind),
                static_cast<int>(ErrorKind::kInterrupted))
          << status;
    }
    EXPECT_LT(absl::Now() - start, kSoon);
    ExpectTold(setting, status, trees, rank.rank());
    ExpectUsableSoon(rank, group, 1);
  });
}

}  // namespace
}  // namespace leafpack
