#include "bindings/python/python_values.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bindings/python/type_kinds.h"
#include "distributed/core/error.h"

namespace leafpack::python {
namespace {

absl::StatusOr<std::optional<NonTensor>> ValueFromPython(PyObject* object, const NestedKey& where,
                                                         int depth) {
  if (object == Py_None) return NonTensor();
  if (PyUnicode_CheckExact(object)) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(object, &size);
    if (bytes == nullptr) {
      PyErr_Clear();
      return Unsupported(where, "a string has no UTF-8 form (a lone surrogate)");
    }
    return NonTensor(std::string_view(bytes, static_cast<size_t>(size)));
  }
  if (PyBool_Check(object)) return NonTensor(object == Py_True);
  if (PyLong_CheckExact(object)) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) return Unsupported(where, "an int has more than 64 bits");
    return NonTensor(static_cast<int64_t>(value));
  }
  if (PyFloat_CheckExact(object)) return NonTensor(PyFloat_AS_DOUBLE(object));
  if (PyBytes_CheckExact(object)) {
    return NonTensor::Bytes(std::string_view(PyBytes_AS_STRING(object),
                                             static_cast<size_t>(PyBytes_GET_SIZE(object))));
  }
  if (!PyList_CheckExact(object)) return std::nullopt;
  if (depth >= NonTensor::kMaxDepth) {
    return Unsupported(where, absl::StrCat("lists nest deeper than ", NonTensor::kMaxDepth));
  }
  std::vector<NonTensor> items;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
    absl::StatusOr<std::optional<NonTensor>> item =
        ValueFromPython(PyList_GET_ITEM(object, i), where, depth + 1);
    if (!item.ok()) return item.status();
    if (!item->has_value()) return std::nullopt;
    items.push_back(**std::move(item));
  }
  return NonTensor::List(std::move(items));
}

}  // namespace

bool IsPlainTensorType(PyTypeObject* type) { return THPVariable_CheckTypeExact(type); }

bool IsTensor(PyObject* object) {
  return IsPlainTensorType(Py_TYPE(object)) || TypeOf(Py_TYPE(object)).kind == TypeKind::kTensor;
}

const at::Tensor& TensorOf(PyObject* object) {
  return THPVariable_Unpack(reinterpret_cast<THPVariable*>(object));
}

PyObject* TensorToPython(const at::Tensor& tensor) {
  if (!tensor.defined()) return Py_NewRef(Py_None);
  PyObject* object = THPVariable_Wrap(tensor);
  if (object == nullptr) throw py::error_already_set();
  return object;
}

absl::StatusOr<KeyComponent> ComponentFromPython(PyObject* key, const NestedKey& where) {
  if (PyUnicode_Check(key)) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(key, &size);
    if (bytes == nullptr) {
      PyErr_Clear();
      return Unsupported(where, "a key is a string that has no UTF-8 form (a lone surrogate)");
    }
    return KeyComponent(std::string_view(bytes, static_cast<size_t>(size)));
  }
  if (PyLong_Check(key) && !PyBool_Check(key)) {
    int overflow = 0;
    const long long position = PyLong_AsLongLongAndOverflow(key, &overflow);
    if (overflow != 0) {
      return Unsupported(where, "a key is an int of more than 64 bits");
    }
    if (position == -1 && PyErr_Occurred()) throw py::error_already_set();
    return KeyComponent(static_cast<int64_t>(position));
  }
  std::string shown;
  if (py::object text = py::reinterpret_steal<py::object>(PyObject_Repr(key)); text) {
    if (const char* utf8 = PyUnicode_AsUTF8(text.ptr())) shown = utf8;
  }
  PyErr_Clear();
  if (shown.size() > 80) shown.resize(80);
  return Unsupported(where, absl::StrCat("the key ", shown, " of type ", TypeName(key),
                                         " is neither a str nor an int"));
}

PyObject* ComponentToPython(const KeyComponent& component) {
  PyObject* item = component.is_position()
                       ? PyLong_FromLongLong(component.position())
                       : PyUnicode_DecodeUTF8(component.name().data(),
                                              static_cast<Py_ssize_t>(component.name().size()),
                                              "surrogateescape");
  if (item == nullptr) throw py::error_already_set();
  return item;
}

PyObject* PathToPython(const NestedKey& path) {
  py::tuple tuple(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), ComponentToPython(path[i]));
  }
  return tuple.release().ptr();
}

absl::StatusOr<std::optional<NonTensor>> NonTensorFromPython(PyObject* object,
                                                             const NestedKey& where) {
  return ValueFromPython(object, where, 0);
}

py::object NonTensorToPython(const NonTensor& value) {
  switch (value.kind()) {
    case NonTensor::Kind::kNone:
      return py::none();
    case NonTensor::Kind::kString: {
      const std::string& text = *value.AsString();
      PyObject* decoded = PyUnicode_DecodeUTF8(
          text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
      if (decoded == nullptr) throw py::error_already_set();
      return py::reinterpret_steal<py::object>(decoded);
    }
    case NonTensor::Kind::kInt:
      return py::int_(*value.AsInt());
    case NonTensor::Kind::kFloat:
      return py::float_(*value.AsFloat());
    case NonTensor::Kind::kBool:
      return py::bool_(*value.AsBool());
    case NonTensor::Kind::kBytes:
      return py::bytes(*value.AsBytes());
    case NonTensor::Kind::kList: {
      py::list list;
      for (const NonTensor& item : *value.AsList()) list.append(NonTensorToPython(item));
      return list;
    }
  }
  return py::none();
}

py::object InstanceAttribute(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GenericGetAttr(object, name);
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

std::string TypeName(PyObject* object) { return Py_TYPE(object)->tp_name; }

absl::Status Unsupported(const NestedKey& path, std::string_view what) {
  ErrorDetails details;
  details.kind = ErrorKind::kUnsupported;
  details.path = path.ToString();
  return WithErrorDetails(absl::InvalidArgumentError(absl::StrCat(details.path, ": ", what)),
                          details);
}

}  // namespace leafpack::python
