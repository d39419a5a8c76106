// leafpack._C: the module itself. Import leafpack, which loads torch first, not this.
#include <pybind11/pybind11.h>
#include <torch/headeronly/version.h>

#include "bindings/python/bind.h"
#include "bindings/python/bind_flight.h"
#include "bindings/python/bind_ops.h"
#include "bindings/python/bind_torch_backend.h"
#include "bindings/python/collective_call.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ part of leafpack.";
  module.attr("torch_version") = TORCH_VERSION;
  leafpack::python::BindTensorDict(module);
  leafpack::python::BindOps(module);
  leafpack::python::BindGroup(module);
  leafpack::python::BindWork(module);
  leafpack::python::BindReductions(module);
  leafpack::python::BindCollectives(module);
  leafpack::python::BindTransfers(module);
  leafpack::python::BindTorchBackend(module);
  leafpack::python::BindTree(module);
  leafpack::python::BindFlight(module);
}
