// Trees of many steps: pipelines, windows, and a broadcast that is dealt out in parts.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/collectives_testutil.h"
#include "distributed/tree/spread_schedule.h"

namespace leafpack {
namespace {

using testing::ExpectEqual;
using testing::Values;
using testing::WithGroup;

// Some 30 MB: one leaf of several runs, one that is packed, many small ones, odd sizes.
TensorDict MakeLargeTree(int seed) {
  TensorDict tree;
  EXPECT_TRUE(tree.Set("huge", Values(at::kFloat, {2'700'001}, seed)).ok());
  EXPECT_TRUE(tree.Set("packed", Values(at::kDouble, {900, 1400}, seed + 1).slice(1, 1, 1400)).ok());
  EXPECT_TRUE(tree.Set("flags", Values(at::kBool, {777}, seed + 2)).ok());
  for (int i = 0; i < 300; ++i) {
    EXPECT_TRUE(tree.Set({"many", i}, Values(at::kHalf, {3000 + i}, seed + i)).ok());
  }
  return tree;
}

class LargeTreesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LargeTreesTest, ::testing::Values(2, 3, 4));

TEST_P(LargeTreesTest, Broadcast) {
  WithGroup(GetParam(), [&](const Group& group) {
    const int rank = group.rank().value();
    for (int root = 0; root < GetParam(); ++root) {
      const OnFailure on_failure = root == 0 ? OnFailure::kReport : OnFailure::kRestore;
      const TensorDict tree = MakeLargeTree(rank);
      const auto result = Broadcast(rank == 1 && root != 1 ? std::nullopt
                                                           : std::optional<TreeArg>(tree),
                                    GroupRank(root), group, {.on_failure = on_failure});
      ASSERT_TRUE(result.ok()) << result.status();
      ExpectEqual(*result->Dict(), MakeLargeTree(root));
    }
  });
}

TEST_P(LargeTreesTest, OthersWithTheSmallestWindow) {
  WithGroup(GetParam(), [&](const Group& group) {
    const int rank = group.rank().value();
    const CallOptions options = {.max_in_flight_bytes = 1};
    const auto all = AllGather(MakeLargeTree(rank), group, options);
    ASSERT_TRUE(all.ok()) << all.status();
    for (int r = 0; r < GetParam(); ++r) {
      ExpectEqual(*all->trees[static_cast<size_t>(r)].ToTensorDict(), MakeLargeTree(r));
    }
    std::vector<TreeArg> trees;
    for (int to = 0; to < GetParam(); ++to) trees.emplace_back(MakeLargeTree(10 * rank + to));
    const auto mine = Scatter(std::nullopt, rank == 0 ? trees : std::vector<TreeArg>(),
                              GroupRank(0), group, options);
    ASSERT_TRUE(mine.ok()) << mine.status();
    ExpectEqual(*mine->Dict(), MakeLargeTree(rank));
  });
}

TEST(SpreadScheduleTest, PartsCoverTheRunOnce) {
  for (const int ranks : {3, 4, 7}) {
    for (const int root : {0, 1, ranks - 1}) {
      for (const int64_t bytes : {0, 1, 63, 64, 65, 1000, 4 << 20}) {
        const internal::SpreadSchedule schedule(0, ranks, root);
        int64_t at = 100;
        for (int rank = 0; rank < ranks; ++rank) {
          if (rank == root) continue;
          const auto [first, end] = schedule.PartOf(rank, 100, 100 + bytes);
          EXPECT_EQ(first, at);
          EXPECT_LE(end - first, bytes / (ranks - 1) + 64);
          at = end;
        }
        EXPECT_EQ(at, 100 + bytes);
      }
    }
  }
}

}  // namespace
}  // namespace leafpack
