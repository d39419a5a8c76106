// The binding of torch.distributed's backend "shm".
#ifndef LEAFPACK_BINDINGS_PYTHON_BIND_TORCH_BACKEND_H_
#define LEAFPACK_BINDINGS_PYTHON_BIND_TORCH_BACKEND_H_

#include <pybind11/pybind11.h>

namespace leafpack::python {

// Adds make_shm_backend(store, rank, size, seconds).
void BindTorchBackend(pybind11::module_& module);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_BIND_TORCH_BACKEND_H_
