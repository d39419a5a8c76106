// Ranks that are killed or stopped at any point of a collective that moves trees, with real processes:
// every surviving rank ends soon, with the result or with an error that names the rank.
#include <signal.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/barrier.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/fault_testutil.h"
#include "testing/faults.h"
#include "testing/matchers.h"
#include "testing/processes.h"

namespace leafpack {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Eq;

// Deadline of calls that are not meant to reach it. An error that takes this long is a time-out.
constexpr absl::Duration kTimeout = absl::Seconds(40);
// Deadlines of calls that are meant to reach it: before data, and during.
constexpr absl::Duration kShort = absl::Milliseconds(300);
constexpr absl::Duration kLessShort = absl::Milliseconds(800);
// By then at the latest an error that needs no deadline is there, on a loaded machine too.
constexpr absl::Duration kSoon = absl::Seconds(15);
constexpr int64_t kElements = 1 << 20;  // 4 MiB a tree
constexpr size_t kBytes = size_t{4} << 20;

struct Collective {
  const char* name;
  std::function<absl::Status(const Group&, const TensorDict&, const CallOptions&)> call;
};

bool IsRank(const Group& group, int rank) { return group.rank().value() == rank; }

// What Broadcast of a rank without a tree, Gather to the last rank, ... are called with. All of them.
const std::vector<Collective>& Collectives() {
  using Options = CallOptions;
  static const auto* const all = new std::vector<Collective>{
      {"Broadcast",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         return Broadcast(tree, GroupRank(0), group, options).status();
       }},
      {"BroadcastNew",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         return Broadcast(IsRank(group, 1) ? std::optional<TreeArg>(tree) : std::nullopt, GroupRank(1),
                          group, options)
             .status();
       }},
      {"AllGather",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         return AllGather(tree, group, options).status();
       }},
      {"AllGatherJoined",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         return AllGatherJoined(tree, Joining::kConcat, std::nullopt, group, options).status();
       }},
      {"Gather",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         return Gather(tree, GroupRank(group.size() - 1), group, options).status();
       }},
      {"GatherAndStack",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         return GatherAndStack(tree, GroupRank(0), group, options).status();
       }},
      {"Scatter",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         std::vector<TreeArg> trees;
         if (IsRank(group, 0)) trees.assign(static_cast<size_t>(group.size()), tree);
         return Scatter(std::nullopt, trees, GroupRank(0), group, options).status();
       }},
      {"ScatterInPlace",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         std::vector<TreeArg> trees;
         if (IsRank(group, 1)) trees.assign(static_cast<size_t>(group.size()), tree);
         return Scatter(tree, trees, GroupRank(1), group, options).status();
       }},
      {"AllToAll",
       [](const Group& group, const TensorDict& tree, const Options& options) {
         return AllToAll(std::vector<TreeArg>(static_cast<size_t>(group.size()), tree), group, options)
             .status();
       }},
      {"Barrier",
       [](const Group& group, const TensorDict&, const Options& options) {
         return Barrier(group, {.timeout = options.timeout});
       }},
      {"BroadcastBytes",
       [](const Group& group, const TensorDict&, const Options& options) {
         return BroadcastBytes(std::string(kBytes, 'x'), GroupRank(1), group, options).status();
       }},
      {"AllGatherBytes",
       [](const Group& group, const TensorDict&, const Options& options) {
         const size_t size = kBytes + static_cast<size_t>(group.rank().value());
         return AllGatherBytes(std::string(size, 'x'), group, options).status();
       }},
      {"GatherBytes",
       [](const Group& group, const TensorDict&, const Options& options) {
         return GatherBytes(std::string(kBytes, 'x'), GroupRank(0), group, options).status();
       }},
      {"ScatterBytes",
       [](const Group& group, const TensorDict&, const Options& options) {
         std::vector<std::string> data;
         if (IsRank(group, 0)) {
           data.assign(static_cast<size_t>(group.size()), std::string(kBytes, 'x'));
         }
         return ScatterBytes(data, GroupRank(0), group, options).status();
       }},
  };
  return *all;
}

std::vector<int> RanksOf(const absl::Status& status) {
  std::vector<int> ranks;
  for (const GlobalRank rank : GetErrorDetails(status).ranks) ranks.push_back(rank.value());
  return ranks;
}

// Groups of 2 to 4, of which the first rank, one in the middle or the last is the faulty one.
struct Role {
  int ranks;
  int faulty;
};
constexpr Role kRoles[] = {{2, 1}, {3, 0}, {4, 2}};

class FaultTest : public ::testing::TestWithParam<size_t> {};

INSTANTIATE_TEST_SUITE_P(All, FaultTest, ::testing::Range(size_t{0}, Collectives().size()),
                         [](const auto& setting) { return Collectives()[setting.param].name; });

// Each collective in each role, and each role at another moment.
TEST_P(FaultTest, AKilledRankIsNamedWheneverItDies) {
  const Collective& collective = Collectives()[GetParam()];
  constexpr int kDelays[] = {0, 3, 12};  // ms
  for (size_t i = 0; i < 3; ++i) {
    const Role role = kRoles[i];
    const int delay_ms = kDelays[(i + GetParam()) % 3];
    SCOPED_TRACE(absl::StrCat(role.ranks, " ranks, rank ", role.faulty, " after ", delay_ms, " ms"));
    RankProcesses job(role.ranks);
    job.ExpectExit(role.faulty, {0, SIGKILL});
    job.Run([&](RankContext& rank) {
      const Group group = MakeTestGroup(rank, kTimeout);
      ExpectUsable(group);
      const TensorDict tree = MakeTestTree(rank.rank(), kElements);
      ASSERT_TRUE(rank.Barrier(0));
      std::optional<Later> death;
      if (rank.rank() == role.faulty) {
        death.emplace(absl::Milliseconds(delay_ms), [] { KillSelf(); });
      }
      const absl::Time start = absl::Now();
      absl::Status status;
      while (status.ok() && absl::Now() - start < kSoon) status = collective.call(group, tree, {});
      ExpectFault(status, absl::StatusCode::kUnavailable, ErrorKind::kPeerLost, {role.faulty});
      ExpectFault(collective.call(group, tree, {}), absl::StatusCode::kUnavailable,
                  ErrorKind::kPeerLost, {role.faulty});
      EXPECT_LT(absl::Now() - start, kSoon);
      // Who leaves early is named as well.
      rank.Signal(1);
      EXPECT_TRUE(rank.Await(1, role.ranks - 1));
    });
  }
}

// Faults that a group outlives: one group for all collectives of a role, each collective in one.
class OutlivedFaultTest : public ::testing::TestWithParam<size_t> {};

INSTANTIATE_TEST_SUITE_P(Roles, OutlivedFaultTest, ::testing::Range(size_t{0}, size_t{3}),
                         [](const auto& setting) {
                           return absl::StrCat(kRoles[setting.param].ranks, "RanksFaulty",
                                               kRoles[setting.param].faulty);
                         });

// A rank that comes after the others' deadline: they name it, and it is told.
void ALateRank(const Collective& collective, const Role& role, RankContext& rank, const Group& group,
               int event) {
  const TensorDict tree = MakeTestTree(rank.rank(), kElements);
  const Snapshot before(tree);
  absl::Status status;
  if (rank.rank() == role.faulty) {
    ASSERT_TRUE(rank.Await(event, role.ranks - 1));
    status = collective.call(group, tree, {.timeout = kTimeout});
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  } else {
    status = collective.call(group, tree, {.timeout = kShort});
    EXPECT_THAT(status.code(),
                AnyOf(Eq(absl::StatusCode::kDeadlineExceeded), Eq(absl::StatusCode::kCancelled)))
        << status;
    if (status.code() == absl::StatusCode::kDeadlineExceeded) {
      EXPECT_EQ(RanksOf(status), std::vector<int>{role.faulty}) << status;
    }
    rank.Signal(event);
  }
  EXPECT_TRUE(GetErrorDetails(status).tree_unchanged) << status;
  before.ExpectUnchanged();
}

// A rank that stands still somewhere in its calls, until the others have given up.
void AStoppedRank(const Collective& collective, const Role& role, RankContext& rank,
                  const Group& group, int event) {
  const TensorDict tree = MakeTestTree(rank.rank(), kElements);
  ASSERT_TRUE(rank.Barrier(event));
  absl::Status status;
  if (rank.rank() == role.faulty) {
    const Later stop(absl::Milliseconds(5), [] { StopSelfFor(absl::Seconds(30)); });
    while (status.ok()) status = collective.call(group, tree, {.timeout = kTimeout});
    return;
  }
  const absl::Time start = absl::Now();
  while (status.ok() && absl::Now() - start < kSoon) {
    status = collective.call(group, tree, {.timeout = kLessShort});
  }
  EXPECT_THAT(status.code(),
              AnyOf(Eq(absl::StatusCode::kDeadlineExceeded), Eq(absl::StatusCode::kCancelled)))
      << status;
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    EXPECT_THAT(RanksOf(status), Contains(role.faulty)) << status;
  }
  LetGoOn(rank, role.faulty, event + 1);
}

TEST_P(OutlivedFaultTest, LateAndStoppedRanksAreNamedAndTheGroupIsUsableAfterwards) {
  const Role role = kRoles[GetParam()];
  RankProcesses job(role.ranks);
  job.SetTimeout(absl::Seconds(150));
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    int event = 0;
    for (size_t i = GetParam(); i < Collectives().size(); i += 3) {
      const Collective& collective = Collectives()[i];
      SCOPED_TRACE(collective.name);
      ALateRank(collective, role, rank, group, event++);
      ExpectUsableSoon(rank, group, event++);
      AStoppedRank(collective, role, rank, group, event);
      event += 2;
      ExpectUsableSoon(rank, group, event++);
      if (HasFailure()) return;
    }
  });
}

}  // namespace
}  // namespace leafpack
