// Reads a tree of tensors that Python holds into a FlatTree, without copying a tensor.
//
// The first walk over a tree records its structure; a later walk over a tree of the same structure
// compares key pointers and types with the record as it goes, which costs tens of nanoseconds a
// leaf, and yields the very same PathList, so that plans that were made before are found again.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_TREE_READER_H_
#define LEAFPACK_BINDINGS_PYTHON_TREE_READER_H_

#include <Python.h>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "tensordict/flat_tree.h"
#include "tensordict/nested_key.h"

namespace leafpack::python {

// Which leaves of a Python tree are read.
struct LeafChoice {
  enum class Kind {
    kAll,        // all tensors; anything else that is no tree is refused
    kTensors,    // all tensors; anything else is passed over
    kPredicate,  // those for which `predicate(path, leaf)` is true
  };
  Kind kind = Kind::kAll;
  PyObject* predicate = nullptr;  // borrowed
};

// Reads `tree`: a leafpack.TensorDict; a tensordict.TensorDict, lazy stack, tensorclass or
// TensorDictParams; a dict, list or tuple of trees; a torch.nn.Module (its parameters); one tensor.
// Names of dicts are names, int keys and places in lists and stacks are positions. None is an
// undefined leaf, a non-tensor entry of a tensordict is passed over.
//
// An error of kind kUnsupported names the path that cannot be read. Throws py::error_already_set
// when Python code that was called (a predicate, a Mapping) raised.
absl::StatusOr<FlatTree> ReadTree(PyObject* tree, const LeafChoice& choice = {});

// The paths of `paths` for which the same list was read before, if it is still in use, else `paths`
// itself, remembered from now on.
std::shared_ptr<const PathList> SharedPaths(std::shared_ptr<const PathList> paths);

// True if `object` is a torch.Tensor (or of a subclass).
bool IsTensor(PyObject* object);
// The tensor in `object`, for which IsTensor holds.
const at::Tensor& TensorOf(PyObject* object);
// A new reference to the Python face of `tensor`; None if it is undefined.
PyObject* TensorToPython(const at::Tensor& tensor);

// A component from a Python key: str or int. UnsupportedError says what stood there instead;
// `where` is the path of the node it was found in.
absl::StatusOr<KeyComponent> ComponentFromPython(PyObject* key, const NestedKey& where);
// A new reference to the tuple of a path's components.
PyObject* PathToPython(const NestedKey& path);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_READER_H_
