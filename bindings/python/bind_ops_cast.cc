// Copies, conversions, locks, names, comparison and measures of trees.
#include <pybind11/pybind11.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bindings/python/bind_ops.h"
#include "bindings/python/errors.h"
#include "bindings/python/tree_values.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/compare.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

// Copies much, so it goes without the GIL, on nodes that no other thread can reach.
template <typename F>
TensorDict Converted(const TensorDict& tree, F&& convert) {
  const TensorDict snapshot = ValueOrRaise(Clone(tree, /*recurse=*/false));
  absl::StatusOr<TensorDict> result;
  {
    py::gil_scoped_release release;
    result = convert(snapshot);
  }
  return ValueOrRaise(std::move(result));
}

}  // namespace

void BindCastOps(py::module_& ops) {
  ops.def("to", [](const TensorDict& tree, const py::object& device, const py::object& dtype,
                   bool non_blocking) {
    ToOptions options;
    options.non_blocking = non_blocking;
    if (!device.is_none()) {
      if (!THPDevice_Check(device.ptr())) throw py::type_error("device must be a torch.device");
      options.device = reinterpret_cast<THPDevice*>(device.ptr())->device;
    }
    if (!dtype.is_none()) {
      if (!THPDtype_Check(dtype.ptr())) throw py::type_error("dtype must be a torch.dtype");
      options.dtype = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
    }
    return Converted(tree, [&](const TensorDict& source) { return To(source, options); });
  });
  ops.def("clone", [](const TensorDict& tree, bool recurse) {
    if (!recurse) return ValueOrRaise(Clone(tree, false));
    return Converted(tree, [](const TensorDict& source) { return Clone(source, true); });
  });
  ops.def("contiguous", [](const TensorDict& tree) { return Converted(tree, &Contiguous); });
  ops.def("detach", [](const TensorDict& tree) { return ValueOrRaise(Detach(tree)); });
  ops.def("grads", [](const TensorDict& tree) { return ValueOrRaise(Grads(tree)); });
  ops.def("zero", [](const TensorDict& tree) { RaiseIfError(ZeroInPlace(tree)); });
  ops.def("requires_grad", [](const TensorDict& tree, bool requires_grad) {
    RaiseIfError(RequiresGradInPlace(tree, requires_grad));
  });

  ops.def("lock", [](TensorDict& tree) { tree.Lock(); });
  ops.def("unlock", [](TensorDict& tree) { RaiseIfError(tree.Unlock()); });
  ops.def("is_locked", [](const TensorDict& tree) { return tree.is_locked(); });
  ops.def("set_batch_size", [](TensorDict& tree, const py::object& sizes) {
    RaiseIfError(tree.SetBatchSize(BatchSizeFromPython(sizes)));
  });
  ops.def("names", [](const TensorDict& tree) {
    py::list names;
    for (const std::string& name : tree.names()) {
      names.append(name.empty() ? py::object(py::none()) : py::object(py::str(name)));
    }
    return names;
  });
  ops.def("set_names", [](TensorDict& tree, const py::object& names) {
    RaiseIfError(tree.SetNames(NamesFromPython(names)));
  });
  ops.def("device", [](const TensorDict& tree) -> py::object {
    if (!tree.device().has_value()) return py::none();
    return py::reinterpret_steal<py::object>(THPDevice_New(*tree.device()));
  });
  ops.def("clear_device", [](TensorDict& tree) { tree.ClearDevice(); });

  ops.def("equal", [](const TensorDict& a, const TensorDict& b) {
    return ValueOrRaise(Equal(a, b));
  });
  ops.def("elements_equal", [](const TensorDict& a, const TensorDict& b) {
    return ValueOrRaise(ElementsEqual(a, b));
  });
  ops.def("allclose", [](const TensorDict& a, const TensorDict& b, double rtol, double atol,
                         bool equal_nan) {
    return ValueOrRaise(AllClose(a, b, {.relative = rtol, .absolute = atol, .equal_nan = equal_nan}));
  });
  ops.def("batch_numel", &BatchNumel);
  ops.def("bytes", &Bytes);
  ops.def("is_empty", &IsEmpty);
}

}  // namespace leafpack::python
