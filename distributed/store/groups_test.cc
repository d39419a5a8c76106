#include "distributed/store/groups.h"

#include <unistd.h>

#include <limits>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/store/group_testutil.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

TEST(GroupsTest, LocalGroupsTalkOverBothPaths) {
  for (int size : {1, 2, 3}) {
    absl::StatusOr<std::vector<Group>> groups = LocalGroups(size);
    ASSERT_TRUE(groups.ok()) << groups.status();
    ASSERT_EQ(groups->size(), static_cast<size_t>(size));
    RunRanksAsThreads(size, [&](int rank) {
      const Group& group = (*groups)[rank];
      EXPECT_EQ(group.rank(), GroupRank(rank));
      EXPECT_EQ(group.size(), size);
      EXPECT_EQ(group.global_rank(), GlobalRank(rank));
      absl::StatusOr<int64_t> frame = FrameSum(group, rank + 1);
      ASSERT_TRUE(frame.ok()) << frame.status();
      EXPECT_EQ(*frame, size * (size + 1) / 2);
      absl::StatusOr<int64_t> data = DataSum(group, rank + 1, 30000);
      ASSERT_TRUE(data.ok()) << data.status();
      EXPECT_EQ(*data, size * (size + 1) / 2);
    });
  }
}

TEST(GroupsTest, TwoGroupsOverOneStoreDoNotMix) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(2, [&](int rank) {
    auto a = GroupFromStore(store, "a", rank, 2);
    // The second group counts the other way round and has other global ranks.
    auto b = GroupFromStore(store, "b", 1 - rank, 2, {GlobalRank(7), GlobalRank(3)});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(b->global_rank(), GlobalRank(rank == 0 ? 3 : 7));
    EXPECT_EQ(FrameSum(*a, 1).value(), 2);
    EXPECT_EQ(FrameSum(*b, 10).value(), 20);
    EXPECT_EQ(DataSum(*b, 100, 20000).value(), 200);
    EXPECT_EQ(DataSum(*a, 1000, 20000).value(), 2000);
  });
}

TEST(GroupsTest, FileStore) {
  const std::string path = absl::StrCat(testing::TempDir(), "/groups_test_", getpid());
  RunRanksAsThreads(2, [&](int rank) {
    auto group = GroupFromFile(path, rank, 2);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(FrameSum(*group, rank + 1).value(), 3);
  });
  unlink(path.c_str());
}

TEST(GroupsTest, BadArguments) {
  EXPECT_EQ(LocalGroups(0).status().code(), absl::StatusCode::kInvalidArgument);
  GroupOptions unknown_backend;
  unknown_backend.backend = "nosuch";
  EXPECT_EQ(LocalGroups(2, unknown_backend).status().code(), absl::StatusCode::kNotFound);
  GroupOptions no_time;
  no_time.timeout = absl::ZeroDuration();
  EXPECT_EQ(LocalGroups(2, no_time).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GroupFromStore(nullptr, "x", 0, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  // No memory is asked for what no machine has.
  constexpr int kMany = std::numeric_limits<int>::max();
  EXPECT_EQ(LocalGroups(kMany).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GroupFromStore(store, "x", 0, kMany).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status rank = GroupFromStore(store, "x", 2, 2).status();
  EXPECT_EQ(rank.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(rank.message(), "rank 2 ")) << rank;
  EXPECT_EQ(GroupFromStore(store, "x", -1, 2).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status folder = GroupFromFile("/nosuch/folder/file", 0, 1).status();
  EXPECT_EQ(folder.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(folder.message(), "'/nosuch/folder/file'")) << folder;
  EXPECT_EQ(GroupFromFile("", 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GroupFromFile("/tmp/", 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace leafpack
