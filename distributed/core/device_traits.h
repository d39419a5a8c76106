// DeviceTraits: what a backend for devices other than the CPU says of itself beside the Backend interface.
// A backend that has it derives from both; whoever holds a Backend asks by DeviceTraits::Of. It does not see
// backend.h, so that the library of that can use it without making it an input of all that see backend.h.
#ifndef LEAFPACK_DISTRIBUTED_CORE_DEVICE_TRAITS_H_
#define LEAFPACK_DISTRIBUTED_CORE_DEVICE_TRAITS_H_

#include <c10/core/Device.h>

#include "absl/status/status.h"

namespace leafpack {

class DeviceTraits {
 public:
  virtual ~DeviceTraits() = default;

  // OK if leaves on this device, its number included, can take part in calls of this rank: a rank has one
  // device of each kind. Else Unimplemented or InvalidArgument, which names the device. Asked while a call
  // is planned, before anything is said to other ranks. Thread-safe.
  virtual absl::Status CheckDevice(c10::Device device) const = 0;

  // True if an operation that differs between ranks, which a call that is not checked lets through, would
  // end the process rather than fail or run into a deadline.
  virtual bool NeedsChecks() const = 0;

  // Null for backends that have none.
  template <typename Backend>
  static const DeviceTraits* Of(const Backend& backend) {
    return dynamic_cast<const DeviceTraits*>(&backend);
  }
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_DEVICE_TRAITS_H_
