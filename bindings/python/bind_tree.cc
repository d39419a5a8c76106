// How trees are read and built, without any communication: for tests, and for who wants to know.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "bindings/python/bind.h"
#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tree_nodes.h"
#include "bindings/python/tree_reader.h"
#include "distributed/tree/tree_spec.h"
#include "tensordict/flat_tree.h"

namespace leafpack::python {
namespace {

py::list ReadTreePython(const py::object& tree, const py::object& leaves, bool plain_values) {
  LeafChoice choice;
  choice.plain_values = plain_values;
  if (!leaves.is_none()) {
    choice.kind = LeafChoice::Kind::kPredicate;
    choice.predicate = leaves.ptr();
  }
  const FlatTree flat = ValueOrRaise(ReadTree(tree.ptr(), choice));
  py::list result;
  for (size_t i = 0; i < flat.size(); ++i) {
    const NonTensor* value = flat.non_tensor(i);
    result.append(py::make_tuple(
        py::reinterpret_steal<py::object>(PathToPython((*flat.paths)[i])),
        value != nullptr ? NonTensorToPython(*value)
                         : py::reinterpret_steal<py::object>(TensorToPython(flat.leaves[i]))));
  }
  return result;
}

py::object RebuildTree(const py::object& tree) {
  LeafChoice choice;
  choice.plain_values = true;
  const FlatTree flat = ValueOrRaise(ReadTree(tree.ptr(), choice));
  return ValueOrRaise(BuildTree(ValueOrRaise(DescribeNodes(tree.ptr())), flat));
}

}  // namespace

void BindTree(py::module_& module) {
  module.def("read_tree", &ReadTreePython, py::arg("tree"), py::arg("leaves") = py::none(),
             py::arg("plain_values") = false,
             "The paths and leaves of a tree in canonical order, as a collective reads them.");
  module.def(
      "walk_tree", [](const py::object& tree) { return ValueOrRaise(ReadTree(tree.ptr())).size(); },
      "Reads a tree as a collective does and returns the number of its leaves.");
  module.def("rebuild_tree", &RebuildTree, py::arg("tree"),
             "A new tree of the same kind around the same leaves, as a receiver builds it.");
  module.def(
      "describe_nodes",
      [](const py::object& tree) {
        py::list result;
        for (const TreeSpec::Node& node : ValueOrRaise(DescribeNodes(tree.ptr()))) {
          py::tuple sizes(node.batch_size.size());
          for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = py::int_(node.batch_size[i]);
          result.append(py::make_tuple(
              py::reinterpret_steal<py::object>(PathToPython(node.path)),
              py::str(std::string(NodeKindName(node.kind))), sizes, py::bytes(node.note)));
        }
        return result;
      },
      "Path, kind, batch size and note of each node.");
}

}  // namespace leafpack::python
