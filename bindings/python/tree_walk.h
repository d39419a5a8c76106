// The full walk over a Python tree: reads its leaves and writes down its structure.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_TREE_WALK_H_
#define LEAFPACK_BINDINGS_PYTHON_TREE_WALK_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "bindings/python/tree_children.h"
#include "bindings/python/tree_reader.h"
#include "bindings/python/tree_record.h"
#include "bindings/python/type_kinds.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"

namespace leafpack::python {

// For one walk. Throws py::error_already_set when Python code that it called raised.
class __attribute__((visibility("hidden"))) TreeWalk {
 public:
  explicit TreeWalk(const LeafChoice& choice) : choice_(choice) {}

  absl::Status Run(PyObject* tree);

  // After Run. Whether the structure can be followed again (Replay), and what was met on the way,
  // in the order of the walk: of every leaf its path, and the tensor (undefined for a plain
  // value).
  bool recordable() const { return recordable_; }
  const std::vector<std::pair<NestedKey, at::Tensor>>& leaves() const { return leaves_; }
  // Leaves and values in canonical order. Takes them.
  absl::StatusOr<FlatTree> TakeLeaves();
  // The record, whose leaf number i (as the walk met them) has the canonical place `place[i]`.
  // Takes it.
  std::unique_ptr<Record> TakeRecord(const std::vector<uint32_t>& place,
                                     std::shared_ptr<const PathList> paths);

 private:
  absl::Status Value(py::object value, Entry* entry);
  absl::Status Leaf(PyObject* value, Entry* entry);
  absl::Status PlainValue(NonTensor value, Entry::What what, Entry* entry);
  absl::Status TensorDictEntry(const py::object& entry_object, Entry* entry);
  absl::Status Other(const py::object& value, Entry* entry);
  absl::Status LeafpackNode(const py::object& value, Entry* entry);
  absl::Status Tree(py::object value, const TypeInfo& info, Entry* entry);
  absl::Status ChildrenInto(const py::object& value, const TypeInfo& info, Node* node);
  // Passes over `value`, which is no leaf, if the caller chose to; else kUnsupported.
  absl::Status PassOverOrRefuse(const py::object& value, Entry* entry);
  absl::Status TooDeep() const;

  const LeafChoice choice_;
  NestedKey path_;
  int depth_ = 0;
  bool recordable_ = true;
  bool has_plain_values_ = false;
  std::vector<Node> nodes_;
  std::vector<std::pair<NestedKey, at::Tensor>> leaves_;
  std::vector<std::pair<uint32_t, NonTensor>> values_;  // index in leaves_, and the value
};

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_WALK_H_
