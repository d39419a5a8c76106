// Arguments that several parts of the module take.
#include <pybind11/pybind11.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "bindings/python/bind.h"

namespace leafpack::python {

absl::Duration TimeoutFromPython(py::handle timeout, const char* what) {
  if (timeout.is_none()) return absl::InfiniteDuration();
  double seconds = 0;
  const bool is_int = PyLong_Check(timeout.ptr()) && !PyBool_Check(timeout.ptr());
  if (PyFloat_Check(timeout.ptr()) || is_int) {
    seconds = PyFloat_AsDouble(timeout.ptr());
  } else if (py::hasattr(timeout, "total_seconds")) {
    py::object total = timeout.attr("total_seconds")();
    seconds = PyFloat_AsDouble(total.ptr());
  } else {
    throw py::type_error(absl::StrCat(what, " must be seconds, a timedelta or None, not ",
                                      py::repr(timeout).cast<std::string>()));
  }
  if (PyErr_Occurred()) throw py::error_already_set();
  // Not "<= 0", which a NaN is not.
  if (!(seconds > 0)) {
    throw py::value_error(absl::StrCat(what, " must be more than zero, not ", seconds, " s"));
  }
  return absl::Seconds(seconds);
}

}  // namespace leafpack::python
