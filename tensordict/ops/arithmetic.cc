#include "tensordict/ops/arithmetic.h"

#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_acos.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_asin.h>
#include <ATen/ops/_foreach_atan.h>
#include <ATen/ops/_foreach_ceil.h>
#include <ATen/ops/_foreach_cos.h>
#include <ATen/ops/_foreach_cosh.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_erf.h>
#include <ATen/ops/_foreach_erfc.h>
#include <ATen/ops/_foreach_exp.h>
#include <ATen/ops/_foreach_expm1.h>
#include <ATen/ops/_foreach_floor.h>
#include <ATen/ops/_foreach_frac.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_lgamma.h>
#include <ATen/ops/_foreach_log.h>
#include <ATen/ops/_foreach_log10.h>
#include <ATen/ops/_foreach_log1p.h>
#include <ATen/ops/_foreach_log2.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_minimum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_pow.h>
#include <ATen/ops/_foreach_reciprocal.h>
#include <ATen/ops/_foreach_round.h>
#include <ATen/ops/_foreach_rsqrt.h>
#include <ATen/ops/_foreach_sigmoid.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sin.h>
#include <ATen/ops/_foreach_sinh.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_foreach_tan.h>
#include <ATen/ops/_foreach_tanh.h>
#include <ATen/ops/_foreach_trunc.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensordict/nested_key.h"
#include "tensordict/ops/walk.h"
#include "tensordict/ops/writable.h"

namespace leafpack {
namespace {

using internal::CaughtAt;
using internal::Node;
using internal::TensorPairs;
using Tensors = std::vector<at::Tensor>;

constexpr std::string_view kUnaryNames[kNumUnaryOps] = {
    "abs", "neg", "sign", "reciprocal", "sqrt", "rsqrt",
    "exp", "expm1", "log", "log10", "log1p", "log2",
    "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "erf", "erfc", "lgamma",
    "ceil", "floor", "round", "trunc", "frac", "sigmoid",
};

Tensors Run(UnaryOp op, const Tensors& x) {
  switch (op) {
    case UnaryOp::kAbs: return at::_foreach_abs(x);
    case UnaryOp::kNeg: return at::_foreach_neg(x);
    case UnaryOp::kSign: return at::_foreach_sign(x);
    case UnaryOp::kReciprocal: return at::_foreach_reciprocal(x);
    case UnaryOp::kSqrt: return at::_foreach_sqrt(x);
    case UnaryOp::kRsqrt: return at::_foreach_rsqrt(x);
    case UnaryOp::kExp: return at::_foreach_exp(x);
    case UnaryOp::kExpm1: return at::_foreach_expm1(x);
    case UnaryOp::kLog: return at::_foreach_log(x);
    case UnaryOp::kLog10: return at::_foreach_log10(x);
    case UnaryOp::kLog1p: return at::_foreach_log1p(x);
    case UnaryOp::kLog2: return at::_foreach_log2(x);
    case UnaryOp::kSin: return at::_foreach_sin(x);
    case UnaryOp::kCos: return at::_foreach_cos(x);
    case UnaryOp::kTan: return at::_foreach_tan(x);
    case UnaryOp::kAsin: return at::_foreach_asin(x);
    case UnaryOp::kAcos: return at::_foreach_acos(x);
    case UnaryOp::kAtan: return at::_foreach_atan(x);
    case UnaryOp::kSinh: return at::_foreach_sinh(x);
    case UnaryOp::kCosh: return at::_foreach_cosh(x);
    case UnaryOp::kTanh: return at::_foreach_tanh(x);
    case UnaryOp::kErf: return at::_foreach_erf(x);
    case UnaryOp::kErfc: return at::_foreach_erfc(x);
    case UnaryOp::kLgamma: return at::_foreach_lgamma(x);
    case UnaryOp::kCeil: return at::_foreach_ceil(x);
    case UnaryOp::kFloor: return at::_foreach_floor(x);
    case UnaryOp::kRound: return at::_foreach_round(x);
    case UnaryOp::kTrunc: return at::_foreach_trunc(x);
    case UnaryOp::kFrac: return at::_foreach_frac(x);
    case UnaryOp::kSigmoid: return at::_foreach_sigmoid(x);
  }
  TORCH_CHECK(false, "no such operation");
}

void RunInPlace(UnaryOp op, const Tensors& x) {
  switch (op) {
    case UnaryOp::kAbs: return at::_foreach_abs_(x);
    case UnaryOp::kNeg: return at::_foreach_neg_(x);
    case UnaryOp::kSign: return at::_foreach_sign_(x);
    case UnaryOp::kReciprocal: return at::_foreach_reciprocal_(x);
    case UnaryOp::kSqrt: return at::_foreach_sqrt_(x);
    case UnaryOp::kRsqrt: return at::_foreach_rsqrt_(x);
    case UnaryOp::kExp: return at::_foreach_exp_(x);
    case UnaryOp::kExpm1: return at::_foreach_expm1_(x);
    case UnaryOp::kLog: return at::_foreach_log_(x);
    case UnaryOp::kLog10: return at::_foreach_log10_(x);
    case UnaryOp::kLog1p: return at::_foreach_log1p_(x);
    case UnaryOp::kLog2: return at::_foreach_log2_(x);
    case UnaryOp::kSin: return at::_foreach_sin_(x);
    case UnaryOp::kCos: return at::_foreach_cos_(x);
    case UnaryOp::kTan: return at::_foreach_tan_(x);
    case UnaryOp::kAsin: return at::_foreach_asin_(x);
    case UnaryOp::kAcos: return at::_foreach_acos_(x);
    case UnaryOp::kAtan: return at::_foreach_atan_(x);
    case UnaryOp::kSinh: return at::_foreach_sinh_(x);
    case UnaryOp::kCosh: return at::_foreach_cosh_(x);
    case UnaryOp::kTanh: return at::_foreach_tanh_(x);
    case UnaryOp::kErf: return at::_foreach_erf_(x);
    case UnaryOp::kErfc: return at::_foreach_erfc_(x);
    case UnaryOp::kLgamma: return at::_foreach_lgamma_(x);
    case UnaryOp::kCeil: return at::_foreach_ceil_(x);
    case UnaryOp::kFloor: return at::_foreach_floor_(x);
    case UnaryOp::kRound: return at::_foreach_round_(x);
    case UnaryOp::kTrunc: return at::_foreach_trunc_(x);
    case UnaryOp::kFrac: return at::_foreach_frac_(x);
    case UnaryOp::kSigmoid: return at::_foreach_sigmoid_(x);
  }
  TORCH_CHECK(false, "no such operation");
}

// `b` is a list of tensors or a scalar.
template <typename Other>
Tensors Run(BinaryOp op, const Tensors& a, const Other& b) {
  switch (op) {
    case BinaryOp::kAdd: return at::_foreach_add(a, b);
    case BinaryOp::kSub: return at::_foreach_sub(a, b);
    case BinaryOp::kMul: return at::_foreach_mul(a, b);
    case BinaryOp::kDiv: return at::_foreach_div(a, b);
    case BinaryOp::kPow: return at::_foreach_pow(a, b);
    case BinaryOp::kMaximum: return at::_foreach_maximum(a, b);
    case BinaryOp::kMinimum: return at::_foreach_minimum(a, b);
  }
  TORCH_CHECK(false, "no such operation");
}

template <typename Other>
void RunInPlace(BinaryOp op, const Tensors& a, const Other& b) {
  switch (op) {
    case BinaryOp::kAdd: return at::_foreach_add_(a, b);
    case BinaryOp::kSub: return at::_foreach_sub_(a, b);
    case BinaryOp::kMul: return at::_foreach_mul_(a, b);
    case BinaryOp::kDiv: return at::_foreach_div_(a, b);
    case BinaryOp::kPow: return at::_foreach_pow_(a, b);
    case BinaryOp::kMaximum: return at::_foreach_maximum_(a, b);
    case BinaryOp::kMinimum: return at::_foreach_minimum_(a, b);
  }
  TORCH_CHECK(false, "no such operation");
}

// Runs `kernel` on the tensors of `tree` and makes a tree of what it returns.
template <typename Kernel>
absl::StatusOr<TensorDict> MapAll(std::string_view op, const TensorDict& tree,
                                  const Kernel& kernel) {
  absl::StatusOr<Tensors> tensors = internal::TensorsOf(op, tree);
  if (!tensors.ok()) return tensors.status();
  Tensors results;
  if (!tensors->empty()) {
    try {
      results = kernel(*tensors);
    } catch (...) {
      return CaughtAt(op, nullptr);
    }
  }
  return internal::WithTensors(op, tree, results);
}

template <typename Kernel>
absl::StatusOr<TensorDict> MapPairs(std::string_view op, const TensorDict& a, const TensorDict& b,
                                    const Kernel& kernel) {
  absl::StatusOr<TensorPairs> pairs = internal::PairsOf(op, a, b);
  if (!pairs.ok()) return pairs.status();
  Tensors results;
  if (!pairs->a.empty()) {
    try {
      results = kernel(pairs->a, pairs->b);
    } catch (...) {
      return CaughtAt(op, nullptr);
    }
  }
  return internal::WithTensors(op, a, results);
}

// Runs `kernel(tensors, operands...)`, whose operands are lists of as many tensors, once all tensors
// are known to take what it writes.
template <typename Kernel, typename... Operands>
absl::Status RunChecked(std::string_view op, const TensorDict& tree, const Tensors& tensors,
                        const Kernel& kernel, const Operands&... operands) {
  if (tensors.empty()) return absl::OkStatus();
  const absl::InlinedVector<absl::Span<const at::Tensor>, 2> lists = {
      absl::Span<const at::Tensor>(operands)...};
  absl::Status checked = internal::CheckInPlace(
      op, tree, tensors, lists,
      [&](const at::Tensor& tensor, absl::Span<const at::Tensor> of_operands) {
        if constexpr (sizeof...(operands) == 0) {
          kernel(Tensors{tensor});
        } else if constexpr (sizeof...(operands) == 1) {
          kernel(Tensors{tensor}, Tensors{of_operands[0]});
        } else {
          kernel(Tensors{tensor}, Tensors{of_operands[0]}, Tensors{of_operands[1]});
        }
      });
  if (!checked.ok()) return checked;
  try {
    kernel(tensors, operands...);
  } catch (...) {
    const NestedKey path = internal::PathOfTensor(tree, 0);
    return CaughtAt(op, &path);
  }
  return absl::OkStatus();
}

template <typename Kernel>
absl::Status InPlace(std::string_view op, const TensorDict& tree, const Kernel& kernel) {
  const absl::StatusOr<Tensors> tensors = internal::TensorsOf(op, tree);
  if (!tensors.ok()) return tensors.status();
  return RunChecked(op, tree, *tensors, kernel);
}

template <typename Kernel>
absl::Status InPlace(std::string_view op, const TensorDict& a, const TensorDict& b,
                     const Kernel& kernel) {
  const absl::StatusOr<TensorPairs> pairs = internal::PairsOf(op, a, b);
  if (!pairs.ok()) return pairs.status();
  return RunChecked(op, a, pairs->a, kernel, pairs->b);
}

// `kernel` gets the tensors of a, b and c.
template <typename Kernel>
absl::Status InPlace(std::string_view op, const TensorDict& a, const TensorDict& b,
                     const TensorDict& c, const Kernel& kernel) {
  const absl::StatusOr<TensorPairs> pairs = internal::PairsOf(op, a, b);
  if (!pairs.ok()) return pairs.status();
  const absl::StatusOr<TensorPairs> third = internal::PairsOf(op, a, c);
  if (!third.ok()) return third.status();
  return RunChecked(op, a, pairs->a, kernel, pairs->b, third->b);
}

}  // namespace

std::string_view BinaryOpName(BinaryOp op) {
  constexpr std::string_view kNames[] = {"add", "sub", "mul", "div", "pow", "maximum", "minimum"};
  return kNames[static_cast<size_t>(op)];
}

absl::StatusOr<TensorDict> Apply(BinaryOp op, const TensorDict& a, const TensorDict& b) {
  return MapPairs(BinaryOpName(op), a, b,
                  [&](const Tensors& x, const Tensors& y) { return Run(op, x, y); });
}

absl::StatusOr<TensorDict> Apply(BinaryOp op, const TensorDict& a, const at::Scalar& b) {
  return MapAll(BinaryOpName(op), a, [&](const Tensors& x) { return Run(op, x, b); });
}

absl::Status ApplyInPlace(BinaryOp op, const TensorDict& a, const TensorDict& b) {
  return InPlace(BinaryOpName(op), a, b,
                 [&](const Tensors& x, const Tensors& y) { RunInPlace(op, x, y); });
}

absl::Status ApplyInPlace(BinaryOp op, const TensorDict& a, const at::Scalar& b) {
  return InPlace(BinaryOpName(op), a, [&](const Tensors& x) { RunInPlace(op, x, b); });
}

absl::Status ApplyInPlace(BinaryOp op, const TensorDict& a, const std::vector<at::Tensor>& b) {
  const std::string_view name = BinaryOpName(op);
  const absl::StatusOr<Tensors> tensors = internal::TensorsOf(name, a);
  if (!tensors.ok()) return tensors.status();
  if (b.size() != tensors->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", b.size(), " operands for ", tensors->size(), " tensors"));
  }
  return RunChecked(name, a, *tensors,
                    [&](const Tensors& x, const Tensors& y) { RunInPlace(op, x, y); }, b);
}

absl::StatusOr<TensorDict> Add(const TensorDict& a, const TensorDict& b, const at::Scalar& alpha) {
  return MapPairs("add", a, b, [&](const Tensors& x, const Tensors& y) {
    return at::_foreach_add(x, y, alpha);
  });
}

absl::StatusOr<TensorDict> Sub(const TensorDict& a, const TensorDict& b, const at::Scalar& alpha) {
  return MapPairs("sub", a, b, [&](const Tensors& x, const Tensors& y) {
    return at::_foreach_sub(x, y, alpha);
  });
}

absl::Status AddInPlace(const TensorDict& a, const TensorDict& b, const at::Scalar& alpha) {
  return InPlace("add", a, b,
                 [&](const Tensors& x, const Tensors& y) { at::_foreach_add_(x, y, alpha); });
}

absl::Status SubInPlace(const TensorDict& a, const TensorDict& b, const at::Scalar& alpha) {
  return InPlace("sub", a, b,
                 [&](const Tensors& x, const Tensors& y) { at::_foreach_sub_(x, y, alpha); });
}

absl::StatusOr<TensorDict> Lerp(const TensorDict& start, const TensorDict& end,
                                const at::Scalar& weight) {
  return MapPairs("lerp", start, end, [&](const Tensors& x, const Tensors& y) {
    return at::_foreach_lerp(x, y, weight);
  });
}

absl::Status LerpInPlace(const TensorDict& start, const TensorDict& end,
                         const at::Scalar& weight) {
  return InPlace("lerp", start, end,
                 [&](const Tensors& x, const Tensors& y) { at::_foreach_lerp_(x, y, weight); });
}

absl::Status AddcmulInPlace(const TensorDict& a, const TensorDict& b, const TensorDict& c,
                            const at::Scalar& value) {
  return InPlace("addcmul", a, b, c, [&](const Tensors& x, const Tensors& y, const Tensors& z) {
    at::_foreach_addcmul_(x, y, z, value);
  });
}

absl::Status AddcdivInPlace(const TensorDict& a, const TensorDict& b, const TensorDict& c,
                            const at::Scalar& value) {
  return InPlace("addcdiv", a, b, c, [&](const Tensors& x, const Tensors& y, const Tensors& z) {
    at::_foreach_addcdiv_(x, y, z, value);
  });
}

std::string_view UnaryOpName(UnaryOp op) { return kUnaryNames[static_cast<size_t>(op)]; }

absl::StatusOr<TensorDict> Apply(UnaryOp op, const TensorDict& tree) {
  return MapAll(UnaryOpName(op), tree, [&](const Tensors& x) { return Run(op, x); });
}

absl::Status ApplyInPlace(UnaryOp op, const TensorDict& tree) {
  return InPlace(UnaryOpName(op), tree, [&](const Tensors& x) { RunInPlace(op, x); });
}

absl::StatusOr<TensorDict> LeafNorms(const TensorDict& tree, double ord) {
  const absl::StatusOr<Tensors> tensors = internal::TensorsOf("norm", tree);
  if (!tensors.ok()) return tensors.status();
  Tensors norms;
  if (!tensors->empty()) {
    try {
      norms = at::_foreach_norm(*tensors, ord);
    } catch (...) {
      return CaughtAt("norm", nullptr);
    }
  }
  return internal::WithTensors("norm", tree, norms,
                               [](const Node& from, Node& to) { to.device = from.device; });
}

absl::StatusOr<at::Tensor> Norm(const TensorDict& tree, double ord) {
  const absl::StatusOr<Tensors> tensors = internal::TensorsOf("norm", tree);
  if (!tensors.ok()) return tensors.status();
  try {
    if (tensors->empty()) return at::zeros({});
    return at::linalg_vector_norm(at::stack(at::_foreach_norm(*tensors, ord)), ord);
  } catch (...) {
    return CaughtAt("norm", nullptr);
  }
}

absl::StatusOr<at::Tensor> ClipNormInPlace(const TensorDict& tree, double max_norm, double ord,
                                           bool refuse_nonfinite) {
  constexpr std::string_view kOp = "clip norm";
  if (!(max_norm >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(kOp, ": the norm ", max_norm, " is negative"));
  }
  const absl::StatusOr<Tensors> tensors = internal::TensorsOf(kOp, tree);
  if (!tensors.ok()) return tensors.status();
  {
    const c10::NoGradGuard no_grad;
    if (absl::Status s = internal::CheckWritable(kOp, tree); !s.ok()) return s;
  }
  const absl::StatusOr<at::Tensor> norm = Norm(tree, ord);
  if (!norm.ok() || tensors->empty()) return norm;
  try {
    if (refuse_nonfinite && !norm->isfinite().item<bool>()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kOp, ": the norm is ", norm->item<double>(), ", not finite"));
    }
    // No branch on the value, so that a device is not waited for.
    const at::Tensor factor = norm->add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
    const c10::NoGradGuard no_grad;
    at::_foreach_mul_(*tensors, factor);
  } catch (...) {
    return CaughtAt(kOp, nullptr);
  }
  return norm;
}

}  // namespace leafpack
