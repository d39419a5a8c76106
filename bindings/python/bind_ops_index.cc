// Indexing the batch dimensions of a tree, with what torch takes in brackets.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind_ops.h"
#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tree_values.h"
#include "tensordict/ops/index.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

// Ends beyond 64 bits are cut, as Python's slice.indices does.
Slice SliceFromPython(PyObject* slice) {
  Py_ssize_t start = 0, stop = 0, step = 0;
  if (PySlice_Unpack(slice, &start, &stop, &step) < 0) throw py::error_already_set();
  if (step <= 0) throw py::value_error("slice step must be positive");
  return Slice(start, stop, step);
}

// A number of any kind that is an int to Python, of numpy too; nullopt if it is none.
std::optional<int64_t> PositionFromPython(PyObject* object) {
  if (!PyIndex_Check(object)) return std::nullopt;
  const py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(object));
  if (!number) {  // an array says that it can be one, whatever its shape
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();
    return std::nullopt;
  }
  const int64_t position = PyLong_AsLongLong(number.ptr());
  if (position == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    throw py::index_error(absl::StrCat("index: the position ",
                                       std::string(py::str(number)), " has more than 64 bits"));
  }
  return position;
}

// A list, range or array of numpy as a tensor.
at::Tensor TensorFromPython(py::handle item) {
  py::object source = py::reinterpret_borrow<py::object>(item);
  if (PyRange_Check(item.ptr())) {
    source = py::list(source);
  } else if (py::hasattr(item, "strides")) {
    source = source.attr("copy")();  // torch takes no negative strides
  }
  py::object tensor = py::module_::import("torch").attr("as_tensor")(source);
  if (PyList_Check(item.ptr()) && py::len(source) == 0) tensor = tensor.attr("long")();
  return TensorOf(tensor.ptr());
}

IndexItem ItemFromPython(py::handle item) {
  PyObject* object = item.ptr();
  if (object == Py_None) return NewAxis();
  if (object == Py_Ellipsis) return Ellipsis();
  if (PyBool_Check(object)) {
    throw py::type_error("True and False are no index: None makes a dimension of size 1");
  }
  if (PySlice_Check(object)) return SliceFromPython(object);
  if (IsTensor(object)) return TensorOf(object);
  if (const std::optional<int64_t> position = PositionFromPython(object)) return *position;
  if (PyList_Check(object) || PyRange_Check(object) || PyTuple_Check(object) ||
      py::hasattr(item, "__array__")) {
    return TensorFromPython(item);
  }
  throw py::type_error(absl::StrCat("no index: ", TypeName(object)));
}

std::vector<IndexItem> IndexFromPython(const py::object& index) {
  std::vector<IndexItem> items;
  if (PyTuple_Check(index.ptr())) {
    for (py::handle item : index) items.push_back(ItemFromPython(item));
  } else {
    items.push_back(ItemFromPython(index));
  }
  return items;
}

[[noreturn]] void RaiseIndexError(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) throw py::index_error(std::string(status.message()));
  Raise(status);
}

// An index that does not fit is an IndexError; what is wrong with the value is told as usual.
void RaiseOfSet(const TensorDict& tree, const std::vector<IndexItem>& index,
                const absl::Status& status) {
  if (status.ok()) return;
  if (absl::StatusOr<TensorDict> part = Index(tree, index); !part.ok()) {
    RaiseIndexError(part.status());
  }
  Raise(status);
}

}  // namespace

void BindIndexOps(py::module_& ops) {
  ops.def("index", [](const TensorDict& tree, const py::object& index) {
    absl::StatusOr<TensorDict> part = Index(tree, IndexFromPython(index));
    if (!part.ok()) RaiseIndexError(part.status());
    return *std::move(part);
  });
  ops.def("set_index", [](TensorDict& tree, const py::object& index, const TensorDict& value,
                          bool cast) {
    const std::vector<IndexItem> items = IndexFromPython(index);
    RaiseOfSet(tree, items,
               SetIndex(tree, items, value, cast ? Cast::kAllow : Cast::kRefuse));
  });
  ops.def("fill_index", [](TensorDict& tree, const py::object& index, const py::object& number) {
    const std::vector<IndexItem> items = IndexFromPython(index);
    RaiseOfSet(tree, items, SetIndex(tree, items, ScalarFromPython(number)));
  });
  ops.def("set_leaf_index", [](TensorDict& tree, const py::object& key, const py::object& index,
                               const py::object& value, bool cast) {
    const std::vector<IndexItem> items = IndexFromPython(index);
    RaiseOfSet(tree, items,
               SetIndex(tree, KeyFromPython(key), items, TensorOf(value.ptr()),
                        cast ? Cast::kAllow : Cast::kRefuse));
  });
}

}  // namespace leafpack::python
