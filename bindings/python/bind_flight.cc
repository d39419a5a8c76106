// The flight recorder.
#include <pybind11/pybind11.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "bindings/python/bind_flight.h"
#include "bindings/python/errors.h"
#include "distributed/core/flight/dump.h"

namespace leafpack::python {

namespace py = pybind11;

void BindFlight(py::module_& module) {
  module.def("flight_record", [](const std::string& reason) {
    py::gil_scoped_release release;
    return FlightRecord(reason);
  });
  module.def("flight_dump", [](const std::string& folder, const std::string& reason) {
    absl::StatusOr<std::string> path = [&] {
      py::gil_scoped_release release;
      return DumpFlight(folder, reason);
    }();
    if (path.ok()) return *std::move(path);
    // A file that cannot be written is an OSError in Python, whatever the system's reason.
    if (!absl::IsInvalidArgument(path.status())) {
      PyErr_SetString(PyExc_OSError, std::string(path.status().message()).c_str());
      throw py::error_already_set();
    }
    return ValueOrRaise(std::move(path));
  });
  module.def("flight_on_error", [](const std::string& folder) { DumpFlightOnError(folder); });
  module.def("flight_on_signal", [](int signo, const std::string& folder) {
    RaiseIfError(DumpFlightOnSignal(signo, folder));
  });
  module.def("flight_enable", [](bool enabled) { FlightRecorder::SetEnabled(enabled); });
}

}  // namespace leafpack::python
