#include "bindings/python/tree_values.h"

#include <torch/csrc/Device.h>

#include <pybind11/pybind11.h>

#include <complex>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tensor_dict_object.h"

namespace leafpack::python {

std::vector<int64_t> BatchSizeFromPython(const py::object& sizes) {
  std::vector<int64_t> result;
  if (sizes.is_none()) return result;
  if (PyIndex_Check(sizes.ptr())) {
    result.push_back(sizes.cast<int64_t>());
  } else {
    result = IntsFromPython(sizes);
  }
  for (int64_t size : result) {
    if (size < 0) throw py::value_error(absl::StrCat("batch_size has the negative size ", size));
  }
  return result;
}

std::vector<int64_t> IntsFromPython(const py::handle& values) {
  std::vector<int64_t> result;
  for (py::handle value : values) {
    if (!PyIndex_Check(value.ptr())) {
      throw py::type_error(
          absl::StrCat("sizes and dimensions are ints, not ", TypeName(value.ptr())));
    }
    result.push_back(value.cast<int64_t>());
  }
  return result;
}

py::object SizesToPython(at::IntArrayRef sizes) {
  py::tuple tuple(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) tuple[i] = py::int_(sizes[i]);
  return py::module_::import("torch").attr("Size")(tuple);
}

NestedKey KeyFromPython(const py::handle& key) {
  NestedKey path;
  if (PyTuple_Check(key.ptr())) {
    for (py::handle part : key) {
      path.push_back(ValueOrRaise(ComponentFromPython(part.ptr(), path)));
    }
  } else {
    path.push_back(ValueOrRaise(ComponentFromPython(key.ptr(), path)));
  }
  return path;
}

std::vector<NestedKey> KeysFromPython(const py::handle& keys) {
  std::vector<NestedKey> result;
  for (py::handle key : keys) result.push_back(KeyFromPython(key));
  return result;
}

py::object KeyToPython(const NestedKey& key) {
  return py::reinterpret_steal<py::object>(key.size() == 1 ? ComponentToPython(key[0])
                                                           : PathToPython(key));
}

py::object ValueToPython(const TreeValue& value) {
  if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
    return py::reinterpret_steal<py::object>(TensorToPython(*tensor));
  }
  if (const auto* tree = std::get_if<TensorDict>(&value)) return py::cast(*tree);
  return NonTensorToPython(std::get<NonTensor>(value));
}

std::vector<std::string> NamesFromPython(const py::object& names) {
  std::vector<std::string> taken;
  if (names.is_none()) return taken;
  for (py::handle name : names) {
    taken.push_back(name.is_none() ? std::string() : name.cast<std::string>());
  }
  return taken;
}

std::optional<c10::Device> DeviceFromPython(const py::object& device) {
  if (device.is_none()) return std::nullopt;
  py::object made = device;
  if (!THPDevice_Check(made.ptr())) made = py::module_::import("torch").attr("device")(device);
  return reinterpret_cast<THPDevice*>(made.ptr())->device;
}

at::Scalar ScalarFromPython(const py::handle& number) {
  PyObject* object = number.ptr();
  if (PyBool_Check(object)) return at::Scalar(object == Py_True);
  if (PyLong_Check(object)) return at::Scalar(number.cast<int64_t>());
  if (PyFloat_Check(object)) return at::Scalar(PyFloat_AS_DOUBLE(object));
  if (PyComplex_Check(object)) {
    return at::Scalar(
        c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object)));
  }
  // Numbers of numpy, of any dtype.
  if (py::hasattr(number, "__array_interface__") && py::hasattr(number, "item") &&
      py::len(number.attr("shape")) == 0) {
    const py::object item = number.attr("item")();
    if (!py::hasattr(item, "__array_interface__")) return ScalarFromPython(item);
  }
  throw py::type_error(absl::StrCat("expected a number, not ", TypeName(object)));
}

std::vector<TensorDict> TreesFromPython(const py::handle& trees) {
  std::vector<TensorDict> result;
  for (py::handle tree : trees) {
    if (!py::isinstance<TensorDict>(tree)) {
      throw py::type_error(absl::StrCat("expected leafpack.TensorDicts; number ", result.size(),
                                        " is of type ", TypeName(tree.ptr())));
    }
    result.push_back(TensorDictOf(tree.ptr()));
  }
  return result;
}

py::tuple TreesToPython(std::vector<TensorDict> trees) {
  py::tuple result(trees.size());
  for (size_t i = 0; i < trees.size(); ++i) result[i] = py::cast(std::move(trees[i]));
  return result;
}

}  // namespace leafpack::python
