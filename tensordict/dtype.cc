#include "tensordict/dtype.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

namespace leafpack {

// The digest uses torch's own numbers. Should they ever change, this is where they get a table.
static_assert(static_cast<int>(c10::ScalarType::Byte) == 0);
static_assert(static_cast<int>(c10::ScalarType::Float) == 6);
static_assert(static_cast<int>(c10::ScalarType::Bool) == 11);
static_assert(static_cast<int>(c10::ScalarType::BFloat16) == 15);
static_assert(static_cast<int>(c10::ScalarType::Float8_e5m2) == 23);
static_assert(static_cast<int>(c10::ScalarType::UInt16) == 27);
static_assert(static_cast<int>(c10::ScalarType::UInt64) == 29);

uint8_t DtypeCode(c10::ScalarType dtype) {
  // torch keeps Undefined behind the last dtype, where it moves.
  return dtype == c10::ScalarType::Undefined ? 255 : static_cast<uint8_t>(dtype);
}

c10::ScalarType DtypeOfCode(uint8_t code) {
  switch (const auto dtype = static_cast<c10::ScalarType>(code)) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::Half:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexHalf:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
    case c10::ScalarType::Bool:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e5m2fnuz:
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e8m0fnu:
      return dtype;
    default:
      return c10::ScalarType::Undefined;
  }
}

std::string_view DtypeName(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::ComplexHalf:
      return "complex32";
    case c10::ScalarType::ComplexFloat:
      return "complex64";
    case c10::ScalarType::ComplexDouble:
      return "complex128";
    case c10::ScalarType::Bool:
      return "bool";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::UInt16:
      return "uint16";
    case c10::ScalarType::UInt32:
      return "uint32";
    case c10::ScalarType::UInt64:
      return "uint64";
    case c10::ScalarType::Float8_e5m2:
      return "float8_e5m2";
    case c10::ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    case c10::ScalarType::Float8_e5m2fnuz:
      return "float8_e5m2fnuz";
    case c10::ScalarType::Float8_e4m3fnuz:
      return "float8_e4m3fnuz";
    case c10::ScalarType::Float8_e8m0fnu:
      return "float8_e8m0fnu";
    case c10::ScalarType::QInt8:
      return "qint8";
    case c10::ScalarType::QUInt8:
      return "quint8";
    case c10::ScalarType::QInt32:
      return "qint32";
    default:
      return c10::toString(dtype);  // rare ones by torch's C++ name, a literal
  }
}

}  // namespace leafpack
