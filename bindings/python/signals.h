// Lets Ctrl-C end a wait that runs without the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_SIGNALS_H_
#define LEAFPACK_BINDINGS_PYTHON_SIGNALS_H_

#include <pybind11/pybind11.h>

#include "distributed/core/engine.h"

namespace leafpack::python {

namespace py = pybind11;

// Runs the signal handlers of Python when a wait asks whether it is to be interrupted (only
// Python's main thread has any to run). An exception that a handler raises ends the wait; it is
// kept here and raised once the wait is over. Must outlive the wait; made and destroyed with the
// GIL held.
class SignalCheck {
 public:
  SignalCheck() = default;
  ~SignalCheck() {
    Py_XDECREF(type_);
    Py_XDECREF(value_);
    Py_XDECREF(traceback_);
  }
  SignalCheck(const SignalCheck&) = delete;
  SignalCheck& operator=(const SignalCheck&) = delete;

  InterruptCheck check() {
    return [this] { return Look(); };
  }

  // Throws the exception of a handler, if there was one. Needs the GIL.
  void RaiseIfInterrupted() {
    if (type_ == nullptr) return;
    PyErr_Restore(type_, value_, traceback_);
    type_ = value_ = traceback_ = nullptr;
    throw py::error_already_set();
  }

 private:
  bool Look() {
    if (type_ != nullptr) return true;
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() == 0) return false;
    PyErr_Fetch(&type_, &value_, &traceback_);
    return true;
  }

  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_SIGNALS_H_
