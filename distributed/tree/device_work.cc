#include "distributed/tree/device_work.h"

#include <exception>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/strings/str_cat.h"

namespace leafpack::internal {

absl::Status MultiplyOnDevice(const at::Tensor& tensor, double factor) {
  try {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    tensor.mul_(factor);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("applying the factor failed: ", e.what()));
  }
}

absl::Status FinishOnDevice(c10::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
  try {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("waiting for ", device.str(), " failed: ", e.what()));
  }
}

CallerStreams CallerStreams::Capture() {
  CallerStreams captured;
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return captured;
  try {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) {
      captured.streams_.push_back(guard.getStream(c10::Device(c10::DeviceType::CUDA, i)));
    }
  } catch (const std::exception&) {
    captured.streams_.clear();
  }
  return captured;
}

CallerStreams::Guard::Guard(const CallerStreams& streams) {
  if (streams.streams_.empty()) return;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  for (const c10::Stream& stream : streams.streams_) before_.push_back(guard.exchangeStream(stream));
}

CallerStreams::Guard::~Guard() {
  if (before_.empty()) return;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  for (const c10::Stream& stream : before_) guard.exchangeStream(stream);
}

}  // namespace leafpack::internal
