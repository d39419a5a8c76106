// Tensors that say they lie on a device and lie in the host's memory, for tests: what is to be copied, reduced and
// routed as a leaf on a GPU can be, where there is none. The device is torch's "privateuseone", and every
// operation on such tensors is done by the CPU's kernels.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_MOCK_MEMORY_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_MOCK_MEMORY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace leafpack::nccl_internal {

// As the name of a backend says it: "cpu:gloo,privateuseone:mock".
inline c10::Device MockMemory() { return {c10::DeviceType::PrivateUse1, 0}; }

// The same memory as a tensor on `device`, the CPU or MockMemory(); `tensor` is strided and on either.
at::Tensor As(c10::Device device, const at::Tensor& tensor);

}  // namespace leafpack::nccl_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_MOCK_MEMORY_H_
