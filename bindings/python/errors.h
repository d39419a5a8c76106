// From absl::Status to Python's exceptions and back.
#ifndef LEAFPACK_BINDINGS_PYTHON_ERRORS_H_
#define LEAFPACK_BINDINGS_PYTHON_ERRORS_H_

#include <pybind11/pybind11.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/core/error.h"

namespace leafpack::python {

namespace py = pybind11;

// Throws the exception of leafpack._errors that stands for `status`, with the details as
// attributes. Needs the GIL; `status` must not be OK.
[[noreturn]] void Raise(const absl::Status& status);

// As Raise, with Python's own exceptions for files: FileNotFoundError, and FileExistsError for what is there and is
// kept.
[[noreturn]] void RaiseFileError(const absl::Status& status);

inline void RaiseIfError(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T ValueOrRaise(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  return *std::move(value);
}

// What other ranks are told when a Python exception ended a call here: its class and text, in a
// FailedPrecondition. Needs the GIL.
absl::Status StatusFromException(const py::error_already_set& error);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_ERRORS_H_
