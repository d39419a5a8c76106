// Paths, sizes, numbers and values of trees between Python and C++, as the methods of
// leafpack.TensorDict take them.
//
// Everything here needs the GIL and throws Python's exceptions.
#ifndef LEAFPACK_BINDINGS_PYTHON_TREE_VALUES_H_
#define LEAFPACK_BINDINGS_PYTHON_TREE_VALUES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensordict/nested_key.h"
#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {

namespace py = pybind11;

// Batch sizes: None, an int, or a sequence of ints. ValueError for a negative one.
std::vector<int64_t> BatchSizeFromPython(const py::object& sizes);
// Sizes or dimensions: a sequence of ints, also negative ones.
std::vector<int64_t> IntsFromPython(const py::handle& values);
// A torch.Size.
py::object SizesToPython(at::IntArrayRef sizes);

// A str or int is a path of one component, a tuple one of many.
NestedKey KeyFromPython(const py::handle& key);
std::vector<NestedKey> KeysFromPython(const py::handle& keys);
// As tensordict writes keys: one component as it is, several as a tuple.
py::object KeyToPython(const NestedKey& key);

// A tensor, None, a leafpack.TensorDict or a plain value.
py::object ValueToPython(const TreeValue& value);

// Names of batch dimensions: None is "no names", an entry that is None "no name".
std::vector<std::string> NamesFromPython(const py::object& names);
// A torch.device, whatever torch.device() takes, or None.
std::optional<c10::Device> DeviceFromPython(const py::object& device);

// A bool, int, float or complex. TypeError for anything else.
at::Scalar ScalarFromPython(const py::handle& number);

// The trees in a sequence. TypeError, with its place, for anything else.
std::vector<TensorDict> TreesFromPython(const py::handle& trees);
py::tuple TreesToPython(std::vector<TensorDict> trees);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_TREE_VALUES_H_
