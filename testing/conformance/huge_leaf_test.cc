// A leaf of more than 2^31 elements and bytes: no count of them may be kept in 32 bits on any way.
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/distributed.h"
#include "testing/matchers.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

constexpr int64_t kElements = (int64_t{1} << 31) + 4099;
// The last ones of 32 bits, signed, and what comes next.
constexpr std::array<int64_t, 4> kMarked = {0, (int64_t{1} << 31) - 1, int64_t{1} << 31,
                                            kElements - 1};

class HugeLeafTest : public ::testing::TestWithParam<std::string> {};

// rank + 1 everywhere, but for the marked ones.
void Fill(at::Tensor& leaf, int rank) {
  leaf.fill_(rank + 1);
  for (size_t k = 0; k < kMarked.size(); ++k) {
    leaf[kMarked[k]].fill_(10 * (rank + 1) + static_cast<int64_t>(k));
  }
}

void ExpectLeaf(const at::Tensor& leaf, int everywhere, const std::array<int, 4>& marked) {
  ASSERT_EQ(leaf.numel(), kElements);
  const auto* data = leaf.const_data_ptr<uint8_t>();
  std::array<int64_t, 256> count = {};
  for (int64_t i = 0; i < kElements; ++i) ++count[data[i]];
  EXPECT_EQ(count[static_cast<size_t>(everywhere)], kElements - 4);
  for (size_t k = 0; k < kMarked.size(); ++k) {
    EXPECT_EQ(data[kMarked[k]], marked[k]) << "element " << kMarked[k];
  }
}

TEST_P(HugeLeafTest, IsReducedAndMoved) {
  absl::StatusOr<std::vector<Group>> groups =
      LocalGroups(2, {.backend = GetParam(), .timeout = absl::Minutes(10)});
  ASSERT_TRUE(groups.ok()) << groups.status();
  RunRanksAsThreads(
      2,
      [&](int rank) {
        const Group group = std::move((*groups)[static_cast<size_t>(rank)]);
        at::Tensor leaf = at::full({kElements}, 0, at::kByte);
        TensorDict tree;
        ASSERT_THAT(tree.Set("huge", leaf), IsOk());
        Fill(leaf, rank);
        ASSERT_THAT(AllReduce(tree, group), IsOk());
        ExpectLeaf(leaf, 3, {30, 32, 34, 36});
        Fill(leaf, rank);
        ReduceOptions options;
        options.op = ReduceOp::kMax;
        ASSERT_THAT(Reduce(tree, GroupRank(1), group, options), IsOk());
        if (rank == 1) {
          ExpectLeaf(leaf, 2, {20, 21, 22, 23});
        } else {
          ExpectLeaf(leaf, 1, {10, 11, 12, 13});
        }
        Fill(leaf, rank);
        ASSERT_THAT(Broadcast(tree, GroupRank(1), group).status(), IsOk());
        ExpectLeaf(leaf, 2, {20, 21, 22, 23});
        Fill(leaf, rank);
        if (rank == 0) {
          ASSERT_THAT(Send(tree, GroupRank(1), group), IsOk());
        } else {
          ASSERT_THAT(Recv(tree, GroupRank(0), group), IsOk());
        }
        ExpectLeaf(leaf, 1, {10, 11, 12, 13});
      },
      {.deadline = absl::Minutes(12), .after_failure = absl::Minutes(1)});
}

INSTANTIATE_TEST_SUITE_P(Backends, HugeLeafTest, ::testing::Values("gloo", "shm", "socket"),
                         [](const ::testing::TestParamInfo<std::string>& tested) {
                           return tested.param;
                         });

}  // namespace
}  // namespace leafpack
