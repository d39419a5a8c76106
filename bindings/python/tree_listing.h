// What stands in a tree as lists of Python objects.
//
// Python's face of the keys of a tree is made once and kept as long as the structure of the tree stays, for
// the trees that were listed last. Names are kept beyond that: trees of one kind have the same names.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_TREE_LISTING_H_
#define LEAFPACK_BINDINGS_PYTHON_TREE_LISTING_H_

#include <pybind11/pybind11.h>

#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {

namespace py = pybind11;

// Lists in canonical order; keys as of KeyToPython, values as of ValueToPython, items as pairs.
py::list ListedKeys(const TensorDict& tree, const KeysOptions& options);
py::list ListedValues(const TensorDict& tree, const KeysOptions& options);
py::list ListedItems(const TensorDict& tree, const KeysOptions& options);

// Select for a tuple of keys, as KeyFromPython takes them.
TensorDict Selected(const TensorDict& tree, const py::tuple& keys, bool strict);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_LISTING_H_
