// The CUDA wheel of torch, CUDA's run-time and NCCL in one program.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <exception>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace leafpack {
namespace {

TEST(Cuda, VersionsAreThosePinned) {
  int run_time = 0;
  ASSERT_EQ(cudaRuntimeGetVersion(&run_time), cudaSuccess);
  EXPECT_EQ(run_time, CUDART_VERSION);
  int nccl = 0;
  ASSERT_EQ(ncclGetVersion(&nccl), ncclSuccess);
  EXPECT_EQ(nccl, NCCL_VERSION_CODE);
}

// libtorch_cuda.so was loaded, with all that it needs, and has registered itself.
TEST(Cuda, LibtorchHasKernels) {
  const auto copy = c10::Dispatcher::singleton().findSchema({"aten::_foreach_copy_", ""});
  ASSERT_TRUE(copy.has_value());
  EXPECT_TRUE(copy->hasKernelForDispatchKey(c10::DispatchKey::CUDA));
}

TEST(Cuda, ProcessGroupOfOne) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  if (c10::cuda::device_count() == 0) {
    // c10d says so, rather than crash.
    try {
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, 0, 1);
      FAIL() << "a process group of NCCL without a GPU";
    } catch (const std::exception& e) {
      EXPECT_NE(std::string(e.what()).find("no GPUs found"), std::string::npos) << e.what();
    }
    GTEST_SKIP() << "this machine has no GPU that CUDA can use";
  }
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, 0, 1);
  std::vector<at::Tensor> tensors = {at::full({4}, 3.0, at::TensorOptions().device(at::kCUDA))};
  group->allreduce(tensors)->wait();
  EXPECT_EQ(tensors[0].sum().item<double>(), 12.0);
}

}  // namespace
}  // namespace leafpack
