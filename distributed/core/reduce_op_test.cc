#include "distributed/core/reduce_op.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

using at::ScalarType;

const std::vector<ReduceOpKind> kAllOps = {
    ReduceOpKind::kSum,  ReduceOpKind::kAvg, ReduceOpKind::kProduct,
    ReduceOpKind::kMin,  ReduceOpKind::kMax, ReduceOpKind::kBand,
    ReduceOpKind::kBor,  ReduceOpKind::kBxor, ReduceOpKind::kPremulSum};

std::string AllowedOps(ScalarType dtype) {
  std::string allowed;
  for (ReduceOpKind op : kAllOps) {
    if (CheckOpAllowed(op, dtype).ok()) allowed += std::string(ReduceOpName(op)) + " ";
  }
  return allowed;
}

TEST(ReduceOpTest, TableOfDtypesAndOps) {
  for (ScalarType dtype : {ScalarType::Bool, ScalarType::Byte, ScalarType::UInt16,
                           ScalarType::UInt32, ScalarType::UInt64, ScalarType::Char,
                           ScalarType::Short, ScalarType::Int, ScalarType::Long}) {
    EXPECT_EQ(AllowedOps(dtype), "sum product min max band bor bxor ") << c10::toString(dtype);
  }
  for (ScalarType dtype : {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float,
                           ScalarType::Double, ScalarType::Float8_e4m3fn,
                           ScalarType::Float8_e5m2}) {
    EXPECT_EQ(AllowedOps(dtype), "sum avg product min max premul_sum ") << c10::toString(dtype);
  }
  for (ScalarType dtype : {ScalarType::ComplexFloat, ScalarType::ComplexDouble}) {
    EXPECT_EQ(AllowedOps(dtype), "sum avg product premul_sum ") << c10::toString(dtype);
  }
  for (ScalarType dtype : {ScalarType::QInt8, ScalarType::ComplexHalf, ScalarType::Float8_e4m3fnuz,
                           ScalarType::Undefined}) {
    EXPECT_EQ(AllowedOps(dtype), "") << c10::toString(dtype);
  }
}

TEST(ReduceOpTest, ErrorsNameOpAndDtype) {
  const absl::Status avg = CheckOpAllowed(ReduceOpKind::kAvg, ScalarType::Int);
  EXPECT_EQ(avg.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(avg.message(), "op avg")) << avg;
  EXPECT_TRUE(absl::StrContains(avg.message(), "int32")) << avg;
  const absl::Status max = CheckOpAllowed(ReduceOpKind::kMax, ScalarType::ComplexFloat);
  EXPECT_EQ(max.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(max.message(), "op max")) << max;
  EXPECT_TRUE(absl::StrContains(max.message(), "complex64")) << max;
  const absl::Status unknown = CheckOpAllowed(ReduceOpKind::kSum, ScalarType::QInt8);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StrContains(unknown.message(), "qint8")) << unknown;
  EXPECT_TRUE(absl::StrContains(unknown.message(), "op sum")) << unknown;
  EXPECT_EQ(CheckOpAllowed(static_cast<ReduceOpKind>(99), ScalarType::Float).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace leafpack
