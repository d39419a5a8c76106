// Arithmetic on whole trees, through torch's _foreach_ kernels: one call for all leaves. Autograd
// passes through.
//
//   absl::StatusOr<TensorDict> sum = Add(a, b, /*alpha=*/0.5);     // a + 0.5 * b
//   absl::Status s = AddInPlace(weights, grads, -learning_rate);
//   absl::StatusOr<TensorDict> roots = Apply(UnaryOp::kSqrt, tree);
#ifndef LEAFPACK_TENSORDICT_OPS_ARITHMETIC_H_
#define LEAFPACK_TENSORDICT_OPS_ARITHMETIC_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// In all of these: results have structure and rules of the (first) tree. Two trees must have one
// structure: InvalidArgument names the first path that only one has, or where one has a node, or an
// undefined tensor, and the other a tensor, or where values that are no tensors differ. Leaves of
// one path broadcast and promote as torch does; in a result whose batch size would not fit any
// more, InvalidArgument names the path. Undefined tensors and values that are no tensors are taken
// over. Operations in place write values only, also in a locked tree. InvalidArgument, naming the
// path, before the first leaf is written: a result whose dtype or shape a leaf cannot take, a leaf that
// was expanded, or that requires grad while autograd records.

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kPow, kMaximum, kMinimum };
std::string_view BinaryOpName(BinaryOp op);

absl::StatusOr<TensorDict> Apply(BinaryOp op, const TensorDict& a, const TensorDict& b);
absl::StatusOr<TensorDict> Apply(BinaryOp op, const TensorDict& a, const at::Scalar& b);
absl::Status ApplyInPlace(BinaryOp op, const TensorDict& a, const TensorDict& b);
absl::Status ApplyInPlace(BinaryOp op, const TensorDict& a, const at::Scalar& b);
// With one tensor of `b` for each defined tensor of `a`, in canonical order.
absl::Status ApplyInPlace(BinaryOp op, const TensorDict& a, const std::vector<at::Tensor>& b);

// a + alpha * b, a - alpha * b.
absl::StatusOr<TensorDict> Add(const TensorDict& a, const TensorDict& b,
                               const at::Scalar& alpha = 1);
absl::StatusOr<TensorDict> Sub(const TensorDict& a, const TensorDict& b,
                               const at::Scalar& alpha = 1);
absl::Status AddInPlace(const TensorDict& a, const TensorDict& b, const at::Scalar& alpha = 1);
absl::Status SubInPlace(const TensorDict& a, const TensorDict& b, const at::Scalar& alpha = 1);

// start + weight * (end - start).
absl::StatusOr<TensorDict> Lerp(const TensorDict& start, const TensorDict& end,
                                const at::Scalar& weight);
absl::Status LerpInPlace(const TensorDict& start, const TensorDict& end, const at::Scalar& weight);

// a + value * b * c, a + value * b / c: what optimizers do.
absl::Status AddcmulInPlace(const TensorDict& a, const TensorDict& b, const TensorDict& c,
                            const at::Scalar& value = 1);
absl::Status AddcdivInPlace(const TensorDict& a, const TensorDict& b, const TensorDict& c,
                            const at::Scalar& value = 1);

enum class UnaryOp : uint8_t {
  kAbs,   kNeg,  kSign,  kReciprocal, kSqrt,  kRsqrt, kExp,   kExpm1,  kLog,  kLog10,
  kLog1p, kLog2, kSin,   kCos,        kTan,   kAsin,  kAcos,  kAtan,   kSinh, kCosh,
  kTanh,  kErf,  kErfc,  kLgamma,     kCeil,  kFloor, kRound, kTrunc,  kFrac, kSigmoid,
};
inline constexpr int kNumUnaryOps = 30;
// As torch names it: "abs", "log1p".
std::string_view UnaryOpName(UnaryOp op);

absl::StatusOr<TensorDict> Apply(UnaryOp op, const TensorDict& tree);
absl::Status ApplyInPlace(UnaryOp op, const TensorDict& tree);

// ---- Norms. `ord` as torch.linalg.vector_norm: 2, 1, infinity, ...

// The norm of every leaf: a tree of batch size [] with tensors without dimensions.
absl::StatusOr<TensorDict> LeafNorms(const TensorDict& tree, double ord = 2);
// The norm of all elements together; 0 for a tree without tensors. All leaves must lie on one
// device.
absl::StatusOr<at::Tensor> Norm(const TensorDict& tree, double ord = 2);

// Scales all leaves (gradients, say) so that their norm is at most `max_norm`, as torch's
// clip_grad_norm_ does: by min(1, max_norm / (norm + 1e-6)). Returns the norm before. With
// `refuse_nonfinite`, InvalidArgument if it is infinite or NaN, and nothing has changed.
absl::StatusOr<at::Tensor> ClipNormInPlace(const TensorDict& tree, double max_norm, double ord = 2,
                                           bool refuse_nonfinite = false);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_ARITHMETIC_H_
