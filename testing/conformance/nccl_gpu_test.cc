// Trees with leaves on a GPU and on the host through a group of "cpu:gloo,cuda:nccl", of one rank. Skipped without a
// GPU; nccl_test has more ranks, over a mock.
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAFunctions.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/distributed.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack {
namespace {

// More bytes than ride in the control channel.
constexpr int64_t kNumel = 50'000;

TEST(NcclGpuTree, LeavesOnBothKindsOfDevice) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
  GroupOptions options;
  options.backend = "cpu:gloo,cuda:nccl";
  options.timeout = absl::Minutes(2);
  testing::WithGroup(1, [](const Group& group) {
    const at::Tensor host = at::full({kNumel}, 1.0);
    const at::Tensor small = at::full({10}, 1.0, at::TensorOptions().device(at::kCUDA));
    const at::Tensor large = at::full({1000, 1000}, 1.0, at::TensorOptions().device(at::kCUDA));
    TensorDict tree;
    LEAFPACK_ASSERT_OK(tree.Set("host", host));
    LEAFPACK_ASSERT_OK(tree.Set("small", small));
    LEAFPACK_ASSERT_OK(tree.Set("large", large));
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.op = ReduceOp::PremulSum(3)}));
    const absl::StatusOr<TreeWork> work = AllReduceAsync(tree, group, {.on_failure = OnFailure::kRestore});
    LEAFPACK_ASSERT_OK(work.status());
    LEAFPACK_ASSERT_OK(work->Wait());
    for (const at::Tensor& leaf : {host, small, large}) EXPECT_TRUE(leaf.eq(3).all().item<bool>());
  }, options);
}

}  // namespace
}  // namespace leafpack
