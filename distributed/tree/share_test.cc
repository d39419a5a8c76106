// Share: what the moved leaves are, that all-reduces of them give the bits of ordinary ones, what happens
// when ranks drop or replace leaves, and what is refused. Ranks as threads over shared memory.
#include "distributed/tree/share.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack::testing {
namespace {

void ExpectSays(const absl::Status& status, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " is not in " << status;
  }
}

// More than goes through the slots at once.
constexpr int64_t kLarge = 400'000;

void WithShm(int ranks, const std::function<void(const Group&)>& body) {
  WithGroup(ranks, body, {.backend = "shm"});
}

TensorDict Shared(const TensorDict& tree, const Group& group) {
  absl::StatusOr<TensorDict> shared = Share(tree, group);
  EXPECT_TRUE(shared.ok()) << shared.status();
  return shared.ok() ? *std::move(shared) : TensorDict();
}

at::Tensor Leaf(const TensorDict& tree, const NestedKey& key) {
  absl::StatusOr<at::Tensor> leaf = tree.Get(key);
  EXPECT_TRUE(leaf.ok()) << leaf.status();
  return leaf.ok() ? *std::move(leaf) : at::Tensor();
}

at::Tensor Ordinary(std::string_view path, const Group& group, int64_t elements = kLarge) {
  return MakeLeaf(path, at::kFloat, {elements}, group.rank().value());
}

TensorDict TwoLeaves(const Group& group) {
  TensorDict tree;
  EXPECT_TRUE(tree.Set({"m", "x"}, Ordinary("x", group)).ok());
  EXPECT_TRUE(tree.Set({"m", "y"}, Ordinary("y", group)).ok());
  return tree;
}

void ExpectSum(const at::Tensor& leaf, std::string_view path, const Group& group,
               int64_t elements = kLarge) {
  EXPECT_TRUE(BitEqual(
      leaf, Expected(path, at::kFloat, {elements}, group.size(), ReduceOpKind::kSum)))
      << path << " on rank " << group.rank().value();
}

// Where threads wait for each other.
class Meeting {
 public:
  explicit Meeting(int threads) : threads_(threads) {}
  void Wait() {
    absl::MutexLock lock(&mutex_);
    const int until = (came_++ / threads_ + 1) * threads_;
    const auto all_here = [&] { return came_ >= until; };
    mutex_.Await(absl::Condition(&all_here));
  }

 private:
  const int threads_;
  absl::Mutex mutex_;
  int came_ = 0;
};

// Mappings of shared segments in this process, by all ranks.
int Mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) count += absl::StrContains(line, "memfd:leafpack") ? 1 : 0;
  return count;
}

class ShareTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShareTest, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

TEST_P(ShareTest, LeavesKeepAllButTheirMemory) {
  WithShm(GetParam(), [](const Group& group) {
    const int rank = group.rank().value();
    TensorDict tree;
    const at::Tensor a = MakeLeaf("a", at::kFloat, {5, 7}, rank);
    LEAFPACK_ASSERT_OK(tree.Set("a", a));
    LEAFPACK_ASSERT_OK(tree.Set("again", a));
    LEAFPACK_ASSERT_OK(tree.Set("turned", a.t()));
    const at::Tensor wide = MakeLeaf("w", at::kDouble, {6, 10}, rank);
    LEAFPACK_ASSERT_OK(tree.Set({"n", "columns"}, wide.slice(1, 2, 8).t()));
    LEAFPACK_ASSERT_OK(tree.Set({"n", "same_columns"}, wide.slice(1, 2, 8)));
    LEAFPACK_ASSERT_OK(tree.Set({"n", "half"}, MakeLeaf("h", at::kHalf, {3}, rank)));
    LEAFPACK_ASSERT_OK(tree.Set({"n", "none"}, at::empty({0, 4})));
    LEAFPACK_ASSERT_OK(tree.Set({"n", "one"}, MakeLeaf("o", at::kComplexDouble, {}, rank)));
    at::Tensor parameter = MakeLeaf("p", at::kFloat, {9}, rank);
    parameter.set_requires_grad(true);
    LEAFPACK_ASSERT_OK(tree.Set("parameter", parameter));
    LEAFPACK_ASSERT_OK(tree.Set({"n", "step"}, 7));

    const TensorDict shared = Shared(tree, group);
    EXPECT_EQ(shared.num_leaves(), tree.num_leaves());
    EXPECT_EQ(shared.GetNonTensor({"n", "step"})->AsInt(), 7);
    tree.Visit([&](const NestedKey& path, const at::Tensor& old) {
      const at::Tensor leaf = Leaf(shared, path);
      EXPECT_TRUE(BitEqual(leaf.detach(), old.detach())) << path.ToString();
      EXPECT_EQ(leaf.requires_grad(), old.requires_grad()) << path.ToString();
      EXPECT_TRUE(leaf.is_leaf());
      if (old.numel() > 0) {
        EXPECT_NE(leaf.const_data_ptr(), old.const_data_ptr());
      }
      if (old.is_non_overlapping_and_dense()) {
        EXPECT_EQ(leaf.strides(), old.strides());
      }
    });
    EXPECT_TRUE(Leaf(shared, "a").is_same(Leaf(shared, "again")));
    EXPECT_EQ(Leaf(shared, "turned").const_data_ptr(), Leaf(shared, "a").const_data_ptr());
    EXPECT_EQ(Leaf(shared, {"n", "columns"}).const_data_ptr(),
              Leaf(shared, {"n", "same_columns"}).const_data_ptr());
    EXPECT_EQ(Leaf(shared, {"n", "columns"}).strides(), at::IntArrayRef({1, 6}));
    // The given tree keeps its own memory.
    Leaf(shared, "a").fill_(-1);
    EXPECT_TRUE(BitEqual(a, MakeLeaf("a", at::kFloat, {5, 7}, rank)));
    EXPECT_EQ(Leaf(shared, "turned").min().item<float>(), -1.0f);
    const at::NoGradGuard no_grad;
    Leaf(shared, "parameter").add_(1);
  });
}

TEST_P(ShareTest, ReducesInPlaceAgainAndAgain) {
  const int ranks = GetParam();
  WithShm(ranks, [&](const Group& group) {
    const int rank = group.rank().value();
    const TensorDict tree = Shared(TwoLeaves(group), group);
    const void* const x = Leaf(tree, {"m", "x"}).const_data_ptr();
    for (int round = 0; round < 3; ++round) {
      // Written in place, in whole and through views.
      Leaf(tree, {"m", "x"}).copy_(Ordinary("x", group));
      const at::Tensor y = Ordinary("y", group);
      Leaf(tree, {"m", "y"}).slice(0, 0, 1000).copy_(y.slice(0, 0, 1000));
      Leaf(tree, {"m", "y"}).slice(0, 1000).copy_(y.slice(0, 1000));
      const OnFailure on_failure = round == 1 ? OnFailure::kRestore : OnFailure::kReport;
      LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.on_failure = on_failure}));
      ExpectSum(Leaf(tree, {"m", "x"}), "x", group);
      ExpectSum(Leaf(tree, {"m", "y"}), "y", group);
    }
    EXPECT_EQ(Leaf(tree, {"m", "x"}).const_data_ptr(), x);
    // With a factor it works on copies, one leaf at a time.
    Leaf(tree, {"m", "x"}).fill_(1);
    AllReduceOptions options;
    options.op = ReduceOp::PremulSum(rank + 1);
    options.bucketing = Bucketing::PerLeaf();
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, options));
    EXPECT_EQ(Leaf(tree, {"m", "x"}).min().item<float>(), ranks * (ranks + 1) / 2.0f);
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.op = ReduceOp::kAvg}));
  });
}

TEST_P(ShareTest, EveryDtypeHasTheBitsOfOrdinaryLeaves) {
  WithShm(GetParam(), [](const Group& group) {
    TensorDict tree;
    for (const at::ScalarType dtype : AllDtypes()) {
      const std::string name = at::toString(dtype);
      LEAFPACK_ASSERT_OK(
          tree.Set({"t", name}, MakeLeaf(name, dtype, {70'001}, group.rank().value())));
    }
    const TensorDict shared = Shared(tree, group);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
      LEAFPACK_ASSERT_OK(AllReduce(shared, group, {.op = op}));
      LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.op = op}));
      tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
        EXPECT_TRUE(BitEqual(leaf, Leaf(shared, path))) << path.ToString();
      });
    }
  });
}

TEST_P(ShareTest, SeveralCallsInFlightAndSeveralTrees) {
  WithShm(GetParam(), [](const Group& group) {
    const TensorDict first = Shared(TwoLeaves(group), group);
    TensorDict other;
    LEAFPACK_ASSERT_OK(other.Set("z", Ordinary("z", group)));
    const TensorDict second = Shared(other, group);
    // Leaves of both arenas, and of none, in one tree; and trees that are under way together.
    TensorDict mixed;
    LEAFPACK_ASSERT_OK(mixed.Set("a", Leaf(first, {"m", "x"})));
    LEAFPACK_ASSERT_OK(mixed.Set("b", Ordinary("b", group)));
    LEAFPACK_ASSERT_OK(mixed.Set("c", Leaf(second, "z")));
    LEAFPACK_ASSERT_OK(mixed.Set("d", Leaf(second, "z").detach().clone()));
    TensorDict rest;
    LEAFPACK_ASSERT_OK(rest.Set("y", Leaf(first, {"m", "y"})));
    absl::StatusOr<TreeWork> one = AllReduceAsync(mixed, group);
    absl::StatusOr<TreeWork> two = AllReduceAsync(rest, group);
    LEAFPACK_ASSERT_OK(one.status());
    LEAFPACK_ASSERT_OK(two.status());
    LEAFPACK_ASSERT_OK(two->Wait());
    LEAFPACK_ASSERT_OK(one->Wait());
    ExpectSum(Leaf(first, {"m", "x"}), "x", group);
    ExpectSum(Leaf(first, {"m", "y"}), "y", group);
    ExpectSum(Leaf(mixed, "b"), "b", group);
    ExpectSum(Leaf(second, "z"), "z", group);
    ExpectSum(Leaf(mixed, "d"), "z", group);
  });
}

TEST_P(ShareTest, ReplacedLeavesGoTheOrdinaryWay) {
  WithShm(GetParam(), [](const Group& group) {
    TensorDict tree = Shared(TwoLeaves(group), group);
    // On all ranks.
    LEAFPACK_ASSERT_OK(tree.Set({"m", "x"}, Ordinary("x", group)));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    ExpectSum(Leaf(tree, {"m", "x"}), "x", group);
    ExpectSum(Leaf(tree, {"m", "y"}), "y", group);
    // On one rank; and there the leaf of another arena, or another place of the same.
    const TensorDict fresh = Shared(TwoLeaves(group), group);
    TensorDict swapped;
    const bool other = group.rank().value() == group.size() - 1;
    LEAFPACK_ASSERT_OK(swapped.Set({"m", "x"}, Leaf(fresh, {"m", other ? "y" : "x"})));
    LEAFPACK_ASSERT_OK(swapped.Set({"m", "y"}, Leaf(fresh, {"m", other ? "x" : "y"})));
    Leaf(swapped, {"m", "x"}).copy_(Ordinary("x", group));
    Leaf(swapped, {"m", "y"}).copy_(Ordinary("y", group));
    LEAFPACK_ASSERT_OK(AllReduce(swapped, group));
    ExpectSum(Leaf(swapped, {"m", "x"}), "x", group);
    ExpectSum(Leaf(swapped, {"m", "y"}), "y", group);
    if (other) LEAFPACK_ASSERT_OK(swapped.Set({"m", "x"}, Ordinary("x", group)));
    Leaf(swapped, {"m", "x"}).copy_(Ordinary("x", group));
    Leaf(swapped, {"m", "y"}).copy_(Ordinary("y", group));
    LEAFPACK_ASSERT_OK(AllReduce(swapped, group));
    ExpectSum(Leaf(swapped, {"m", "x"}), "x", group);
    ExpectSum(Leaf(swapped, {"m", "y"}), "y", group);
    // Parts of a leaf: in memory order where they are one run, ordinary where they have gaps.
    const TensorDict whole = Shared(TwoLeaves(group), group);
    TensorDict parts;
    const at::Tensor x = Leaf(whole, {"m", "x"}).view({400, 1000});
    LEAFPACK_ASSERT_OK(parts.Set("left", x.slice(1, 0, 500)));
    LEAFPACK_ASSERT_OK(parts.Set("right", x.slice(1, 500, 1000)));
    LEAFPACK_ASSERT_OK(parts.Set("y", Leaf(whole, {"m", "y"}).slice(0, 7, kLarge)));
    LEAFPACK_ASSERT_OK(AllReduce(parts, group));
    ExpectSum(Leaf(whole, {"m", "x"}), "x", group);
    const at::Tensor y = Expected("y", at::kFloat, {kLarge}, group.size(), ReduceOpKind::kSum);
    EXPECT_TRUE(BitEqual(Leaf(parts, "y"), y.slice(0, 7, kLarge)));
    EXPECT_TRUE(BitEqual(Leaf(whole, {"m", "y"}).slice(0, 0, 7), Ordinary("y", group, 7)));
  });
}

TEST(Share, AnotherGroupOfTheSameRanksCopies) {
  WithGroups(2, 2, [](const std::vector<Group>& groups) {
    const TensorDict tree = Shared(TwoLeaves(groups[0]), groups[0]);
    LEAFPACK_ASSERT_OK(AllReduce(tree, groups[1]));
    ExpectSum(Leaf(tree, {"m", "x"}), "x", groups[1]);
  }, {.backend = "shm"});
}

TEST(Share, TheLastRankThatDropsReleasesTheMemory) {
  const int before = Mappings();
  Meeting meeting(2);
  WithShm(2, [&](const Group& group) {
    TensorDict tree = Shared(TwoLeaves(group), group);
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    const int rank = group.rank().value();
    at::Tensor kept = Leaf(tree, {"m", "y"}).slice(0, 3, 9);  // a view holds it too
    tree = TwoLeaves(group);
    meeting.Wait();
    const int with_all = Mappings();
    meeting.Wait();
    if (rank == 0) kept.reset();
    meeting.Wait();
    // This rank's own mappings are all there, with the values, while the other one's are gone.
    EXPECT_EQ(Mappings(), with_all - 2);
    if (rank == 1) {
      EXPECT_TRUE(BitEqual(
          kept, Expected("y", at::kFloat, {9}, 2, ReduceOpKind::kSum).slice(0, 3, 9)));
    }
    meeting.Wait();
    // One has ordinary leaves, the other one could use the arena: both take the ordinary way.
    TensorDict mixed = TwoLeaves(group);
    if (rank == 1) LEAFPACK_ASSERT_OK(mixed.Set({"m", "x"}, Leaf(Shared(mixed, group), {"m", "x"})));
    if (rank == 0) Shared(mixed, group);  // dropped at once
    LEAFPACK_ASSERT_OK(AllReduce(mixed, group));
    ExpectSum(Leaf(mixed, {"m", "x"}), "x", group);
    ExpectSum(Leaf(mixed, {"m", "y"}), "y", group);
  });
  EXPECT_EQ(Mappings(), before);
}

TEST(Share, MayOutliveItsGroup) {
  std::vector<at::Tensor> kept(2);
  WithShm(2, [&](const Group& group) {
    kept[static_cast<size_t>(group.rank().value())] =
        Leaf(Shared(TwoLeaves(group), group), {"m", "x"});
  });
  for (const at::Tensor& leaf : kept) leaf.add_(1);
  WithShm(2, [&](const Group& group) {
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("x", kept[static_cast<size_t>(group.rank().value())]));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_TRUE(BitEqual(Leaf(tree, "x"), Expected("x", at::kFloat, {kLarge}, 2, ReduceOpKind::kSum)
                                              .add(2)));
  });
}

TEST(Share, DifferencesNamePathAndRanks) {
  WithShm(2, [](const Group& group) {
    TensorDict tree = TwoLeaves(group);
    const bool other = group.rank().value() == 1;
    LEAFPACK_ASSERT_OK(tree.Set({"m", "y"}, Ordinary("y", group, other ? 5 : 6)));
    absl::Status status = Share(tree, group).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(GetErrorDetails(status).path, "m.y") << status;
    ExpectSays(status, {"share", "[5]", "[6]"});
    // A mix-up of calls.
    const TensorDict same = TwoLeaves(group);
    status = other ? Share(same, group).status() : AllReduce(same, group);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    ExpectSays(status, {"share", "all_reduce"});
    // What one rank finds wrong is told to the other.
    TensorDict bad = TwoLeaves(group);
    if (other) LEAFPACK_ASSERT_OK(bad.Set({"m", "y"}, at::full({1}, 1.0f).expand({9})));
    status = Share(bad, group).status();
    EXPECT_EQ(status.code(), other ? absl::StatusCode::kInvalidArgument
                                   : absl::StatusCode::kFailedPrecondition)
        << status;
    ExpectSays(status, {"m.y"});
    const TensorDict good = Shared(same, group);
    LEAFPACK_ASSERT_OK(AllReduce(good, group));
    ExpectSum(Leaf(good, {"m", "x"}), "x", group);
  });
}

TEST(Share, MemoryThatCannotBeHadIsAnErrorOnAllRanks) {
  const int before = Mappings();
  WithShm(2, [](const Group& group) {
    // The address space alone is there: two arenas of this size are more than the machine has.
    std::ifstream info("/proc/meminfo");
    std::string word;
    int64_t kibibytes = 0;
    info >> word >> kibibytes;
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("huge", at::empty({kibibytes * 1024 / 5 * 3}, at::kByte)));
    const absl::Status status = Share(tree, group).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ExpectSays(status, {"group rank 0"});
    const TensorDict shared = Shared(TwoLeaves(group), group);
    LEAFPACK_ASSERT_OK(AllReduce(shared, group));
    ExpectSum(Leaf(shared, {"m", "x"}), "x", group);
  });
  EXPECT_EQ(Mappings(), before);
}

TEST(Share, WithoutSharedMemoryItIsUnimplemented) {
  WithGroup(2, [](const Group& group) {
    const TensorDict tree = TwoLeaves(group);
    const absl::Status status = Share(tree, group).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    ExpectSays(status, {"gloo does not share memory"});
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    ExpectSum(Leaf(tree, {"m", "x"}), "x", group);
  });
}

}  // namespace
}  // namespace leafpack::testing
