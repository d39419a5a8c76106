#include "tensordict/dtype.h"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace leafpack {
namespace {

TEST(DtypeTest, EveryDtypeHasANameAndANumberOfItsOwn) {
  std::set<std::string> names;
  std::set<int> codes;
  const int count = static_cast<int>(c10::ScalarType::NumOptions);
  for (int i = 0; i < count; ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    EXPECT_TRUE(names.insert(std::string(DtypeName(dtype))).second) << DtypeName(dtype);
    EXPECT_TRUE(codes.insert(DtypeCode(dtype)).second);
  }
  EXPECT_EQ(DtypeName(c10::ScalarType::Float8_e4m3fn), "float8_e4m3fn");
  EXPECT_EQ(DtypeName(c10::ScalarType::UInt16), "uint16");
  EXPECT_EQ(DtypeName(c10::ScalarType::Bool), "bool");
}

TEST(DtypeTest, NumbersOfPeersLeadBackToTheirDtype) {
  for (int code = 0; code < 256; ++code) {
    const c10::ScalarType dtype = DtypeOfCode(static_cast<uint8_t>(code));
    if (dtype == c10::ScalarType::Undefined) continue;
    EXPECT_EQ(DtypeCode(dtype), code);
  }
  EXPECT_EQ(DtypeOfCode(DtypeCode(c10::ScalarType::BFloat16)), c10::ScalarType::BFloat16);
  EXPECT_EQ(DtypeOfCode(DtypeCode(c10::ScalarType::UInt64)), c10::ScalarType::UInt64);
  EXPECT_EQ(DtypeOfCode(DtypeCode(c10::ScalarType::QInt8)), c10::ScalarType::Undefined);
  EXPECT_EQ(DtypeOfCode(254), c10::ScalarType::Undefined);
  EXPECT_EQ(DtypeOfCode(255), c10::ScalarType::Undefined);
}

}  // namespace
}  // namespace leafpack
