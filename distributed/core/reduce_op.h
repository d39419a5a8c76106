// What a reduction does with the values of the ranks, and the table of dtypes that allow it.
#ifndef LEAFPACK_DISTRIBUTED_CORE_REDUCE_OP_H_
#define LEAFPACK_DISTRIBUTED_CORE_REDUCE_OP_H_

#include <cstdint>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "absl/status/status.h"

namespace leafpack {

enum class ReduceOpKind : uint8_t {
  kSum,
  kAvg,
  kProduct,
  kMin,
  kMax,
  kBand,
  kBor,
  kBxor,
  kPremulSum,
};

// An operation and, for kPremulSum, this rank's factor. bool: SUM is OR, PRODUCT is AND (bytes 0 or
// 1). MIN and MAX keep NaN on every rank. Integers wrap. AVG is SUM, then one division by the number
// of ranks. Half types and float8 accumulate in float32 with one rounding on engines of our own.
struct ReduceOp {
  ReduceOpKind kind = ReduceOpKind::kSum;
  double factor = 1.0;  // kPremulSum only; may differ between ranks

  static const ReduceOp kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor;
  static constexpr ReduceOp PremulSum(double factor) {
    return {ReduceOpKind::kPremulSum, factor};
  }
  friend bool operator==(const ReduceOp&, const ReduceOp&) = default;
};

inline constexpr ReduceOp ReduceOp::kSum{ReduceOpKind::kSum};
inline constexpr ReduceOp ReduceOp::kAvg{ReduceOpKind::kAvg};
inline constexpr ReduceOp ReduceOp::kProduct{ReduceOpKind::kProduct};
inline constexpr ReduceOp ReduceOp::kMin{ReduceOpKind::kMin};
inline constexpr ReduceOp ReduceOp::kMax{ReduceOpKind::kMax};
inline constexpr ReduceOp ReduceOp::kBand{ReduceOpKind::kBand};
inline constexpr ReduceOp ReduceOp::kBor{ReduceOpKind::kBor};
inline constexpr ReduceOp ReduceOp::kBxor{ReduceOpKind::kBxor};

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum".
std::string_view ReduceOpName(ReduceOpKind kind);

// OK when the op is defined for the dtype on host backends; else an InvalidArgument (AVG or
// PREMUL_SUM of integers and bool, order of complex numbers, bits of floats) or Unimplemented
// (a dtype that no host backend knows) that names both. Pure.
absl::Status CheckOpAllowed(ReduceOpKind op, at::ScalarType dtype);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_REDUCE_OP_H_
