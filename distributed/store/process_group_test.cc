#include "distributed/store/process_group.h"

#include <chrono>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/store/group_testutil.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

constexpr std::chrono::seconds kTimeout{77};

// A process group as torch.distributed makes one, over gloo.
c10::intrusive_ptr<c10d::ProcessGroup> MakeProcessGroup(c10::intrusive_ptr<c10d::Store> store,
                                                        int rank, int size,
                                                        std::vector<uint64_t> global_ranks = {}) {
  auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->global_ranks_in_group = std::move(global_ranks);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(
                        c10::make_intrusive<c10d::PrefixStore>("cpu", store), rank, size, options));
  group->setGroupName("test_group");
  return group;
}

TEST(ProcessGroupTest, SharesNothingWithTheOwnersCollectives) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(2, [&](int rank) {
    const auto process_group = MakeProcessGroup(store, rank, 2);
    const auto users = [&](double value) {
      at::Tensor tensor = at::full({100}, value);
      std::vector<at::Tensor> tensors = {tensor};
      auto work = process_group->getBackend(c10::DeviceType::CPU)->allreduce(tensors);
      return std::make_pair(tensor, work);
    };
    auto before = users(rank + 1.0);
    absl::StatusOr<Group> group = GroupFromProcessGroup(process_group);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(group->rank(), GroupRank(rank));
    EXPECT_EQ(group->options().timeout, absl::Seconds(77));
    EXPECT_EQ(FrameSum(*group, rank + 1).value(), 3);
    // The owner's call is under way while ours runs; one rank issues it before, the other after.
    std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>> during;
    if (rank == 0) during = users(10.0);
    EXPECT_EQ(DataSum(*group, rank + 1, 40000).value(), 3);
    if (rank == 1) during = users(20.0);
    before.second->wait();
    during.second->wait();
    auto after = users(rank + 5.0);
    after.second->wait();
    EXPECT_EQ(before.first[0].item<float>(), 3.0f);
    EXPECT_EQ(during.first[99].item<float>(), 30.0f);
    EXPECT_EQ(after.first[50].item<float>(), 11.0f);
  });
}

TEST(ProcessGroupTest, TakesGlobalRanks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto process_group = MakeProcessGroup(store, 0, 1, {5});
  absl::StatusOr<Group> group = GroupFromProcessGroup(process_group);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(group->global_rank(), GlobalRank(5));
  const auto other = MakeProcessGroup(c10::make_intrusive<c10d::HashStore>(), 0, 1, {5});
  absl::StatusOr<Group> told =
      GroupFromProcessGroup(other, {.global_ranks = {GlobalRank(9)}});
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->global_rank(), GlobalRank(9));
}

TEST(ProcessGroupTest, OneGroupPerProcessGroupThatKeepsNothingAlive) {
  const c10d::ProcessGroup* address = nullptr;
  Engine* engine = nullptr;
  {
    auto process_group = MakeProcessGroup(c10::make_intrusive<c10d::HashStore>(), 0, 1);
    address = process_group.get();
    engine = &GroupFromProcessGroup(process_group)->engine();
    EXPECT_EQ(&GroupFromProcessGroup(process_group)->engine(), engine);
    EXPECT_EQ(process_group.use_count(), 1) << "the cache keeps the process group alive";
    const Group held = *GroupFromProcessGroup(process_group);
    c10::weak_intrusive_ptr<c10d::ProcessGroup> weak(process_group);
    process_group.reset();
    EXPECT_TRUE(weak.expired());
    EXPECT_EQ(&held.engine(), engine);  // a handle outlives what it was made around
  }
  // Others, of which some may stand where the first stood.
  for (int i = 0; i < 50; ++i) {
    auto another = MakeProcessGroup(c10::make_intrusive<c10d::HashStore>(), 0, 1, {static_cast<uint64_t>(i + 100)});
    absl::StatusOr<Group> group = GroupFromProcessGroup(another);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(group->global_rank(), GlobalRank(i + 100)) << (another.get() == address);
  }
}

TEST(ProcessGroupTest, AroundABackend) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(2, [&](int rank) {
    const auto process_group = MakeProcessGroup(store, rank, 2);
    const auto backend = process_group->getBackend(c10::DeviceType::CPU);
    absl::StatusOr<Group> group = GroupFromBackend(backend, store, "mine");
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(group->options().timeout, absl::Seconds(77));
    EXPECT_EQ(&GroupFromBackend(backend, store, "mine")->engine(), &group->engine());
    EXPECT_EQ(FrameSum(*group, rank + 1).value(), 3);
  });
}

TEST(ProcessGroupTest, BadArguments) {
  EXPECT_EQ(GroupFromProcessGroup(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GroupFromBackend(nullptr, nullptr, "x").status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto no_store = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  EXPECT_EQ(GroupFromProcessGroup(no_store).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace leafpack
