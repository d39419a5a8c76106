// The structure of a Python tree that was read before, and the short way along it.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_TREE_RECORD_H_
#define LEAFPACK_BINDINGS_PYTHON_TREE_RECORD_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/python/type_kinds.h"
#include "tensordict/flat_tree.h"

namespace leafpack::python {

// One child of a node, in the order in which the walk meets it.
struct __attribute__((visibility("hidden"))) Entry {
  enum class What : uint8_t {
    kLeaf,
    kUndefined,   // None in a dict, list or tuple: a leaf without a tensor
    kValue,       // a plain value in a dict, list or tuple
    kEntryValue,  // a plain value in a non-tensor entry of a tensordict
    kNode,
    kPassedOver,
  };
  py::object key;  // of a dict; null for a place in a sequence
  What what = What::kLeaf;
  uint32_t node = 0;  // kNode: index of the node
  uint32_t slot = 0;  // leaves: index in canonical order
};

struct __attribute__((visibility("hidden"))) Node {
  py::object type;
  TypeKind kind = TypeKind::kOther;
  PyObject* attribute = nullptr;  // borrowed from the (immortal) table of types
  size_t modules_from = 0;        // modules: entries before it are parameters
  std::vector<Entry> entries;
};

struct __attribute__((visibility("hidden"))) Record {
  std::vector<Node> nodes;  // the root is the last one
  std::shared_ptr<const PathList> paths;
  bool has_plain_values = false;    // some entry is a kValue
  const void* last_root = nullptr;  // a hint, never dereferenced
  py::list path_tuples;             // made when a predicate first asks
  std::vector<bool> mask;           // what a predicate took the last time, and the paths of it
  std::shared_ptr<const PathList> masked_paths;
};

// Follows the record along a tree and reads its leaves and plain values. False as soon as they
// differ; runs no Python code. `flat->paths` becomes the record's.
bool Replay(const Record& record, PyObject* tree, FlatTree* flat);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_RECORD_H_
