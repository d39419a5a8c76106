// Asynchronous all-reduce: many in flight, works of single messages, waits that time out, dropped
// handles.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack {
namespace {

using ::leafpack::testing::BitEqual;
using ::leafpack::testing::Expected;
using ::leafpack::testing::MakeLeaf;
using ::leafpack::testing::WithGroup;
using ::testing::ElementsAre;

TEST(AllReduceAsyncTest, ManyInFlightOnOneGroup) {
  for (const int ranks : {1, 2, 4}) {
    WithGroup(ranks, [&](const Group& group) {
      std::vector<TensorDict> trees;
      std::vector<TreeWork> works;
      for (int i = 0; i < 60; ++i) {
        const int64_t numel = i % 3 == 0 ? 50'000 : 10;
        trees.emplace_back();
        LEAFPACK_ASSERT_OK(trees.back().Set("x", MakeLeaf(absl::StrCat(i), at::kFloat, {numel},
                                                 group.rank().value())));
        absl::StatusOr<TreeWork> work = AllReduceAsync(trees.back(), group);
        LEAFPACK_ASSERT_OK(work.status());
        works.push_back(*std::move(work));
      }
      for (int i = 59; i >= 0; --i) {  // in any order
        const auto index = static_cast<size_t>(i);
        LEAFPACK_ASSERT_OK(works[index].Wait());
        EXPECT_TRUE(works[index].IsDone());
        const int64_t numel = i % 3 == 0 ? 50'000 : 10;
        EXPECT_TRUE(BitEqual(
            trees[index].Get("x").value(),
            Expected(absl::StrCat(i), at::kFloat, {numel}, ranks, ReduceOpKind::kSum)));
      }
    });
  }
}

TEST(AllReduceAsyncTest, EachMessageHasAWork) {
  WithGroup(2, [](const Group& group) {
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("a", at::ones({50'000})));
    LEAFPACK_ASSERT_OK(tree.Set("b", at::ones({60'000})));
    const at::Tensor c = at::ones({70'000});
    LEAFPACK_ASSERT_OK(tree.Set("c", c));
    absl::StatusOr<TreeWork> work =
        AllReduceAsync(tree, group, {.bucketing = Bucketing::PerLeaf()});
    LEAFPACK_ASSERT_OK(work.status());
    ASSERT_EQ(work->size(), 3u);
    EXPECT_THAT(work->bucket(2).paths(), ElementsAre("c"));
    EXPECT_EQ(work->bucket(2).bytes(), 280'000);
    LEAFPACK_ASSERT_OK(work->bucket(2).Wait());
    EXPECT_TRUE(work->bucket(2).IsDone());
    EXPECT_EQ(c.sum().item<double>(), 140'000);
    LEAFPACK_ASSERT_OK(work->Wait());
    EXPECT_EQ(work->stats().buckets, 3);
  });
}

TEST(AllReduceAsyncTest, AWaitThatTimesOutLeavesTheCallRunning) {
  for (const int64_t numel : {10, 100'000}) {
    WithGroup(2, [&](const Group& group) {
      TensorDict tree;
      const at::Tensor x = at::ones({numel});
      LEAFPACK_ASSERT_OK(tree.Set("x", x));
      if (group.rank().value() == 1) absl::SleepFor(absl::Milliseconds(400));
      absl::StatusOr<TreeWork> work = AllReduceAsync(tree, group);
      LEAFPACK_ASSERT_OK(work.status());
      if (group.rank().value() == 0) {
        const absl::Status early = work->Wait(absl::Milliseconds(20));
        EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded) << early;
        EXPECT_EQ(x.sum().item<double>(), static_cast<double>(numel));
      }
      LEAFPACK_ASSERT_OK(work->Wait());
      EXPECT_EQ(x.sum().item<double>(), 2.0 * static_cast<double>(numel));
    });
  }
}

// Nobody waits: the call is finished all the same, and its error is not lost.
TEST(AllReduceAsyncTest, ADroppedHandleIsFinishedAndItsErrorRemembered) {
  for (const int64_t numel : {10, 100'000}) {
    WithGroup(2, [&](const Group& group) {
      const at::Tensor x = at::ones({numel});
      TensorDict tree;
      LEAFPACK_ASSERT_OK(tree.Set("x", x));
      const size_t owners = x.use_count();
      { LEAFPACK_ASSERT_OK(AllReduceAsync(tree, group).status()); }
      TensorDict other;
      LEAFPACK_ASSERT_OK(other.Set(group.rank().value() == 0 ? "left" : "right", at::ones({numel})));
      { LEAFPACK_ASSERT_OK(AllReduceAsync(other, group).status()); }
      absl::Status status;
      for (int i = 0; i < 2000 && status.ok(); ++i) {
        absl::SleepFor(absl::Milliseconds(5));
        // Both ranks see it sooner or later, maybe not in the same call: refusals keep them in step.
        TensorDict probe;
        LEAFPACK_ASSERT_OK(probe.Set("p", at::ones({2})));
        status = AllReduce(probe, group, {.timeout = absl::Seconds(60)});
      }
      EXPECT_FALSE(status.ok());
      // Without a handle only the references tell that the first call is over here: the error may have come
      // from the other rank, which was through with both.
      for (int i = 0; i < 12'000 && x.use_count() > owners; ++i) absl::SleepFor(absl::Milliseconds(5));
      EXPECT_EQ(x.sum().item<double>(), 2.0 * static_cast<double>(numel));
    });
  }
}

}  // namespace
}  // namespace leafpack
