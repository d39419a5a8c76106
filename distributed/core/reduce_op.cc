#include "distributed/core/reduce_op.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace leafpack {
namespace {

enum class DtypeClass { kBool, kInteger, kFloating, kComplex, kUnknown };

DtypeClass ClassOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Bool:
      return DtypeClass::kBool;
    case at::ScalarType::Byte:
    case at::ScalarType::UInt16:
    case at::ScalarType::UInt32:
    case at::ScalarType::UInt64:
    case at::ScalarType::Char:
    case at::ScalarType::Short:
    case at::ScalarType::Int:
    case at::ScalarType::Long:
      return DtypeClass::kInteger;
    case at::ScalarType::Half:
    case at::ScalarType::BFloat16:
    case at::ScalarType::Float:
    case at::ScalarType::Double:
    case at::ScalarType::Float8_e4m3fn:
    case at::ScalarType::Float8_e5m2:
      return DtypeClass::kFloating;
    case at::ScalarType::ComplexFloat:
    case at::ScalarType::ComplexDouble:
      return DtypeClass::kComplex;
    default:
      return DtypeClass::kUnknown;
  }
}

// torch's own name of a dtype ("float32"), or c10's for those that have no other.
std::string DtypeName(at::ScalarType dtype) {
  const std::string_view name = c10::getDtypeNames(dtype).first;
  return name.empty() ? std::string(c10::toString(dtype)) : std::string(name);
}

}  // namespace

std::string_view ReduceOpName(ReduceOpKind kind) {
  switch (kind) {
    case ReduceOpKind::kSum:
      return "sum";
    case ReduceOpKind::kAvg:
      return "avg";
    case ReduceOpKind::kProduct:
      return "product";
    case ReduceOpKind::kMin:
      return "min";
    case ReduceOpKind::kMax:
      return "max";
    case ReduceOpKind::kBand:
      return "band";
    case ReduceOpKind::kBor:
      return "bor";
    case ReduceOpKind::kBxor:
      return "bxor";
    case ReduceOpKind::kPremulSum:
      return "premul_sum";
  }
  return "unknown op";
}

absl::Status CheckOpAllowed(ReduceOpKind op, at::ScalarType dtype) {
  const DtypeClass dtype_class = ClassOf(dtype);
  if (dtype_class == DtypeClass::kUnknown) {
    std::string name = "undefined";
    if (dtype >= at::ScalarType::Byte && dtype < at::ScalarType::Undefined) name = DtypeName(dtype);
    return absl::UnimplementedError(
        absl::StrCat("no reduction knows dtype ", name, " (op ", ReduceOpName(op), ")"));
  }
  const bool is_integral = dtype_class == DtypeClass::kInteger || dtype_class == DtypeClass::kBool;
  std::string_view reason;
  switch (op) {
    case ReduceOpKind::kSum:
    case ReduceOpKind::kProduct:
      break;
    case ReduceOpKind::kAvg:
    case ReduceOpKind::kPremulSum:
      if (is_integral) reason = "it needs a floating or complex dtype";
      break;
    case ReduceOpKind::kMin:
    case ReduceOpKind::kMax:
      if (dtype_class == DtypeClass::kComplex) reason = "complex numbers have no order";
      break;
    case ReduceOpKind::kBand:
    case ReduceOpKind::kBor:
    case ReduceOpKind::kBxor:
      if (!is_integral) reason = "it needs an integer dtype or bool";
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("reduce op ", static_cast<int>(op), " is not one of leafpack::ReduceOpKind"));
  }
  if (reason.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("op ", ReduceOpName(op),
                                                 " is not defined for dtype ", DtypeName(dtype), ": ",
                                                 reason));
}

}  // namespace leafpack
