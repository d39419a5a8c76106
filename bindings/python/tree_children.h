// What stands directly below a node of a Python tree, by kind of tree.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_TREE_CHILDREN_H_
#define LEAFPACK_BINDINGS_PYTHON_TREE_CHILDREN_H_

#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "bindings/python/type_kinds.h"
#include "tensordict/nested_key.h"

namespace leafpack::python {

// Hidden, like the pybind11 objects that they hold.
struct __attribute__((visibility("hidden"))) ChildItem {
  py::object key;  // of a dict; null for a place in a sequence and below a wrapper
  // Where the child stands below the node; none below a wrapper, which adds nothing to the path.
  std::optional<KeyComponent> component;
  py::object value;
  bool absent = false;  // None where that means that there is nothing (modules)
};

struct __attribute__((visibility("hidden"))) Children {
  std::vector<ChildItem> items;
  size_t modules_from = 0;  // modules: items before it are parameters
  // Whether a record of the node can be compared with it later without running Python code.
  bool recordable = true;
};

// The children of `node`, whose class is `info`, in the order in which it holds them. A copy:
// reading a child may run Python code, which may change the node. kUnsupported, naming `where`,
// for a key that is neither str nor int, and for an object without the fields that its class
// should have.
absl::StatusOr<Children> ChildrenOf(const py::object& node, const TypeInfo& info,
                                    const NestedKey& where);

// The dicts of parameters and of submodules of a torch.nn.Module.
bool ModuleDicts(PyObject* module, py::object* parameters, py::object* modules);

// What a non-tensor entry of a tensordict holds; borrowed, null if it has no such field. Runs no
// Python code.
PyObject* NonTensorEntry(PyObject* entry);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_CHILDREN_H_
