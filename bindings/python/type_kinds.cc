#include "bindings/python/type_kinds.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace leafpack::python {
namespace {

// Holds each class, so that an address never comes to mean another one. Classes are few; a program
// that makes them without end pays a few hundred bytes for each that it puts into a tree.
absl::flat_hash_map<PyTypeObject*, std::unique_ptr<TypeInfo>>& Table() {
  static auto* table = new absl::flat_hash_map<PyTypeObject*, std::unique_ptr<TypeInfo>>();
  return *table;
}

}  // namespace

const TypeInfo* KnownType(PyTypeObject* type) {
  auto it = Table().find(type);
  return it == Table().end() ? nullptr : it->second.get();
}

const TypeInfo& TypeOf(PyTypeObject* type) {
  if (const TypeInfo* known = KnownType(type)) return *known;
  py::tuple answer = py::module_::import("leafpack._kinds")
                         .attr("classify")(py::handle(reinterpret_cast<PyObject*>(type)));
  auto info = std::make_unique<TypeInfo>();
  info->kind = static_cast<TypeKind>(answer[0].cast<int>());
  if (!answer[1].is_none()) {
    PyObject* name = answer[1].cast<py::object>().release().ptr();
    PyUnicode_InternInPlace(&name);
    info->attribute = name;
  }
  if (!answer[2].is_none()) info->why = answer[2].cast<std::string>();
  // Python code ran meanwhile: someone else may have asked the same.
  auto [it, fresh] = Table().try_emplace(type, std::move(info));
  if (fresh) Py_INCREF(type);
  return *it->second;
}

}  // namespace leafpack::python
