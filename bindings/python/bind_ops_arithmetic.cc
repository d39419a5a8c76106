// Arithmetic on whole trees.
#include <pybind11/pybind11.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/bind_ops.h"
#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tree_values.h"
#include "tensordict/ops/arithmetic.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

py::object ToPython(const at::Tensor& tensor) {
  return py::reinterpret_steal<py::object>(TensorToPython(tensor));
}

void BindBinary(py::module_& ops, BinaryOp op) {
  const std::string name(BinaryOpName(op));
  ops.def(name.c_str(), [op](const TensorDict& a, const TensorDict& b) {
    return ValueOrRaise(Apply(op, a, b));
  });
  ops.def(name.c_str(), [op](const TensorDict& a, const py::object& b) {
    return ValueOrRaise(Apply(op, a, ScalarFromPython(b)));
  });
  ops.def((name + "_").c_str(), [op](const TensorDict& a, const TensorDict& b) {
    RaiseIfError(ApplyInPlace(op, a, b));
  });
  ops.def((name + "_each").c_str(), [op](const TensorDict& a, const py::list& b) {
    std::vector<at::Tensor> operands;
    for (py::handle tensor : b) operands.push_back(TensorOf(tensor.ptr()));
    RaiseIfError(ApplyInPlace(op, a, operands));
  });
  ops.def((name + "_").c_str(), [op](const TensorDict& a, const py::object& b) {
    RaiseIfError(ApplyInPlace(op, a, ScalarFromPython(b)));
  });
}

}  // namespace

void BindArithmeticOps(py::module_& ops) {
  for (BinaryOp op : {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv,
                      BinaryOp::kPow, BinaryOp::kMaximum, BinaryOp::kMinimum}) {
    BindBinary(ops, op);
  }
  py::list unary;
  for (int i = 0; i < kNumUnaryOps; ++i) {
    const auto op = static_cast<UnaryOp>(i);
    const std::string name(UnaryOpName(op));
    unary.append(name);
    ops.def(name.c_str(), [op](const TensorDict& tree) { return ValueOrRaise(Apply(op, tree)); });
    ops.def((name + "_").c_str(),
            [op](const TensorDict& tree) { RaiseIfError(ApplyInPlace(op, tree)); });
  }
  ops.attr("unary") = py::tuple(unary);

  ops.def("add_scaled", [](const TensorDict& a, const TensorDict& b, const py::object& alpha) {
    return ValueOrRaise(Add(a, b, ScalarFromPython(alpha)));
  });
  ops.def("add_scaled_", [](const TensorDict& a, const TensorDict& b, const py::object& alpha) {
    RaiseIfError(AddInPlace(a, b, ScalarFromPython(alpha)));
  });
  ops.def("sub_scaled", [](const TensorDict& a, const TensorDict& b, const py::object& alpha) {
    return ValueOrRaise(Sub(a, b, ScalarFromPython(alpha)));
  });
  ops.def("sub_scaled_", [](const TensorDict& a, const TensorDict& b, const py::object& alpha) {
    RaiseIfError(SubInPlace(a, b, ScalarFromPython(alpha)));
  });
  ops.def("lerp", [](const TensorDict& start, const TensorDict& end, const py::object& weight) {
    return ValueOrRaise(Lerp(start, end, ScalarFromPython(weight)));
  });
  ops.def("lerp_", [](const TensorDict& start, const TensorDict& end, const py::object& weight) {
    RaiseIfError(LerpInPlace(start, end, ScalarFromPython(weight)));
  });
  ops.def("addcmul_", [](const TensorDict& a, const TensorDict& b, const TensorDict& c,
                         const py::object& value) {
    RaiseIfError(AddcmulInPlace(a, b, c, ScalarFromPython(value)));
  });
  ops.def("addcdiv_", [](const TensorDict& a, const TensorDict& b, const TensorDict& c,
                         const py::object& value) {
    RaiseIfError(AddcdivInPlace(a, b, c, ScalarFromPython(value)));
  });
  ops.def("leaf_norms", [](const TensorDict& tree, double ord) {
    return ValueOrRaise(LeafNorms(tree, ord));
  });
  ops.def("total_norm", [](const TensorDict& tree, double ord) {
    return ToPython(ValueOrRaise(Norm(tree, ord)));
  });
  ops.def("clip_norm_", [](const TensorDict& tree, double max_norm, double ord, bool finite) {
    return ToPython(ValueOrRaise(ClipNormInPlace(tree, max_norm, ord, finite)));
  });
}

}  // namespace leafpack::python
