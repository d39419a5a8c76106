// Names of dtypes for messages, and the numbers that stand for them in digests.
#ifndef LEAFPACK_TENSORDICT_DTYPE_H_
#define LEAFPACK_TENSORDICT_DTYPE_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

namespace leafpack {

// The dtype as Python's torch writes it, without "torch.": float32, bfloat16, float8_e4m3fn, bool.
// Lives for ever.
std::string_view DtypeName(c10::ScalarType dtype);

// A number that never changes its meaning, for digests and wire formats.
uint8_t DtypeCode(c10::ScalarType dtype);

// The dtype that a peer's number stands for. Undefined for a number that stands for none, and for
// dtypes that cannot be made from a number alone (quantized ones).
c10::ScalarType DtypeOfCode(uint8_t code);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_DTYPE_H_
