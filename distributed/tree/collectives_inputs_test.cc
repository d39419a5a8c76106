// Trees that change between calls, and trees to be written that must be refused.
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/collectives_testutil.h"

namespace leafpack {
namespace {

using testing::ExpectUsable;
using testing::Values;
using testing::WithGroup;

constexpr int64_t kSmall = 8;
constexpr int64_t kLarge = 300'000;

TensorDict OneLeaf(const at::Tensor& leaf) {
  TensorDict tree;
  EXPECT_TRUE(tree.Set("x", leaf).ok());
  return tree;
}

// What a rank without a tree gets from `tree` of rank 0.
TensorDict Received(const TensorDict& tree, const Group& group) {
  const bool is_root = group.rank().value() == 0;
  const auto result =
      Broadcast(is_root ? std::optional<TreeArg>(tree) : std::nullopt, GroupRank(0), group);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result->Dict();
}

TEST(CollectivesInputsTest, BatchSizesAndNamesAreThoseOfTheCall) {
  WithGroup(2, [](const Group& group) {
    TensorDict tree = OneLeaf(Values(at::kFloat, {4, 3, 2}, 1));
    TensorDict node;
    ASSERT_TRUE(node.Set("y", Values(at::kFloat, {4, 3, 5}, 2)).ok());
    ASSERT_TRUE(tree.Set("node", node).ok());
    EXPECT_EQ(Received(tree, group).batch_size(), at::IntArrayRef({}));
    ASSERT_TRUE(tree.SetBatchSize({4}).ok());
    EXPECT_EQ(Received(tree, group).batch_size(), at::IntArrayRef({4}));
    ASSERT_TRUE(tree.SetBatchSize({4, 3}).ok());
    EXPECT_EQ(Received(tree, group).batch_size(), at::IntArrayRef({4, 3}));
    ASSERT_TRUE(tree.SetNames({"time", "env"}).ok());
    EXPECT_EQ(Received(tree, group).names(), (std::vector<std::string>{"time", "env"}));
    ASSERT_TRUE(tree.SetNames({}).ok());
    EXPECT_TRUE(Received(tree, group).names().empty());
  });
}

void ExpectRefused(const std::function<TensorDict(const Group&, int64_t)>& make_out,
                   const std::function<TensorDict(const TensorDict&, const Group&, int64_t)>& make_in,
                   std::string_view text) {
  for (const int64_t elements : {kSmall, kLarge}) {
    WithGroup(2, [&](const Group& group) {
      const TensorDict out = make_out(group, elements);
      const TensorDict tree = make_in(out, group, elements);
      const auto result = AllGatherJoined(tree, Joining::kStack, out, group);
      EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
      EXPECT_TRUE(absl::StrContains(result.status().message(), text)) << result.status();
      ExpectUsable(group);
    });
  }
}

TensorDict Fresh(const TensorDict&, const Group& group, int64_t elements) {
  return OneLeaf(Values(at::kFloat, {elements}, group.rank().value()));
}

TEST(CollectivesInputsTest, AJoinedTreeOnAnotherDeviceIsRefused) {
  ExpectRefused(
      [](const Group&, int64_t n) {
        return OneLeaf(at::empty({2, n}, at::TensorOptions(at::kMeta).dtype(at::kFloat)));
      },
      Fresh, "meta");
}

TEST(CollectivesInputsTest, ASparseJoinedTreeIsRefused) {
  ExpectRefused([](const Group&, int64_t n) { return OneLeaf(at::zeros({2, n}).to_sparse()); }, Fresh,
                "sparse");
}

TEST(CollectivesInputsTest, AJoinedTreeOverWhatAnotherRankSendsIsRefused) {
  const auto make_out = [](const Group&, int64_t n) { return OneLeaf(at::zeros({2, n})); };
  // The place of the other rank, and one that lies across both.
  ExpectRefused(
      make_out,
      [](const TensorDict& out, const Group& group, int64_t) {
        return OneLeaf(out.Get("x")->select(0, 1 - group.rank().value()));
      },
      "memory");
  ExpectRefused(
      make_out,
      [](const TensorDict& out, const Group&, int64_t n) {
        return OneLeaf(out.Get("x")->view({2 * n}).narrow(0, n / 2, n));
      },
      "memory");
}

TEST(CollectivesInputsTest, ATreeMayLieInItsOwnPlaceOfTheJoinedOne) {
  for (const int64_t elements : {kSmall, kLarge}) {
    WithGroup(2, [&](const Group& group) {
      const int rank = group.rank().value();
      const TensorDict out = OneLeaf(at::zeros({2, elements}));
      const at::Tensor own = out.Get("x")->select(0, rank);
      own.copy_(Values(at::kFloat, {elements}, rank));
      const auto result = AllGatherJoined(OneLeaf(own), Joining::kStack, out, group);
      ASSERT_TRUE(result.ok()) << result.status();
      for (int r = 0; r < 2; ++r) {
        EXPECT_TRUE(at::equal(out.Get("x")->select(0, r), Values(at::kFloat, {elements}, r)));
      }
    });
  }
}

}  // namespace
}  // namespace leafpack
