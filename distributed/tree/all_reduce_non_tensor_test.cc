// Leaves that are no tensors: compared by the agreement, passed over by the reduction.
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One tree that rides with its digest, one that does not.
class AllReduceNonTensorTest : public ::testing::TestWithParam<int64_t> {
 protected:
  static TensorDict Tree(const NonTensor& step) {
    TensorDict tree;
    EXPECT_TRUE(tree.Set("a_name", "resnet").ok());
    EXPECT_TRUE(tree.Set({"m", "step"}, step).ok());
    EXPECT_TRUE(tree.Set({"m", "w"}, at::full({GetParam()}, 1.5)).ok());
    EXPECT_TRUE(tree.Set("z", at::full({}, 2.0)).ok());
    return tree;
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, AllReduceNonTensorTest, ::testing::Values(3, 100'000),
                         ::testing::PrintToStringParamName());

TEST_P(AllReduceNonTensorTest, EqualValuesStay) {
  for (const int ranks : {1, 2, 3}) {
    WithGroup(ranks, [&](const Group& group) {
      TensorDict tree = Tree(7);
      AllReduceStats stats;
      LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.stats = &stats}));
      EXPECT_EQ(tree.Get({"m", "w"})->sum().item<double>(),
                1.5 * static_cast<double>(GetParam()) * ranks);
      EXPECT_EQ(tree.Get("z")->item<double>(), 2.0 * ranks);
      EXPECT_EQ(tree.GetNonTensor({"m", "step"})->AsInt(), 7);
      EXPECT_EQ(stats.leaves, 2);
      EXPECT_EQ(stats.skipped, 2);
      absl::StatusOr<TreeWork> work = AllReduceAsync(tree, group);
      LEAFPACK_ASSERT_OK(work.status());
      EXPECT_THAT(work->skipped_paths(), ElementsAre("a_name", "m.step"));
      LEAFPACK_ASSERT_OK(work->Wait());
      // A value that changes is a new call.
      LEAFPACK_ASSERT_OK(tree.Set({"m", "step"}, 8));
      LEAFPACK_ASSERT_OK(AllReduce(tree, group));
      EXPECT_EQ(tree.GetNonTensor({"m", "step"})->AsInt(), 8);
    });
  }
}

TEST_P(AllReduceNonTensorTest, AnotherValueIsADisagreement) {
  WithGroup(2, [&](const Group& group) {
    TensorDict tree = Tree(group.rank().value());
    const absl::Status status = AllReduce(tree, group);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("m.step"), HasSubstr("the value 0"), HasSubstr("the value 1")));
    EXPECT_EQ(GetErrorDetails(status).path, "m.step");
    EXPECT_EQ(tree.Get("z")->item<double>(), 2.0);
    // A value beside a tensor, and beside nothing.
    LEAFPACK_ASSERT_OK(group.rank().value() == 0 ? tree.Set({"m", "step"}, at::full({}, 1.0))
                                                 : absl::OkStatus());
    EXPECT_EQ(AllReduce(tree, group).code(), absl::StatusCode::kFailedPrecondition);
    LEAFPACK_ASSERT_OK(group.rank().value() == 0 ? tree.Erase({"m", "step"}) : absl::OkStatus());
    EXPECT_EQ(AllReduce(tree, group).code(), absl::StatusCode::kFailedPrecondition);
    LEAFPACK_ASSERT_OK(tree.Set({"m", "step"}, 1));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_EQ(tree.Get("z")->item<double>(), 4.0);
  });
}

TEST_P(AllReduceNonTensorTest, FiltersLeaveThemOut) {
  WithGroup(2, [&](const Group& group) {
    TensorDict tree = Tree(group.rank().value());
    absl::StatusOr<TreeWork> work =
        AllReduceAsync(tree, group, {.leaves = LeafFilter::Floating()});
    LEAFPACK_ASSERT_OK(work.status());
    EXPECT_THAT(work->skipped_paths(), IsEmpty());
    LEAFPACK_ASSERT_OK(work->Wait());
    // A predicate sees tensors only.
    LEAFPACK_ASSERT_OK(AllReduce(
        tree, group, {.leaves = LeafFilter::Where([](const NestedKey&, const at::Tensor& leaf) {
                        return leaf.numel() == 1;
                      })}));
    EXPECT_EQ(tree.Get("z")->item<double>(), 8.0);
    EXPECT_EQ(tree.GetNonTensor({"m", "step"})->AsInt(), group.rank().value());
  });
}

}  // namespace
}  // namespace leafpack::testing
