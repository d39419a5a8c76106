// Python functions applied to the tensors of trees.
#include <pybind11/pybind11.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind_ops.h"
#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tree_values.h"
#include "tensordict/flat_tree.h"
#include "tensordict/ops/apply.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

// Calls a Python function for the C++ walk. An exception of the function ends the walk and is
// raised again as it was.
class Function {
 public:
  explicit Function(py::object function) : function_(std::move(function)) {}

  std::optional<at::Tensor> operator()(const py::object& name,
                                       absl::Span<const at::Tensor> leaves) {
    try {
      py::list arguments;
      if (name) arguments.append(name);
      for (const at::Tensor& leaf : leaves) {
        arguments.append(py::reinterpret_steal<py::object>(TensorToPython(leaf)));
      }
      const py::object result = function_(*arguments);
      if (result.is_none()) return std::nullopt;
      if (!IsTensor(result.ptr())) {
        throw py::type_error(
            absl::StrCat("the function returned ", TypeName(result.ptr()), ", no tensor"));
      }
      return TensorOf(result.ptr());
    } catch (py::error_already_set& error) {
      error_.emplace(std::move(error));
      throw std::runtime_error("the function raised an exception");
    }
  }

  // To be called after the walk.
  void Rethrow() {
    if (error_.has_value()) throw py::error_already_set(*std::move(error_));
  }

 private:
  py::object function_;
  std::optional<py::error_already_set> error_;
};

std::vector<NestedKey> PathsOfTensors(const TensorDict& tree) {
  std::vector<NestedKey> paths;
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    if (leaf.defined()) paths.push_back(path);
  });
  return paths;
}

ApplyOptions OptionsOf(const py::object& batch_size, const py::object& filter_empty) {
  ApplyOptions options;
  if (!batch_size.is_none()) options.batch_size = BatchSizeFromPython(batch_size);
  if (!filter_empty.is_none()) {
    options.empty_nodes = filter_empty.cast<bool>() ? EmptyNodes::kDrop : EmptyNodes::kKeep;
  }
  return options;
}

}  // namespace

void BindApplyOps(py::module_& ops) {
  // `names`: "none", "last" (the last component) or "path".
  ops.def("apply", [](const TensorDict& tree, const py::object& function, const py::tuple& others,
                      const std::string& names, const py::object& batch_size,
                      const py::object& filter_empty) {
    std::vector<TensorDict> trees = TreesFromPython(others);
    trees.insert(trees.begin(), tree);
    std::vector<NestedKey> paths;
    if (names != "none") paths = PathsOfTensors(tree);
    Function call(function);
    size_t next = 0;
    const auto each = [&](absl::Span<const at::Tensor> leaves) {
      py::object name;
      if (names != "none") {
        const NestedKey& path = paths.at(next++);
        name = KeyToPython(names == "last" ? NestedKey(path.back()) : path);
      }
      return call(name, leaves);
    };
    absl::StatusOr<TensorDict> result =
        trees.size() == 1
            ? Apply(tree, [&](const at::Tensor& leaf) { return each(absl::MakeConstSpan(&leaf, 1)); },
                    OptionsOf(batch_size, filter_empty))
            : Apply(absl::MakeConstSpan(trees), each, OptionsOf(batch_size, filter_empty));
    call.Rethrow();
    return ValueOrRaise(std::move(result));
  });
  ops.def("apply_in_place", [](TensorDict& tree, const py::object& function) {
    Function call(function);
    const absl::Status status = ApplyInPlace(tree, [&](const at::Tensor& leaf) {
      return call(py::object(), absl::MakeConstSpan(&leaf, 1));
    });
    call.Rethrow();
    RaiseIfError(status);
  });
}

}  // namespace leafpack::python
