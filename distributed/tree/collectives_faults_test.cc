// Ranks that are killed or stopped at any point of a collective that moves trees, with real processes:
// every surviving rank ends soon, with the result or with an error that names the rank.
#include <signal.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
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
// Deadline of calls that are meant to reach it.
constexpr absl::Duration kShort = absl::Seconds(2);
// By then at the latest an error that needs no deadline is there, on a loaded machine too.
constexpr absl::Duration kSoon = absl::Seconds(15);
constexpr int kRanks = 3;
constexpr int64_t kElements = 4 << 20;  // 16 MiB a tree

struct Collective {
  const char* name;
  std::function<absl::Status(const Group&, const TensorDict&, const CallOptions&)> call;
};

const std::vector<Collective>& Collectives() {
  static const auto* const all = new std::vector<Collective>{
      {"Broadcast",
       [](const Group& group, const TensorDict& tree, const CallOptions& options) {
         return Broadcast(tree, GroupRank(0), group, options).status();
       }},
      {"BroadcastNew",
       [](const Group& group, const TensorDict& tree, const CallOptions& options) {
         const bool is_root = group.rank().value() == 1;
         return Broadcast(is_root ? std::optional<TreeArg>(tree) : std::nullopt, GroupRank(1), group,
                          options)
             .status();
       }},
      {"AllGather",
       [](const Group& group, const TensorDict& tree, const CallOptions& options) {
         return AllGather(tree, group, options).status();
       }},
      {"Gather",
       [](const Group& group, const TensorDict& tree, const CallOptions& options) {
         return Gather(tree, GroupRank(2), group, options).status();
       }},
      {"Scatter",
       [](const Group& group, const TensorDict& tree, const CallOptions& options) {
         std::vector<TreeArg> trees;
         if (group.rank().value() == 0) trees.assign(kRanks, tree);
         return Scatter(std::nullopt, trees, GroupRank(0), group, options).status();
       }},
      {"AllToAll",
       [](const Group& group, const TensorDict& tree, const CallOptions& options) {
         return AllToAll(std::vector<TreeArg>(kRanks, tree), group, options).status();
       }},
      {"AllGatherBytes",
       [](const Group& group, const TensorDict&, const CallOptions& options) {
         const size_t size = (size_t{4} << 20) + static_cast<size_t>(group.rank().value());
         return AllGatherBytes(std::string(size, 'x'), group, options).status();
       }},
  };
  return *all;
}

std::vector<int> RanksOf(const absl::Status& status) {
  std::vector<int> ranks;
  for (const GlobalRank rank : GetErrorDetails(status).ranks) ranks.push_back(rank.value());
  return ranks;
}

// Which collective, and which rank is the faulty one.
class FaultTest : public ::testing::TestWithParam<std::tuple<size_t, int>> {
 protected:
  const Collective& collective() const { return Collectives()[std::get<0>(GetParam())]; }
  int faulty() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, FaultTest,
                         ::testing::Combine(::testing::Range(size_t{0}, Collectives().size()),
                                            ::testing::Values(0, 2)),
                         [](const auto& setting) {
                           return absl::StrCat(Collectives()[std::get<0>(setting.param)].name,
                                               "Faulty", std::get<1>(setting.param));
                         });

TEST_P(FaultTest, AKilledRankIsNamedWheneverItDies) {
  for (const int delay_ms : {0, 4, 15}) {
    RankProcesses job(kRanks);
    job.ExpectExit(faulty(), {0, SIGKILL});
    job.Run([&](RankContext& rank) {
      const Group group = MakeTestGroup(rank, kTimeout);
      ExpectUsable(group);
      ASSERT_TRUE(rank.Barrier(0));
      const TensorDict tree = MakeTestTree(rank.rank(), kElements);
      std::optional<Later> death;
      if (rank.rank() == faulty()) {
        death.emplace(absl::Milliseconds(delay_ms), [] { KillSelf(); });
      }
      const absl::Time start = absl::Now();
      absl::Status status;
      for (int i = 0; status.ok() && i < 1000; ++i) {
        status = collective().call(group, tree, {});
      }
      ExpectFault(status, absl::StatusCode::kUnavailable, ErrorKind::kPeerLost, {faulty()});
      ExpectFault(collective().call(group, tree, {}), absl::StatusCode::kUnavailable,
                  ErrorKind::kPeerLost, {faulty()});
      EXPECT_LT(absl::Now() - start, kSoon);
      // Who leaves early is named as well.
      rank.Signal(1);
      EXPECT_TRUE(rank.Await(1, kRanks - 1));
    });
  }
}

TEST_P(FaultTest, AStoppedRankIsNamedAndTheGroupIsUsableWhenItGoesOn) {
  RankProcesses job(kRanks);
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    ExpectUsable(group);
    const TensorDict tree = MakeTestTree(rank.rank(), kElements);
    ASSERT_TRUE(rank.Barrier(0));
    if (rank.rank() == faulty()) {
      const Later stop(absl::Milliseconds(5), [] { StopSelfFor(absl::Seconds(6)); });
      absl::Status status;
      while (status.ok()) status = collective().call(group, tree, {.timeout = kTimeout});
    } else {
      const absl::Time start = absl::Now();
      absl::Status status;
      while (status.ok() && absl::Now() - start < kSoon) {
        status = collective().call(group, tree, {.timeout = kShort});
      }
      EXPECT_THAT(status.code(),
                  AnyOf(Eq(absl::StatusCode::kDeadlineExceeded), Eq(absl::StatusCode::kCancelled)))
          << status;
      if (status.code() == absl::StatusCode::kDeadlineExceeded) {
        EXPECT_THAT(RanksOf(status), Contains(faulty())) << status;
      }
    }
    ExpectUsableSoon(rank, group, 2);
  });
}

}  // namespace
}  // namespace leafpack
