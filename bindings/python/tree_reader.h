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

#include <memory>

#include "absl/status/statusor.h"
#include "tensordict/flat_tree.h"

namespace leafpack::python {

// Which leaves of a Python tree are read.
struct LeafChoice {
  enum class Kind {
    kAll,        // all leaves; what cannot be one is refused
    kTensors,    // all tensors; anything else is passed over
    kPredicate,  // tensors for which `predicate(path, leaf)` is true. It is asked about what is
                 // neither tensor nor tree too, which is refused if it says yes; not about plain
                 // values of tensordicts
  };
  Kind kind = Kind::kAll;
  PyObject* predicate = nullptr;  // borrowed
  // Whether plain values (str, int, float, bool, bytes) in dicts, lists and tuples are leaves; else
  // they are refused like other objects. Those of tensordicts always are leaves.
  bool plain_values = false;
};

// Reads `tree`: a leafpack.TensorDict; a tensordict.TensorDict, lazy stack, tensorclass or
// TensorDictParams; a dict, list or tuple of trees; a torch.nn.Module (its parameters); one
// tensor. Names of dicts are names, int keys and places in lists and stacks are positions. None in
// a dict, list or tuple is an undefined leaf. A non-tensor entry of a tensordict is a NonTensor
// leaf.
//
// An error of kind kUnsupported names the path that cannot be read. Throws py::error_already_set
// when Python code that was called (a predicate, a Mapping) raised.
absl::StatusOr<FlatTree> ReadTree(PyObject* tree, const LeafChoice& choice = {});

// The paths of `paths` for which the same list was read before, if it is still in use, else `paths`
// itself, remembered from now on.
std::shared_ptr<const PathList> SharedPaths(std::shared_ptr<const PathList> paths);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_READER_H_
