// Shapes of batches: split, unbind, stack, cat, view, permute and their kin.
#include <pybind11/pybind11.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bindings/python/bind_ops.h"
#include "bindings/python/errors.h"
#include "bindings/python/tree_values.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/combine.h"
#include "tensordict/ops/shape.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

using Combine = absl::StatusOr<TensorDict> (*)(absl::Span<const TensorDict>, int64_t);

// Copies much, so it goes without the GIL, on nodes that no other thread can reach.
TensorDict Combined(const py::object& sequence, int64_t dim, Combine combine) {
  std::vector<TensorDict> trees = TreesFromPython(sequence);
  for (TensorDict& tree : trees) tree = ValueOrRaise(Clone(tree, /*recurse=*/false));
  absl::StatusOr<TensorDict> result;
  {
    py::gil_scoped_release release;
    result = combine(trees, dim);
  }
  return ValueOrRaise(std::move(result));
}

}  // namespace

void BindShapeOps(py::module_& ops) {
  ops.def("stack", [](const py::object& trees, int64_t dim) {
    return Combined(trees, dim, &Stack);
  });
  ops.def("cat", [](const py::object& trees, int64_t dim) { return Combined(trees, dim, &Cat); });
  ops.def("view", [](const TensorDict& tree, const py::object& sizes) {
    return ValueOrRaise(View(tree, IntsFromPython(sizes)));
  });
  ops.def("reshape", [](const TensorDict& tree, const py::object& sizes) {
    return ValueOrRaise(Reshape(tree, IntsFromPython(sizes)));
  });
  ops.def("permute", [](const TensorDict& tree, const py::object& dims) {
    return ValueOrRaise(Permute(tree, IntsFromPython(dims)));
  });
  ops.def("transpose", [](const TensorDict& tree, int64_t dim0, int64_t dim1) {
    return ValueOrRaise(Transpose(tree, dim0, dim1));
  });
  ops.def("squeeze", [](const TensorDict& tree, const py::object& dim) {
    return ValueOrRaise(Squeeze(
        tree, dim.is_none() ? std::nullopt : std::optional<int64_t>(dim.cast<int64_t>())));
  });
  ops.def("unsqueeze", [](const TensorDict& tree, int64_t dim) {
    return ValueOrRaise(Unsqueeze(tree, dim));
  });
  ops.def("expand", [](const TensorDict& tree, const py::object& sizes) {
    return ValueOrRaise(Expand(tree, IntsFromPython(sizes)));
  });
  ops.def("flatten", [](const TensorDict& tree, int64_t start, int64_t end) {
    return ValueOrRaise(FlattenDims(tree, start, end));
  });
  ops.def("unflatten", [](const TensorDict& tree, int64_t dim, const py::object& sizes) {
    return ValueOrRaise(UnflattenDim(tree, dim, IntsFromPython(sizes)));
  });
  ops.def("split", [](const TensorDict& tree, const py::object& size, int64_t dim) {
    if (PyIndex_Check(size.ptr())) {
      return TreesToPython(ValueOrRaise(Split(tree, size.cast<int64_t>(), dim)));
    }
    const std::vector<int64_t> sizes = IntsFromPython(size);
    return TreesToPython(ValueOrRaise(Split(tree, at::IntArrayRef(sizes), dim)));
  });
  ops.def("chunk", [](const TensorDict& tree, int64_t chunks, int64_t dim) {
    return TreesToPython(ValueOrRaise(Chunk(tree, chunks, dim)));
  });
  ops.def("unbind", [](const TensorDict& tree, int64_t dim) {
    return TreesToPython(ValueOrRaise(Unbind(tree, dim)));
  });
}

}  // namespace leafpack::python
