#include "distributed/store/sub_groups.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/store/group_testutil.h"
#include "distributed/store/groups.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

std::vector<GlobalRank> Ranks(const std::vector<int>& values) {
  return {values.begin(), values.end()};
}

std::vector<int> Members(const Group& group) {
  std::vector<int> members;
  for (int rank = 0; rank < group.size(); ++rank) {
    members.push_back(group.ToGlobal(GroupRank(rank))->value());
  }
  return members;
}

// Sums of powers of two tell who was in them.
void ExpectMembers(const Group& group, const std::vector<int>& members) {
  EXPECT_EQ(Members(group), members);
  int64_t expected = 0;
  for (int member : members) expected += int64_t{1} << member;
  const int64_t mine = int64_t{1} << group.global_rank().value();
  absl::StatusOr<int64_t> frame = FrameSum(group, mine);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(*frame, expected);
  if (group.size() == 1) return;
  absl::StatusOr<int64_t> data = DataSum(group, mine, 20000);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(*data, expected);
}

std::vector<Group> World(int size) {
  absl::StatusOr<std::vector<Group>> groups = LocalGroups(size);
  EXPECT_TRUE(groups.ok()) << groups.status();
  return *std::move(groups);
}

class SubGroupsTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SubGroupsTest, ::testing::Values(1, 2, 3, 4));

TEST_P(SubGroupsTest, ByListCalledByAll) {
  const int size = GetParam();
  std::vector<Group> world = World(size);
  RunRanksAsThreads(size, [&](int rank) {
    for (int first = 0; first < size; ++first) {
      std::vector<int> list, sorted;
      for (int i = size - 1; i >= first; --i) list.push_back(i);  // the order does not matter
      sorted.assign(list.rbegin(), list.rend());
      absl::StatusOr<Group> group = NewGroup(world[rank], Ranks(list));
      if (rank >= first) {
        ASSERT_TRUE(group.ok()) << group.status();
        EXPECT_EQ(group->rank().value(), rank - first);
        ExpectMembers(*group, sorted);
        EXPECT_EQ(group->ToGroup(GlobalRank(size - 1)).value(), GroupRank(size - 1 - first));
        if (first > 0) {
          EXPECT_EQ(group->ToGroup(GlobalRank(0)).status().code(), absl::StatusCode::kNotFound);
        }
      } else {
        EXPECT_EQ(group.status().code(), absl::StatusCode::kFailedPrecondition) << group.status();
        EXPECT_TRUE(absl::StrContains(group.status().message(), "is not a member"))
            << group.status();
      }
    }
    ASSERT_TRUE(FrameSum(world[rank], 1).ok());
  });
}

TEST(SubGroupsTest, ByMembersOnlyInAnyOrderOfOtherLists) {
  std::vector<Group> world = World(4);
  RunRanksAsThreads(4, [&](int rank) {
    // Rank 3 does nothing at all; the others make their groups in orders of their own.
    if (rank == 3) return;
    const auto make = [&](const std::vector<int>& list) {
      return NewGroup(world[rank], Ranks(list)).value();
    };
    if (rank == 0) {
      Group a = make({0, 1}), b = make({0, 2});
      ExpectMembers(b, {0, 2});
      ExpectMembers(a, {0, 1});
    } else if (rank == 1) {
      Group c = make({1, 2}), a = make({0, 1});
      ExpectMembers(a, {0, 1});
      ExpectMembers(c, {1, 2});
    } else {
      Group b = make({0, 2}), c = make({1, 2});
      ExpectMembers(b, {0, 2});
      ExpectMembers(c, {1, 2});
    }
  });
}

TEST(SubGroupsTest, SeveralGroupsOverTheSameRanksAtOnce) {
  std::vector<Group> world = World(2);
  RunRanksAsThreads(2, [&](int rank) {
    std::vector<Group> groups;
    for (int i = 0; i < 4; ++i) groups.push_back(NewGroup(world[rank], Ranks({0, 1})).value());
    // By name, the order of making may differ.
    const std::vector<std::string> names = rank == 0 ? std::vector<std::string>{"a", "b"}
                                                     : std::vector<std::string>{"b", "a"};
    std::vector<Group> named;
    for (const std::string& name : names) {
      named.push_back(NewGroup(world[rank], Ranks({0, 1}), {.name = name}).value());
    }
    if (rank == 1) std::swap(named[0], named[1]);
    for (Group& group : named) groups.push_back(group);
    for (size_t i = groups.size(); i-- > 0;) {
      EXPECT_EQ(FrameSum(groups[i], static_cast<int64_t>(i)).value(), static_cast<int64_t>(2 * i));
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(DataSum(groups[i], static_cast<int64_t>(i), 9000).value(),
                static_cast<int64_t>(2 * i));
    }
  });
}

TEST(SubGroupsTest, ANameThatLooksLikeRanksIsNoRank) {
  std::vector<Group> world = World(3);
  RunRanksAsThreads(3, [&](int rank) {
    std::optional<Group> pair;
    if (rank < 2) pair = NewGroup(world[rank], Ranks({0, 1}), {.name = "2,"}).value();
    ExpectMembers(NewGroup(world[rank], Ranks({0, 1, 2})).value(), {0, 1, 2});
    if (pair.has_value()) ExpectMembers(*pair, {0, 1});
  });
}

TEST(SubGroupsTest, OfASubGroupAndAfterItsParentIsGone) {
  std::vector<Group> world = World(4);
  RunRanksAsThreads(4, [&](int rank) {
    if (rank == 0) return;
    std::optional<Group> outer = NewGroup(world[rank], Ranks({1, 2, 3})).value();
    absl::StatusOr<Group> inner = NewGroup(*outer, Ranks({3, 1}));
    ASSERT_EQ(inner.ok(), rank != 2) << inner.status();
    ExpectMembers(*outer, {1, 2, 3});
    outer.reset();
    if (inner.ok()) ExpectMembers(*inner, {1, 3});
  });
}

TEST(SubGroupsTest, OptionsAreTheParentsUnlessGiven) {
  GroupOptions options;
  options.timeout = absl::Seconds(77);
  std::vector<Group> world = LocalGroups(2, options).value();
  EXPECT_EQ(NewGroup(world[0], Ranks({0, 1}))->options().timeout, absl::Seconds(77));
  GroupOptions own;
  own.timeout = absl::Seconds(5);
  EXPECT_EQ(NewGroup(world[0], Ranks({0, 1}), {.group = own})->options().timeout, absl::Seconds(5));
  EXPECT_EQ(LocalGroups(1).value()[0].options().timeout, absl::Minutes(5));
}

TEST(SubGroupsTest, TheGroupsOwnTimeoutEndsACallWithoutOne) {
  std::vector<Group> world = World(2);
  GroupOptions options;
  options.timeout = absl::Milliseconds(200);
  Group group = NewGroup(world[0], Ranks({0, 1}), {.group = options}).value();
  const absl::Status status = FrameSum(group, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(GetErrorDetails(status).ranks, Ranks({1})) << status;
}

TEST(SubGroupsTest, BadListsAndOptionsCountNothing) {
  std::vector<Group> world = World(3);
  const auto code = [&](const std::vector<int>& list, const std::string& part,
                        SubGroupOptions options = {}) {
    const absl::Status status = NewGroup(world[0], Ranks(list), std::move(options)).status();
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
    return status.code();
  };
  EXPECT_EQ(code({}, "no ranks"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({0, 1, 0}, "rank 0 stands twice"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({0, 3}, "global rank 3"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({-1, 0}, "global rank -1"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1, 2}, "rank 0 is not a member of the group of ranks 1 and 2"),
            absl::StatusCode::kFailedPrecondition);
  GroupOptions no_backend;
  no_backend.backend = "nosuch";
  EXPECT_EQ(code({0, 1}, "nosuch", {.group = no_backend}), absl::StatusCode::kNotFound);
  RunRanksAsThreads(2, [&](int rank) {
    ExpectMembers(NewGroup(world[rank], Ranks({0, 1})).value(), {0, 1});
  });
}

// One rank was refused its list and so has made one group less than the others: they do not meet, nobody
// hangs, the error says why, and a group of another name works.
TEST(SubGroupsTest, CountsThatDifferAreAClearError) {
  std::vector<Group> world = World(3);
  GroupOptions options;
  options.timeout = absl::Milliseconds(500);
  RunRanksAsThreads(3, [&](int rank) {
    const std::vector<int> list = {0, 1, 2};
    const absl::StatusOr<Group> first =
        NewGroup(world[rank], Ranks(rank == 1 ? std::vector<int>{0, 1, 1} : list));
    EXPECT_EQ(first.ok(), rank != 1) << first.status();
    const Group second = NewGroup(world[rank], Ranks(list), {.group = options}).value();
    const absl::Time start = absl::Now();
    const absl::Status status = FrameSum(second, 1).status();
    EXPECT_LT(absl::Now() - start, absl::Seconds(30));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) << status;
    if (absl::IsDeadlineExceeded(status)) {
      EXPECT_TRUE(absl::StrContains(
          status.message(), absl::StrCat("this is group number ", rank == 1 ? 1 : 2, " of these ranks")))
          << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "give the next a new name")) << status;
      const std::vector<GlobalRank> named = GetErrorDetails(status).ranks;
      EXPECT_EQ(std::find(named.begin(), named.end(), GlobalRank(1)) != named.end(), rank != 1)
          << status;
    }
    if (rank == 0) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    }
    ExpectMembers(NewGroup(world[rank], Ranks(list), {.name = "again"}).value(), list);
  });
}

TEST_P(SubGroupsTest, ByColourAndKey) {
  const int size = GetParam();
  std::vector<Group> world = World(size);
  RunRanksAsThreads(size, [&](int rank) {
    // Twice: groups of an earlier split are not met again. Keys turn the order round.
    for (int round = 0; round < 2; ++round) {
      absl::StatusOr<std::optional<Group>> split = SplitGroup(world[rank], rank % 2, -rank);
      ASSERT_TRUE(split.ok()) << split.status();
      ASSERT_TRUE(split->has_value());
      std::vector<int> members;
      for (int r = rank % 2; r < size; r += 2) members.push_back(r);
      std::reverse(members.begin(), members.end());
      ExpectMembers(**split, members);
    }
    // Equal keys keep the parent's order; negative colours are colours.
    absl::StatusOr<std::optional<Group>> all = SplitGroup(world[rank], -7);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ((*all)->rank().value(), rank);
    EXPECT_EQ((*all)->size(), size);
  });
}

TEST(SubGroupsTest, ARankWithoutColourTakesPartAndGetsNoGroup) {
  std::vector<Group> world = World(3);
  RunRanksAsThreads(3, [&](int rank) {
    absl::StatusOr<std::optional<Group>> split = SplitGroup(
        world[rank], rank == 1 ? std::nullopt : std::optional<int>(0));
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->has_value(), rank != 1);
    if (split->has_value()) ExpectMembers(**split, {0, 2});
  });
}

TEST(SubGroupsTest, ASplitThatARankCannotMakeIsRefusedOnAll) {
  std::vector<Group> world = World(3);
  RunRanksAsThreads(3, [&](int rank) {
    SubGroupOptions options;
    if (rank == 2) {
      options.group = GroupOptions{};
      options.group->backend = "nosuch";
    }
    const absl::Status status = SplitGroup(world[rank], 0, 0, options).status();
    if (rank == 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    } else {
      EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kPeerRefused) << status;
      EXPECT_EQ(GetErrorDetails(status).ranks, Ranks({2}));
    }
    ASSERT_TRUE(SplitGroup(world[rank], 0).ok());
  });
}

TEST(SubGroupsTest, AMissingRankEndsASplitAtTheDeadline) {
  GroupOptions options;
  options.timeout = absl::Milliseconds(300);
  std::vector<Group> world = LocalGroups(2, options).value();
  const absl::Status status = SplitGroup(world[0], 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(GetErrorDetails(status).ranks, Ranks({1}));
}

// More ranks than one frame tells of: the choices come in several.
TEST(SubGroupsTest, ManyRanks) {
  constexpr int kSize = 150;
  std::vector<Group> world = World(kSize);
  RunRanksAsThreads(
      kSize,
      [&](int rank) {
        absl::StatusOr<std::optional<Group>> split = SplitGroup(world[rank], rank % 75, -rank);
        ASSERT_TRUE(split.ok()) << split.status();
        EXPECT_EQ(Members(**split), (std::vector<int>{rank % 75 + 75, rank % 75}));
      },
      {.deadline = absl::Minutes(4)});
}

}  // namespace
}  // namespace leafpack
