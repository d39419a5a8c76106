#include "distributed/backends/nccl/mock_memory.h"

#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace leafpack::nccl_internal {
namespace {

// The tensors of a call on MockMemory(), each with the one that stands for it on the CPU.
class Twins {
 public:
  at::Tensor ToHost(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cpu()) return tensor;
    at::Tensor twin = As(c10::kCPU, tensor);
    twins_.emplace_back(tensor, twin);
    return twin;
  }
  // What an operation in place gives back is its argument; all else is memory of the device.
  at::Tensor ToDevice(const at::Tensor& tensor) const {
    for (const auto& [device, host] : twins_) {
      if (host.is_same(tensor)) return device;
    }
    return tensor.defined() ? As(MockMemory(), tensor) : tensor;
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> twins_;
};

template <typename Change>
c10::IValue Changed(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> changed;
  for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
  return changed;
}

void CallOnHost(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Twins twins;
  const size_t first = stack->size() - op.schema().arguments().size();
  bool to_host = false;  // nothing of what it gives back is the device's
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& argument = (*stack)[i];
    // Into a tensor of the CPU, or to the CPU.
    if (i == first && argument.isTensor()) to_host = argument.toTensor().is_cpu();
    if (argument.isDevice()) {
      to_host |= argument.toDevice().is_cpu();
      argument = c10::Device(c10::kCPU);
    }
    argument = Changed(argument, [&](const at::Tensor& tensor) { return twins.ToHost(tensor); });
  }
  op.callBoxed(stack);
  if (to_host) return;
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = Changed((*stack)[i], [&](const at::Tensor& tensor) { return twins.ToDevice(tensor); });
  }
}

// Operations without a kernel of the device's own.
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&CallOnHost>());
}

// Those whose one kernel for all devices asks for a device's own at its end.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const char* name : {"copy_", "clone", "_foreach_copy_"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&CallOnHost>());
  }
}

// One device and one stream, on which everything has happened at once.
C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>)

}  // namespace

at::Tensor As(c10::Device device, const at::Tensor& tensor) {
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "a lazy conjugate has no memory of its own");
  const c10::Storage& storage = tensor.storage();
  // Not a view of it: a storage has one device.
  c10::DataPtr data(tensor.storage().mutable_data(), new c10::Storage(storage),
                    [](void* owner) { delete static_cast<c10::Storage*>(owner); }, device);
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), /*allocator=*/nullptr,
                    /*resizable=*/false);
  at::Tensor twin = at::detail::make_tensor<c10::TensorImpl>(
      std::move(same),
      c10::DispatchKeySet(device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1),
      tensor.dtype());
  twin.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return twin;
}

}  // namespace leafpack::nccl_internal
