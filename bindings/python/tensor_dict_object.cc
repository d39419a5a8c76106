#include "bindings/python/tensor_dict_object.h"

#include <pybind11/pybind11.h>

namespace leafpack::python {

const TensorDict& TensorDictOf(PyObject* object) {
  return pybind11::handle(object).cast<const TensorDict&>();
}

}  // namespace leafpack::python
