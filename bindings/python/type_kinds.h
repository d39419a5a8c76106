// What the classes of Python objects mean for a tree: which are tensors, nodes, or neither. The
// answer for a class comes from leafpack/_kinds.py once and is kept.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_TYPE_KINDS_H_
#define LEAFPACK_BINDINGS_PYTHON_TYPE_KINDS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace leafpack::python {

namespace py = pybind11;

// The numbers are those of leafpack/_kinds.py.
enum class TypeKind : uint8_t {
  kOther = 0,                // neither tensor nor tree
  kTensor = 1,               // torch.Tensor
  kNone = 2,                 // None: a leaf without a value
  kDict = 3,                 // dict
  kMapping = 4,              // another mapping
  kSequence = 5,             // list, tuple
  kTensorDict = 6,           // an object with a dict in `attribute`
  kLazyStack = 7,            // an object with a list of trees in `attribute`
  kWrapper = 8,              // an object that stands for the tree in `attribute`
  kModule = 9,               // torch.nn.Module
  kNonTensor = 10,           // a non-tensor entry of a tensordict
  kLeafpackTensorDict = 11,  // leafpack.TensorDict
  kRefused = 12,             // a tree whose leaves cannot be reached, `why` says it
  kNonTensorStack = 13,      // a lazy stack of non-tensor entries, in `attribute`
};

struct TypeInfo {
  TypeKind kind = TypeKind::kOther;
  PyObject* attribute = nullptr;  // an interned str that lives for ever
  std::string why;
};

// What is known of `type`; asks leafpack._kinds at the first time. Throws py::error_already_set.
// The reference is valid for ever.
const TypeInfo& TypeOf(PyTypeObject* type);

// Null if `type` was not asked about before. Runs no Python code.
const TypeInfo* KnownType(PyTypeObject* type);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TYPE_KINDS_H_
