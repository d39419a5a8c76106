#include "distributed/tree/device_work.h"

#include <thread>

#include <ATen/ops/full.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "gtest/gtest.h"

namespace leafpack::internal {
namespace {

using c10::DeviceType;

// Streams that are numbers, in place of CUDA's.
using Fake = c10::impl::FakeGuardImpl<DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, Fake)

int64_t Current(c10::DeviceIndex device) {
  return Fake::getCurrentStreamIdFor(device);
}

TEST(DeviceWork, AnotherThreadGoesOnOnTheCallersStreams) {
  Fake::resetStreams();
  const c10::impl::VirtualGuardImpl guard(DeviceType::CUDA);
  guard.exchangeStream(c10::Stream(c10::Stream::UNSAFE, c10::Device(DeviceType::CUDA, 0), 7));
  guard.exchangeStream(c10::Stream(c10::Stream::UNSAFE, c10::Device(DeviceType::CUDA, 3), 9));
  const CallerStreams streams = CallerStreams::Capture();
  std::thread([&] {
    EXPECT_EQ(Current(0), 0);
    {
      const CallerStreams::Guard on_them(streams);
      EXPECT_EQ(Current(0), 7);
      EXPECT_EQ(Current(1), 0);
      EXPECT_EQ(Current(3), 9);
    }
    EXPECT_EQ(Current(0), 0);
    EXPECT_EQ(Current(3), 0);
    const CallerStreams::Guard none{CallerStreams()};
    EXPECT_EQ(Current(0), 0);
  }).join();
  EXPECT_EQ(Current(0), 7);
}

TEST(DeviceWork, MultipliesInPlace) {
  const at::Tensor leaf = at::full({3}, 2.0);
  ASSERT_TRUE(MultiplyOnDevice(leaf, 1.5).ok());
  EXPECT_TRUE(leaf.eq(3).all().item<bool>());
  EXPECT_FALSE(MultiplyOnDevice(at::full({3}, 2, at::TensorOptions().dtype(at::kLong)), 1.5).ok());
}

TEST(DeviceWork, NothingToFinishOnTheHost) { EXPECT_TRUE(FinishOnDevice(c10::Device(c10::kCPU)).ok()); }

}  // namespace
}  // namespace leafpack::internal
