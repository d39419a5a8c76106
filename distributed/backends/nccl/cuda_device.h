// Device for GPUs: CUDA's streams and events through c10, NCCL through c10d's ProcessGroupNCCL. The only part
// of this backend that needs them.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_CUDA_DEVICE_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_CUDA_DEVICE_H_

#include <memory>

#include "distributed/backends/nccl/device.h"

namespace leafpack::nccl_internal {

std::shared_ptr<Device> MakeCudaDevice();

}  // namespace leafpack::nccl_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_CUDA_DEVICE_H_
