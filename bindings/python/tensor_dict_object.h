// The C++ tree inside a leafpack.TensorDict of Python.
#ifndef LEAFPACK_BINDINGS_PYTHON_TENSOR_DICT_OBJECT_H_
#define LEAFPACK_BINDINGS_PYTHON_TENSOR_DICT_OBJECT_H_

#include <Python.h>

#include "tensordict/tensor_dict.h"

namespace leafpack::python {

// `object` must be a leafpack.TensorDict. Needs the GIL.
const TensorDict& TensorDictOf(PyObject* object);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TENSOR_DICT_OBJECT_H_
