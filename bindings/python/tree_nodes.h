// The nodes of a Python tree, as a tree description names them, and the way back: from a
// description and leaves to a new tree of the kind that was described.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_TREE_NODES_H_
#define LEAFPACK_BINDINGS_PYTHON_TREE_NODES_H_

#include <pybind11/pybind11.h>

#include <vector>

#include "absl/status/statusor.h"
#include "distributed/tree/tree_spec.h"
#include "tensordict/flat_tree.h"

namespace leafpack::python {

namespace py = pybind11;

// The nodes of a tree that ReadTree reads, in canonical order, the root first; none for one leaf. A
// module counts as a dict. What a tensordict is beside its batch size (class, names of dimensions,
// stack dimension, device) stands in the node's note: see leafpack/_nodes.py.
absl::StatusOr<std::vector<TreeSpec::Node>> DescribeNodes(PyObject* tree);

// The paths of all nodes and the sizes of batches are those of `nodes`, the leaves those of
// `leaves`. Each node becomes what it was: a dict (a module: a dict of its parameters), list,
// tuple, leafpack.TensorDict, or a tensordict, where that package is installed, else a
// leafpack.TensorDict. Of `nodes` nothing is believed: what contradicts itself is InvalidArgument.
// A class that a note names is looked up among the modules that this process has imported, never
// imported; without it the tensordict below is the result. `lifted`: the sizes of batches have one
// dimension more, in front, than the notes know of. `times`: the leaves are so many times as long in their first
// dimension.
absl::StatusOr<py::object> BuildTree(const std::vector<TreeSpec::Node>& nodes,
                                     const FlatTree& leaves, bool lifted = false, int times = 1);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_NODES_H_
