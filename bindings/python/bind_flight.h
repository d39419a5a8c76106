// The flight recorder's part of the module.
#ifndef LEAFPACK_BINDINGS_PYTHON_BIND_FLIGHT_H_
#define LEAFPACK_BINDINGS_PYTHON_BIND_FLIGHT_H_

#include <pybind11/pybind11.h>

namespace leafpack::python {

void BindFlight(pybind11::module_& module);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_BIND_FLIGHT_H_
