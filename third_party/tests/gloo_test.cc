// ProcessGroupGloo from the wheel with the pinned Gloo headers: two ranks as threads.

#include <chrono>
#include <thread>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/full.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace {

TEST(GlooTest, TwoRanksSum) {
  constexpr int kRanks = 2;
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<at::Tensor> tensors;
  for (int rank = 0; rank < kRanks; ++rank) {
    tensors.push_back(at::full({1000}, rank + 1.0));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto options = c10d::ProcessGroupGloo::Options::create();
      options->timeout = std::chrono::seconds(60);
      options->devices.push_back(
          c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      c10d::ProcessGroupGloo group(store, rank, kRanks, options);
      std::vector<at::Tensor> tensor = {tensors[rank]};
      group.allreduce(tensor)->wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& tensor : tensors) {
    EXPECT_TRUE(tensor.equal(at::full({1000}, 3.0)));
  }
}

}  // namespace
