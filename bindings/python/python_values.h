// Tensors, keys, paths and plain values between Python and C++.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_PYTHON_VALUES_H_
#define LEAFPACK_BINDINGS_PYTHON_PYTHON_VALUES_H_

#include <Python.h>

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"

namespace leafpack::python {

namespace py = pybind11;

// True if `object` is a torch.Tensor (or of a subclass).
bool IsTensor(PyObject* object);
// True if `type` is torch.Tensor or torch.nn.Parameter itself.
bool IsPlainTensorType(PyTypeObject* type);
// The tensor in `object`, for which IsTensor holds.
const at::Tensor& TensorOf(PyObject* object);
// A new reference to the Python face of `tensor`; None if it is undefined.
PyObject* TensorToPython(const at::Tensor& tensor);

// A component from a Python key: str or int. UnsupportedError says what stood there instead;
// `where` is the path of the node it was found in.
absl::StatusOr<KeyComponent> ComponentFromPython(PyObject* key, const NestedKey& where);
// A new reference: a str or an int.
PyObject* ComponentToPython(const KeyComponent& component);
// A new reference to the tuple of a path's components.
PyObject* PathToPython(const NestedKey& path);

// The plain value in `object`, whose class must be exactly str, int, float, bool, bytes, NoneType,
// or a list of these: a subclass would come back as something else. Nullopt for anything else.
// Runs no Python code. An int of more than 64 bits, a text without UTF-8 form and lists that nest
// too deep are kUnsupported errors that name `where`.
absl::StatusOr<std::optional<NonTensor>> NonTensorFromPython(PyObject* object,
                                                             const NestedKey& where);
py::object NonTensorToPython(const NonTensor& value);

// An attribute of an instance, past any __getattr__ of its class. Null, without an error, if there
// is none.
py::object InstanceAttribute(PyObject* object, PyObject* name);
std::string TypeName(PyObject* object);
// InvalidArgument of kind kUnsupported that names `path`.
absl::Status Unsupported(const NestedKey& path, std::string_view what);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_PYTHON_VALUES_H_
