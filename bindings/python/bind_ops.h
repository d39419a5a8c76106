// leafpack._C.ops: the operations of tensordict/ops and tensordict/io as plain functions. The methods
// of leafpack.TensorDict (leafpack/_tensor_dict.py) call them.
#ifndef LEAFPACK_BINDINGS_PYTHON_BIND_OPS_H_
#define LEAFPACK_BINDINGS_PYTHON_BIND_OPS_H_

#include <pybind11/pybind11.h>

namespace leafpack::python {

// All of them, as the submodule `ops` of `module`.
void BindOps(pybind11::module_& module);

void BindKeyOps(pybind11::module_& ops);
void BindIndexOps(pybind11::module_& ops);
void BindShapeOps(pybind11::module_& ops);
void BindApplyOps(pybind11::module_& ops);
void BindCastOps(pybind11::module_& ops);
void BindArithmeticOps(pybind11::module_& ops);
void BindFileOps(pybind11::module_& ops);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_BIND_OPS_H_
