// One backend for each kind of device, as one: "cpu:gloo,cuda:nccl".
#ifndef LEAFPACK_DISTRIBUTED_CORE_DEVICE_BACKENDS_H_
#define LEAFPACK_DISTRIBUTED_CORE_DEVICE_BACKENDS_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

namespace leafpack {

class Backend;

// True if `name` names backends by device.
bool NamesDevices(std::string_view name);

// The backend of such a name. Leaves of one operation are split by the kind of their device, each part goes to
// the backend that serves it, in the order of the devices' names, and the operation is over when all parts
// are. Exchange is for the CPU's part alone. InvalidArgument for a name that cannot be read, a device that
// stands there twice, or a backend that does not pack for itself; NotFound as of MakeBackend.
absl::StatusOr<std::unique_ptr<Backend>> MakeDeviceBackends(std::string_view name);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_DEVICE_BACKENDS_H_
