#include "tensordict/bucket/buffer_pool.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace leafpack {
namespace {

BufferPool::Buffer Get(BufferPool& pool, int64_t bytes) {
  absl::StatusOr<BufferPool::Buffer> buffer = pool.Acquire(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return *std::move(buffer);
}

TEST(BufferPoolTest, BuffersAreAlignedAndWritable) {
  BufferPool pool;
  for (const int64_t bytes : {0, 1, 63, 64, 4096, 4097, 100000, 1 << 20, (1 << 20) + 1}) {
    BufferPool::Buffer buffer = Get(pool, bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kBufferAlignment, 0u);
    std::memset(buffer.data(), 0x5a, static_cast<size_t>(bytes));
  }
  EXPECT_EQ(pool.Acquire(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BufferPoolTest, BuffersAreUsedAgain) {
  BufferPool pool;
  void* first = Get(pool, 1000).data();
  EXPECT_EQ(Get(pool, 1000).data(), first);
  EXPECT_EQ(Get(pool, 900).data(), first);
  EXPECT_EQ(pool.stats().allocations, 1);
  {
    BufferPool::Buffer a = Get(pool, 1000);
    BufferPool::Buffer b = Get(pool, 1000);
    EXPECT_NE(a.data(), b.data());
    EXPECT_EQ(pool.stats().allocations, 2);
    EXPECT_EQ(pool.stats().in_use_bytes, 8192);
    EXPECT_EQ(pool.stats().free_bytes, 0);
  }
  EXPECT_EQ(pool.stats().in_use_bytes, 0);
  EXPECT_EQ(pool.stats().peak_in_use_bytes, 8192);
  EXPECT_EQ(pool.stats().free_bytes, 8192);
  // Not for something far smaller.
  (void)Get(pool, 1 << 20);
  (void)Get(pool, 100);
  EXPECT_EQ(pool.stats().allocations, 3);
  pool.Trim();
  EXPECT_EQ(pool.stats().free_bytes, 0);
}

TEST(BufferPoolTest, WhatIsKeptIsBounded) {
  BufferPool pool(10000);
  std::vector<BufferPool::Buffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back(Get(pool, 4096));
  EXPECT_EQ(pool.stats().in_use_bytes, 40960);
  buffers.clear();
  EXPECT_EQ(pool.stats().free_bytes, 8192);
  (void)Get(pool, 1 << 20);  // larger than the bound: never kept
  EXPECT_LE(pool.stats().free_bytes, 10000);
}

TEST(BufferPoolTest, ABufferOutlivesItsPool) {
  BufferPool::Buffer buffer;
  EXPECT_FALSE(buffer);
  EXPECT_EQ(buffer.data(), nullptr);
  {
    BufferPool pool;
    buffer = Get(pool, 100);
  }
  std::memset(buffer.data(), 1, 100);
  BufferPool::Buffer moved = std::move(buffer);
  EXPECT_FALSE(buffer);  // NOLINT(bugprone-use-after-move): the contract of a moved-from buffer
  EXPECT_TRUE(moved);
}

TEST(BufferPoolTest, AsTensorIsKept) {
  BufferPool pool;
  void* impl = nullptr;
  for (int i = 0; i < 3; ++i) {
    BufferPool::Buffer buffer = Get(pool, 400);
    const at::Tensor& floats = buffer.AsTensor(at::kFloat, 100);
    EXPECT_EQ(floats.data_ptr(), buffer.data());
    EXPECT_EQ(floats.sizes(), at::IntArrayRef({100}));
    EXPECT_FALSE(floats.requires_grad());
    if (i > 0) {
      EXPECT_EQ(floats.unsafeGetTensorImpl(), impl);
    }
    impl = floats.unsafeGetTensorImpl();
    EXPECT_EQ(buffer.AsTensor(at::kInt, 7).numel(), 7);
    EXPECT_EQ(buffer.AsTensor(at::kComplexDouble, 25).nbytes(), 400u);
  }
}

TEST(BufferPoolTest, Threads) {
  BufferPool pool(1 << 16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937_64 rng(static_cast<uint64_t>(t));
      std::vector<BufferPool::Buffer> held;
      for (int i = 0; i < 2000; ++i) {
        const auto bytes = static_cast<int64_t>(rng() % 20000);
        BufferPool::Buffer buffer = Get(pool, bytes);
        std::memset(buffer.data(), t, static_cast<size_t>(bytes));
        if (rng() % 2 == 0) held.push_back(std::move(buffer));
        for (const BufferPool::Buffer& b : held) {
          if (b.bytes() > 0) {
            ASSERT_EQ(*static_cast<const char*>(b.data()), t);
          }
        }
        if (held.size() > 5) held.erase(held.begin());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().in_use_bytes, 0);
  EXPECT_LE(pool.stats().free_bytes, 1 << 16);
}

TEST(BufferPoolTest, NoMemoryIsAnError) {
  BufferPool pool;
  const absl::Status s = pool.Acquire(int64_t{1} << 55).status();
  EXPECT_EQ(s.code(), absl::StatusCode::kResourceExhausted) << s;
  EXPECT_EQ(pool.stats().in_use_bytes, 0);
}

}  // namespace
}  // namespace leafpack
