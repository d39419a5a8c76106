#include "bindings/python/tree_record.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"

#include "bindings/python/python_values.h"
#include "bindings/python/tree_children.h"

namespace leafpack::python {
namespace {

class Replayer {
 public:
  Replayer(const Record& record, FlatTree* flat) : record_(record), flat_(*flat) {}

  bool Run(PyObject* tree) {
    if (!Matches(record_.nodes.back(), tree)) return false;
    std::sort(flat_.non_tensors.begin(), flat_.non_tensors.end(),
              [](const NonTensorLeaf& a, const NonTensorLeaf& b) { return a.leaf < b.leaf; });
    return true;
  }

 private:
  bool Matches(const Node& node, PyObject* object) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != node.type.ptr()) return false;
    switch (node.kind) {
      case TypeKind::kTensor:
        return Child(node.entries[0], object);
      case TypeKind::kDict:
        return Dict(node, 0, node.entries.size(), object);
      case TypeKind::kSequence:
        return Sequence(node, object);
      case TypeKind::kTensorDict: {
        py::object dict = InstanceAttribute(object, node.attribute);
        return dict && PyDict_Check(dict.ptr()) && Dict(node, 0, node.entries.size(), dict.ptr());
      }
      case TypeKind::kLazyStack:
      case TypeKind::kNonTensorStack: {
        py::object list = InstanceAttribute(object, node.attribute);
        return list && Sequence(node, list.ptr());
      }
      case TypeKind::kWrapper: {
        py::object inner = InstanceAttribute(object, node.attribute);
        return inner && Child(node.entries[0], inner.ptr());
      }
      case TypeKind::kModule: {
        py::object parameters, modules;
        return ModuleDicts(object, &parameters, &modules) &&
               Dict(node, 0, node.modules_from, parameters.ptr()) &&
               Dict(node, node.modules_from, node.entries.size(), modules.ptr());
      }
      default:
        return false;
    }
  }

  bool Dict(const Node& node, size_t begin, size_t end, PyObject* dict) {
    if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != end - begin) return false;
    Py_ssize_t position = 0;
    PyObject *key, *value;
    for (size_t i = begin; i < end; ++i) {
      if (!PyDict_Next(dict, &position, &key, &value)) return false;
      const Entry& entry = node.entries[i];
      if (key != entry.key.ptr() && !SameKey(key, entry.key.ptr())) return false;
      if (!Child(entry, value)) return false;
    }
    return true;
  }

  bool Sequence(const Node& node, PyObject* sequence) {
    const size_t size = node.entries.size();
    if (PyList_Check(sequence)) {
      if (static_cast<size_t>(PyList_GET_SIZE(sequence)) != size) return false;
      for (size_t i = 0; i < size; ++i) {
        if (!Child(node.entries[i], PyList_GET_ITEM(sequence, i))) return false;
      }
      return true;
    }
    if (!PyTuple_Check(sequence)) return false;
    if (static_cast<size_t>(PyTuple_GET_SIZE(sequence)) != size) return false;
    for (size_t i = 0; i < size; ++i) {
      if (!Child(node.entries[i], PyTuple_GET_ITEM(sequence, i))) return false;
    }
    return true;
  }

  bool Child(const Entry& entry, PyObject* value) {
    switch (entry.what) {
      case Entry::What::kLeaf:
        if (!IsPlainTensorType(Py_TYPE(value))) {
          const TypeInfo* info = KnownType(Py_TYPE(value));
          if (info == nullptr || info->kind != TypeKind::kTensor) return false;
          // A subclass may lack memory: the full walk says so.
          if (TensorOf(value).key_set().has(c10::DispatchKey::Python)) return false;
        }
        flat_.leaves[entry.slot] = TensorOf(value);
        return true;
      case Entry::What::kUndefined:
        return value == Py_None;
      case Entry::What::kValue:
        return value != Py_None && Value(entry, value);
      case Entry::What::kEntryValue: {
        const TypeInfo* info = KnownType(Py_TYPE(value));
        if (info == nullptr || info->kind != TypeKind::kNonTensor) return false;
        PyObject* inside = NonTensorEntry(value);
        return inside != nullptr && Value(entry, inside);
      }
      case Entry::What::kNode:
        return Matches(record_.nodes[entry.node], value);
      case Entry::What::kPassedOver:
        return value == Py_None;
    }
    return false;
  }

  bool Value(const Entry& entry, PyObject* value) {
    absl::StatusOr<std::optional<NonTensor>> plain = NonTensorFromPython(value, NestedKey());
    if (!plain.ok() || !plain->has_value()) return false;
    flat_.non_tensors.push_back({entry.slot, **std::move(plain)});
    return true;
  }

  // Keys that are not the same object: equal strings, or equal ints.
  static bool SameKey(PyObject* a, PyObject* b) {
    if (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b)) {
      return PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_Compare(a, b) == 0;
    }
    if (!PyLong_CheckExact(a) || !PyLong_CheckExact(b)) return false;
    int overflow_a = 0, overflow_b = 0;
    const long long x = PyLong_AsLongLongAndOverflow(a, &overflow_a);
    const long long y = PyLong_AsLongLongAndOverflow(b, &overflow_b);
    return overflow_a == 0 && overflow_b == 0 && x == y;
  }

  const Record& record_;
  FlatTree& flat_;
};

}  // namespace

bool Replay(const Record& record, PyObject* tree, FlatTree* flat) {
  flat->paths = record.paths;
  flat->leaves.assign(record.paths->size(), at::Tensor());
  flat->non_tensors.clear();
  return Replayer(record, flat).Run(tree);
}

}  // namespace leafpack::python
