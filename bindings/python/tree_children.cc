#include "bindings/python/tree_children.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "bindings/python/python_values.h"

namespace leafpack::python {
namespace {

PyObject* Interned(const char* text) { return PyUnicode_InternFromString(text); }

absl::Status Strange(const py::object& node, const NestedKey& where) {
  return Unsupported(where, absl::StrCat("an object of class ", TypeName(node.ptr()),
                                         " does not have the fields that its class should have"));
}

absl::Status AddDict(const py::object& dict, bool none_is_absent, const NestedKey& where,
                     Children* children) {
  children->items.reserve(children->items.size() +
                          static_cast<size_t>(PyDict_GET_SIZE(dict.ptr())));
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict.ptr(), &position, &key, &value)) {
    ChildItem item;
    item.key = py::reinterpret_borrow<py::object>(key);
    item.value = py::reinterpret_borrow<py::object>(value);
    item.absent = none_is_absent && value == Py_None;
    children->items.push_back(std::move(item));
  }
  for (ChildItem& item : children->items) {
    if (item.absent || item.component.has_value()) continue;
    absl::StatusOr<KeyComponent> component = ComponentFromPython(item.key.ptr(), where);
    if (!component.ok()) return component.status();
    item.component = *std::move(component);
    // Only keys that cannot change what they compare equal to can be recorded.
    if (!PyUnicode_CheckExact(item.key.ptr()) && !PyLong_CheckExact(item.key.ptr())) {
      children->recordable = false;
    }
  }
  return absl::OkStatus();
}

void AddSequence(PyObject* sequence, Children* children) {
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
  children->items.reserve(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    ChildItem item;
    item.component = KeyComponent(static_cast<int64_t>(i));
    item.value = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(sequence, i));
    children->items.push_back(std::move(item));
  }
}

absl::Status AddAttribute(const py::object& node, const TypeInfo& info, const NestedKey& where,
                          Children* children) {
  py::object inside = InstanceAttribute(node.ptr(), info.attribute);
  if (!inside) return Strange(node, where);
  switch (info.kind) {
    case TypeKind::kTensorDict:
      if (!PyDict_Check(inside.ptr())) return Strange(node, where);
      return AddDict(inside, false, where, children);
    case TypeKind::kLazyStack:
    case TypeKind::kNonTensorStack:
      if (!PyList_Check(inside.ptr()) && !PyTuple_Check(inside.ptr())) return Strange(node, where);
      AddSequence(inside.ptr(), children);
      return absl::OkStatus();
    default:
      children->items.emplace_back();
      children->items.back().value = std::move(inside);
      return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<Children> ChildrenOf(const py::object& node, const TypeInfo& info,
                                    const NestedKey& where) {
  Children children;
  absl::Status status;
  switch (info.kind) {
    case TypeKind::kDict:
      status = AddDict(node, false, where, &children);
      break;
    case TypeKind::kMapping: {
      py::object dict = py::reinterpret_steal<py::object>(
          PyObject_CallOneArg(reinterpret_cast<PyObject*>(&PyDict_Type), node.ptr()));
      if (!dict) throw py::error_already_set();
      status = AddDict(dict, false, where, &children);
      children.recordable = false;
      break;
    }
    case TypeKind::kSequence:
      AddSequence(node.ptr(), &children);
      break;
    case TypeKind::kModule: {
      py::object parameters, modules;
      if (!ModuleDicts(node.ptr(), &parameters, &modules)) return Strange(node, where);
      status = AddDict(parameters, true, where, &children);
      children.modules_from = children.items.size();
      if (status.ok()) status = AddDict(modules, true, where, &children);
      break;
    }
    case TypeKind::kTensorDict:
    case TypeKind::kLazyStack:
    case TypeKind::kNonTensorStack:
    case TypeKind::kWrapper:
      status = AddAttribute(node, info, where, &children);
      break;
    default:
      return Strange(node, where);
  }
  if (!status.ok()) return status;
  return children;
}

bool ModuleDicts(PyObject* module, py::object* parameters, py::object* modules) {
  static PyObject* const parameters_name = Interned("_parameters");
  static PyObject* const modules_name = Interned("_modules");
  *parameters = InstanceAttribute(module, parameters_name);
  *modules = InstanceAttribute(module, modules_name);
  return *parameters && *modules && PyDict_Check(parameters->ptr()) && PyDict_Check(modules->ptr());
}

PyObject* NonTensorEntry(PyObject* entry) {
  static PyObject* const fields_name = Interned("_non_tensordict");
  static PyObject* const data_name = Interned("data");
  py::object fields = InstanceAttribute(entry, fields_name);
  if (!fields || !PyDict_CheckExact(fields.ptr())) return nullptr;
  PyObject* data = PyDict_GetItemWithError(fields.ptr(), data_name);
  if (data == nullptr) PyErr_Clear();
  return data;
}

}  // namespace leafpack::python
