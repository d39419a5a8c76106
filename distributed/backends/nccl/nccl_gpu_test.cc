// The backend on GPUs. Where there is none, or one alone, tests are skipped, and say so.
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/backend.h"

namespace leafpack {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

LeafView ViewOf(const at::Tensor& leaf) {
  LeafView view;
  view.data = leaf.data_ptr();
  view.dtype = leaf.scalar_type();
  view.device = leaf.device();
  view.sizes = leaf.sizes().vec();
  view.strides = leaf.strides().vec();
  view.keep_alive = std::make_shared<at::Tensor>(leaf);
  return view;
}

absl::Status AllReduce(DataContext& context, const std::vector<at::Tensor>& leaves, ReduceOp op) {
  std::vector<LeafView> views;
  for (const at::Tensor& leaf : leaves) views.push_back(ViewOf(leaf));
  absl::StatusOr<std::unique_ptr<DataWork>> work = context.AllReduce(std::move(views), op);
  if (!work.ok()) return work.status();
  const absl::Time until = absl::Now() + kPatience;
  while (absl::Now() < until) {
    const absl::StatusOr<bool> done = (*work)->WaitFor(absl::Milliseconds(50));
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the work did not end");
}

// A rank per GPU, as threads.
void OnGpus(int size, const std::function<void(int rank, DataContext& context)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(rank));
      absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("nccl");
      ASSERT_TRUE(backend.ok()) << backend.status();
      DataContextOptions options;
      options.store = store;
      options.rank = rank;
      options.size = size;
      options.timeout = kPatience;
      absl::StatusOr<std::shared_ptr<DataContext>> context =
          (*backend)->Open(options, absl::Now() + kPatience);
      ASSERT_TRUE(context.ok()) << context.status();
      body(rank, **context);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

at::TensorOptions On(int rank, at::ScalarType dtype = at::kFloat) {
  return at::TensorOptions().dtype(dtype).device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
}

// Small, large and strided leaves of several dtypes, each all `value`.
std::vector<at::Tensor> Leaves(int rank, double value) {
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < 50; ++i) leaves.push_back(at::full({100 + i}, value, On(rank)));
  leaves.push_back(at::full({1 << 20}, value, On(rank)));
  leaves.push_back(at::full({1000, 1000}, value, On(rank)).t());
  leaves.push_back(at::full({64, 32}, value, On(rank)).slice(1, 0, 32, 3));
  leaves.push_back(at::full({77}, value, On(rank, at::kHalf)));
  leaves.push_back(at::full({77}, value, On(rank, at::kLong)));
  return leaves;
}

TEST(NcclGpu, WithoutAGpuTheBackendSaysSo) {
  if (c10::cuda::device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  const absl::Status status = MakeBackend("nccl").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("no GPU"));
}

TEST(NcclGpu, AGroupOfOne) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "this machine has no GPU that CUDA can use";
  OnGpus(1, [](int, DataContext& context) {
    const std::vector<at::Tensor> leaves = Leaves(0, 3);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const absl::Status status = AllReduce(context, leaves, op);
      ASSERT_TRUE(status.ok()) << status;
      for (const at::Tensor& leaf : leaves) EXPECT_TRUE(leaf.eq(3).all().item<bool>());
    }
  });
}

TEST(NcclGpu, AllReduceOverAllGpus) {
  const int size = c10::cuda::device_count();
  if (size < 2) GTEST_SKIP() << "this machine has " << size << " GPUs; two are needed";
  OnGpus(size, [size](int rank, DataContext& context) {
    const std::vector<at::Tensor> leaves = Leaves(rank, rank + 1);
    absl::Status status = AllReduce(context, leaves, ReduceOp::kSum);
    ASSERT_TRUE(status.ok()) << status;
    const int sum = size * (size + 1) / 2;
    for (const at::Tensor& leaf : leaves) EXPECT_TRUE(leaf.eq(sum).all().item<bool>());
    // NaN is kept, on all ranks and where it was.
    const at::Tensor values = at::full({size}, rank, On(rank));
    values[rank] = std::numeric_limits<float>::quiet_NaN();
    status = AllReduce(context, {values}, ReduceOp::kMax);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(values.isnan().all().item<bool>());
  });
}

TEST(NcclGpu, ARankThatDoesNotComeIsAborted) {
  const int size = c10::cuda::device_count();
  if (size < 2) GTEST_SKIP() << "this machine has " << size << " GPUs; two are needed";
  OnGpus(2, [](int rank, DataContext& context) {
    if (rank == 1) return;
    std::thread aborts([&] {
      absl::SleepFor(absl::Seconds(2));
      context.Abort();
    });
    EXPECT_EQ(AllReduce(context, {at::ones({10}, On(rank))}, ReduceOp::kSum).code(),
              absl::StatusCode::kCancelled);
    aborts.join();
  });
}

}  // namespace
}  // namespace leafpack
