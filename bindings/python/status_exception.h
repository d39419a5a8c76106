// What Raise of errors.h throws, for those who add to its status on its way.
#ifndef LEAFPACK_BINDINGS_PYTHON_STATUS_EXCEPTION_H_
#define LEAFPACK_BINDINGS_PYTHON_STATUS_EXCEPTION_H_

#include <pybind11/pybind11.h>

#include <utility>

#include "absl/status/status.h"

namespace leafpack::python {

// A Python exception of leafpack._errors, and the status that it stands for. Made while that exception is
// Python's current one.
class __attribute__((visibility("hidden"))) StatusException : public pybind11::error_already_set {
 public:
  explicit StatusException(absl::Status status) : status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_STATUS_EXCEPTION_H_
