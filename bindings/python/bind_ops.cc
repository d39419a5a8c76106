// leafpack._C.ops, put together.
#include "bindings/python/bind_ops.h"

#include <pybind11/pybind11.h>

namespace leafpack::python {

namespace py = pybind11;

void BindOps(py::module_& module) {
  py::module_ ops = module.def_submodule("ops", "Operations on whole trees.");
  BindKeyOps(ops);
  BindIndexOps(ops);
  BindShapeOps(ops);
  BindApplyOps(ops);
  BindCastOps(ops);
  BindArithmeticOps(ops);
  BindFileOps(ops);
}

}  // namespace leafpack::python
