// Trees through groups of the backend "nccl", over a mock of CUDA and NCCL. Not the suite: that wants a backend that
// moves leaves, too.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/backends/nccl/mock_device.h"
#include "distributed/backends/nccl/mock_memory.h"
#include "distributed/distributed.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack {
namespace {

using ::leafpack::nccl_internal::As;
using ::leafpack::nccl_internal::MockControl;
using ::leafpack::nccl_internal::MockMemory;
using ::leafpack::nccl_internal::MockStream;
using ::leafpack::nccl_internal::RegisterMockBackend;
using ::leafpack::nccl_internal::WithMockStream;
using ::leafpack::testing::BitEqual;
using ::leafpack::testing::Expected;
using ::leafpack::testing::MakeLeaf;
using ::leafpack::testing::WithGroup;
using ::testing::HasSubstr;

// More bytes than ride in the control channel.
constexpr int64_t kNumel = 50'000;

GroupOptions Options(const std::string& backend) {
  GroupOptions options;
  options.backend = backend;
  options.timeout = absl::Minutes(1);
  return options;
}

TensorDict Tree(int rank) {
  TensorDict tree;
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(tree.Set(absl::StrCat("small", i), MakeLeaf(absl::StrCat(i), at::kFloat, {kNumel + i}, rank)).ok());
  }
  EXPECT_TRUE(tree.Set("large", MakeLeaf("large", at::kFloat, {2000, 1000}, rank)).ok());
  EXPECT_TRUE(tree.Set("half", MakeLeaf("half", at::kHalf, {kNumel}, rank)).ok());
  EXPECT_TRUE(tree.Set("turned", MakeLeaf("turned", at::kInt, {30, 70}, rank).t()).ok());
  return tree;
}

void ExpectReduced(const TensorDict& tree, int ranks) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(BitEqual(tree.Get(absl::StrCat("small", i)).value(),
                         Expected(absl::StrCat(i), at::kFloat, {kNumel + i}, ranks, ReduceOpKind::kSum)));
  }
  EXPECT_TRUE(BitEqual(tree.Get("large").value(),
                       Expected("large", at::kFloat, {2000, 1000}, ranks, ReduceOpKind::kSum)));
  EXPECT_TRUE(BitEqual(tree.Get("half").value(), Expected("half", at::kHalf, {kNumel}, ranks, ReduceOpKind::kSum)));
  EXPECT_TRUE(BitEqual(tree.Get("turned").value().t(),
                       Expected("turned", at::kInt, {30, 70}, ranks, ReduceOpKind::kSum)));
}

TEST(NcclTree, EveryBucketing) {
  for (const std::string backend : {"mock", "cpu:mock"}) {
    RegisterMockBackend("mock");
    for (const int ranks : {1, 2, 3}) {
      for (const Bucketing bucketing : {Bucketing::Auto(), Bucketing::PerLeaf(), Bucketing::MaxBytes(1 << 20)}) {
        WithGroup(ranks, [&](const Group& group) {
          const TensorDict tree = Tree(group.rank().value());
          LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.bucketing = bucketing}));
          ExpectReduced(tree, ranks);
        }, Options(backend));
      }
    }
  }
}

TEST(NcclTree, WithFactorAndWithRestore) {
  RegisterMockBackend("mock");
  WithGroup(2, [](const Group& group) {
    const int rank = group.rank().value();
    const at::Tensor leaf = at::full({kNumel}, 2.0);
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("x", leaf));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.op = ReduceOp::PremulSum(rank + 1)}));
    EXPECT_TRUE(leaf.eq(6).all().item<bool>());
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.on_failure = OnFailure::kRestore}));
    EXPECT_TRUE(leaf.eq(12).all().item<bool>());
  }, Options("mock"));
}

TEST(NcclTree, ManyAsyncInFlightInAnyOrderOfWaits) {
  RegisterMockBackend("mock");
  WithGroup(2, [](const Group& group) {
    std::vector<at::Tensor> leaves;
    std::vector<TreeWork> works;
    for (int i = 0; i < 20; ++i) {
      leaves.push_back(at::full({i % 3 == 0 ? 10 : kNumel}, static_cast<double>(i)));
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("x", leaves.back()));
      absl::StatusOr<TreeWork> work = AllReduceAsync(tree, group);
      LEAFPACK_ASSERT_OK(work.status());
      works.push_back(*std::move(work));
    }
    for (size_t i = works.size(); i-- > 0;) {
      LEAFPACK_ASSERT_OK(works[i].Wait());
      EXPECT_TRUE(leaves[i].eq(2.0 * static_cast<double>(i)).all().item<bool>());
    }
  }, Options("mock"));
}

TEST(NcclTree, RefusesByPathWhatNcclDoesNotReduce) {
  RegisterMockBackend("mock");
  WithGroup(2, [](const Group& group) {
    TensorDict tree;
    const at::Tensor good = at::ones({kNumel});
    LEAFPACK_ASSERT_OK(tree.Set("good", good));
    LEAFPACK_ASSERT_OK(tree.Set({"bad", "short"}, at::ones({kNumel}, at::kShort)));
    const absl::Status status = AllReduce(tree, group);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kUnsupported);
    EXPECT_THAT(std::string(status.message()), HasSubstr("short"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("int16"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("rank ", group.rank().value())));
    EXPECT_TRUE(good.eq(1).all().item<bool>());
    // Other collectives do not go over NCCL yet; they say so, and the group is usable at once.
    TensorDict other;
    LEAFPACK_ASSERT_OK(other.Set("x", good));
    EXPECT_EQ(Broadcast(other, GroupRank(0), group).status().code(), absl::StatusCode::kUnimplemented);
    LEAFPACK_ASSERT_OK(AllReduce(other, group));
    EXPECT_TRUE(good.eq(2).all().item<bool>());
  }, Options("mock"));
}

TEST(NcclTree, AFailureOfNcclNamesTheRankAndTheNextEpochWorks) {
  const std::shared_ptr<MockControl> control = RegisterMockBackend("mock-broken");
  auto* failed = new absl::Barrier(2);
  WithGroup(2, [&](const Group& group) {
    const at::Tensor leaf = at::ones({kNumel});
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("x", leaf));
    {
      // The stream stands still, so that the wait sees the error.
      const auto stream = std::make_shared<MockStream>();
      const WithMockStream current(stream);
      auto go_on = std::make_shared<absl::Notification>();
      stream->Put([go_on] { go_on->WaitForNotification(); });
      control->broken = true;
      const absl::Status status = AllReduce(tree, group);
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), HasSubstr("remote process exited"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank "));
      go_on->Notify();
    }
    if (failed->Block()) delete failed;
    control->broken = false;
    const at::Tensor next = at::ones({kNumel});
    LEAFPACK_ASSERT_OK(tree.Set("x", next));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_TRUE(next.eq(2).all().item<bool>());
  }, Options("mock-broken"));
}

TEST(NcclTree, ARankThatDoesNotComeIsTheDeadlines) {
  RegisterMockBackend("mock");
  WithGroup(2, [](const Group& group) {
    if (group.rank().value() == 1) return;
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("x", at::ones({kNumel})));
    const absl::StatusOr<TreeWork> work = AllReduceAsync(tree, group, {.timeout = absl::Milliseconds(300)});
    const absl::Status status = work.ok() ? work->Wait() : work.status();
    EXPECT_FALSE(status.ok());
  }, Options("mock"));
}

// ---- Leaves on two kinds of device: that of the mock holds its memory, like a GPU, under a name of its own.

std::shared_ptr<MockControl> RegisterOnDevice(const std::string& name) {
  const std::shared_ptr<MockControl> control = RegisterMockBackend(name);
  control->current = MockMemory();
  return control;
}

at::Tensor OnDevice(const at::Tensor& leaf) { return As(MockMemory(), leaf); }

struct MixedLeaf {
  std::string path;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  bool on_device;
  bool turned;
};

// By turns, so that no bucket of neighbours would do: small, empty, large and turned ones of several dtypes.
std::vector<MixedLeaf> MixedLeaves() {
  std::vector<MixedLeaf> leaves;
  for (int i = 0; i < 12; ++i) {
    const at::ScalarType dtype = i % 3 == 2 ? at::kHalf : at::kFloat;
    leaves.push_back({absl::StrCat("small", i), dtype, {kNumel + i}, i % 2 == 0, false});
  }
  for (const bool on_device : {false, true}) {
    const std::string where = on_device ? "device" : "host";
    leaves.push_back({absl::StrCat("empty ", where), at::kFloat, {0, 3}, on_device, false});
    leaves.push_back({absl::StrCat("large ", where), at::kFloat, {2000, 1000}, on_device, false});
    leaves.push_back({absl::StrCat("turned ", where), at::kInt, {30, 70}, on_device, true});
  }
  return leaves;
}

TensorDict MixedTree(int rank) {
  TensorDict tree;
  for (const MixedLeaf& leaf : MixedLeaves()) {
    at::Tensor values = MakeLeaf(leaf.path, leaf.dtype, leaf.sizes, rank);
    if (leaf.turned) values = values.t();
    EXPECT_TRUE(tree.Set(leaf.path, leaf.on_device ? OnDevice(values) : values).ok());
  }
  return tree;
}

void ExpectMixedReduced(const TensorDict& tree, int ranks) {
  for (const MixedLeaf& leaf : MixedLeaves()) {
    at::Tensor got = tree.Get(leaf.path).value();
    EXPECT_EQ(got.device(), leaf.on_device ? MockMemory() : c10::Device(c10::kCPU)) << leaf.path;
    got = As(c10::kCPU, got);
    if (leaf.turned) got = got.t();
    EXPECT_TRUE(BitEqual(got, Expected(leaf.path, leaf.dtype, leaf.sizes, ranks, ReduceOpKind::kSum))) << leaf.path;
  }
}

TEST(MixedTree, EachLeafIsReducedByTheBackendOfItsDevice) {
  for (const std::string host : {"gloo", "shm", "socket"}) {
    const std::shared_ptr<MockControl> control = RegisterOnDevice("device");
    for (const int ranks : {1, 2, 3}) {
      for (const Bucketing bucketing : {Bucketing::Auto(), Bucketing::PerLeaf(), Bucketing::MaxBytes(1 << 20)}) {
        // The bucketing is the same code whichever backend is the host's.
        if (host != "gloo" && bucketing != Bucketing::Auto()) continue;
        const int members = control->members;
        WithGroup(ranks, [&](const Group& group) {
          const TensorDict tree = MixedTree(group.rank().value());
          LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.bucketing = bucketing}));
          ExpectMixedReduced(tree, ranks);
        }, Options(absl::StrCat("cpu:", host, ",privateuseone:device")));
        if (ranks > 1) {
          // Few messages: those of the host's leaves are not among them.
          EXPECT_GT(control->members, members);
          EXPECT_LE(control->members - members, ranks * 8);
        }
      }
    }
  }
}

TEST(MixedTree, AsyncWithFactorAndRestore) {
  RegisterOnDevice("device");
  WithGroup(2, [](const Group& group) {
    const int rank = group.rank().value();
    std::vector<TensorDict> trees;
    std::vector<TreeWork> works;
    for (int i = 0; i < 5; ++i) {
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("host", at::full({kNumel}, 1.0 + i)));
      LEAFPACK_ASSERT_OK(tree.Set("device", OnDevice(at::full({kNumel}, 2.0 + i))));
      absl::StatusOr<TreeWork> work = AllReduceAsync(
          tree, group, {.op = ReduceOp::PremulSum(rank + 1), .on_failure = OnFailure::kRestore});
      LEAFPACK_ASSERT_OK(work.status());
      trees.push_back(std::move(tree));
      works.push_back(*std::move(work));
    }
    for (size_t i = works.size(); i-- > 0;) {
      LEAFPACK_ASSERT_OK(works[i].Wait());
      const auto number = static_cast<double>(i);
      EXPECT_TRUE(trees[i].Get("host")->eq(3 * (1 + number)).all().item<bool>());
      EXPECT_TRUE(As(c10::kCPU, *trees[i].Get("device")).eq(3 * (2 + number)).all().item<bool>());
    }
  }, Options("cpu:gloo,privateuseone:device"));
}

TEST(MixedTree, ALeafOnAnotherKindOfDeviceThanTheOtherRanksIsNamed) {
  RegisterOnDevice("device");
  WithGroup(2, [](const Group& group) {
    const at::Tensor host = at::ones({kNumel});
    const at::Tensor other = at::ones({kNumel});
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("host", host));
    LEAFPACK_ASSERT_OK(tree.Set({"deep", "other"}, group.rank().value() == 0 ? other : OnDevice(other)));
    const absl::Status status = AllReduce(tree, group);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("other"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("privateuseone"));
    EXPECT_TRUE(host.eq(1).all().item<bool>());
    EXPECT_TRUE(other.eq(1).all().item<bool>());
  }, Options("cpu:gloo,privateuseone:device"));
}

TEST(MixedTree, AFailureOfTheDeviceIsTheCallsAndRestoresBoth) {
  const std::shared_ptr<MockControl> control = RegisterOnDevice("device-broken");
  auto* failed = new absl::Barrier(2);
  WithGroup(2, [&](const Group& group) {
    const at::Tensor host = at::ones({kNumel});
    const at::Tensor device = at::ones({kNumel});
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("host", host));
    LEAFPACK_ASSERT_OK(tree.Set("device", OnDevice(device)));
    {
      const auto stream = std::make_shared<MockStream>();
      const WithMockStream current(stream);
      auto go_on = std::make_shared<absl::Notification>();
      stream->Put([go_on] { go_on->WaitForNotification(); });
      control->broken = true;
      const absl::Status status = AllReduce(tree, group, {.on_failure = OnFailure::kRestore});
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), HasSubstr("remote process exited"));
      go_on->Notify();
    }
    if (failed->Block()) delete failed;
    control->broken = false;
    EXPECT_TRUE(host.eq(1).all().item<bool>());
    TensorDict next;
    const at::Tensor next_device = at::ones({kNumel});
    LEAFPACK_ASSERT_OK(next.Set("host", host));
    LEAFPACK_ASSERT_OK(next.Set("device", OnDevice(next_device)));
    LEAFPACK_ASSERT_OK(AllReduce(next, group));
    EXPECT_TRUE(host.eq(2).all().item<bool>());
    EXPECT_TRUE(next_device.eq(2).all().item<bool>());
  }, Options("cpu:gloo,privateuseone:device-broken"));
}

}  // namespace
}  // namespace leafpack
