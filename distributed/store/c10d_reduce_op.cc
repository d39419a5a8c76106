#include "distributed/store/c10d_reduce_op.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack {

absl::StatusOr<ReduceOp> ReduceOpFromC10d(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    case c10d::ReduceOp::PREMUL_SUM: {
      auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
      if (supplement == nullptr) {
        return absl::InvalidArgumentError("op is PREMUL_SUM without a factor");
      }
      if (supplement->tensor_factor.defined()) {
        return ReduceOp::PremulSum(supplement->tensor_factor.item().toDouble());
      }
      return ReduceOp::PremulSum(supplement->double_factor);
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("op is no reduction: c10d number ", static_cast<int>(op.op_)));
  }
}

}  // namespace leafpack
