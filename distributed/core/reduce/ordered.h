// Order-preserving maps between floating bit patterns and signed integers, NaN at the end that wins.
//
// Comparing the integers is comparing the numbers, with -0 below +0, and any NaN beats every number:
// it maps to the largest integer for MAX and to the smallest for MIN. The way back gives one
// canonical quiet NaN. So MIN and MAX of floats become MIN and MAX of integers, whichever rank holds
// the NaN, and the result has the same bits everywhere.
#ifndef LEAFPACK_DISTRIBUTED_CORE_REDUCE_ORDERED_H_
#define LEAFPACK_DISTRIBUTED_CORE_REDUCE_ORDERED_H_

#include <cstdint>
#include <limits>
#include <type_traits>

namespace leafpack {

// Bit patterns of a floating format: `Int` holds one; `kLargestNumber` is the greatest pattern without
// sign that is not NaN (infinity where there is one); `kQuietNan` the canonical NaN.
template <typename IntType, IntType kLargestNumberBits, IntType kQuietNanBits>
struct FloatFormat {
  using Int = IntType;
  static constexpr Int kLargestNumber = kLargestNumberBits;
  static constexpr Int kQuietNan = kQuietNanBits;
};
using Float8E4m3fnFormat = FloatFormat<int8_t, 0x7e, 0x7f>;
using Float8E5m2Format = FloatFormat<int8_t, 0x7c, 0x7f>;
using HalfFormat = FloatFormat<int16_t, 0x7c00, 0x7e00>;
using BFloat16Format = FloatFormat<int16_t, 0x7f80, 0x7fc0>;
using FloatFormat32 = FloatFormat<int32_t, 0x7f800000, 0x7fc00000>;
using FloatFormat64 = FloatFormat<int64_t, 0x7ff0000000000000, 0x7ff8000000000000>;

// Negative patterns count downwards: flips their magnitude. Its own inverse.
template <typename Int>
constexpr Int FlipMagnitudeOfNegative(Int bits) {
  constexpr Int kMagnitude = std::numeric_limits<Int>::max();
  return static_cast<Int>(bits < 0 ? bits ^ kMagnitude : bits);
}

template <typename Format, bool kNanIsLargest>
constexpr typename Format::Int ToOrdered(typename Format::Int bits) {
  using Int = typename Format::Int;
  constexpr Int kNan =
      kNanIsLargest ? std::numeric_limits<Int>::max() : std::numeric_limits<Int>::min();
  const Int magnitude = static_cast<Int>(bits & std::numeric_limits<Int>::max());
  return magnitude > Format::kLargestNumber ? kNan : FlipMagnitudeOfNegative(bits);
}

template <typename Format, bool kNanIsLargest>
constexpr typename Format::Int FromOrdered(typename Format::Int ordered) {
  using Int = typename Format::Int;
  constexpr Int kNan =
      kNanIsLargest ? std::numeric_limits<Int>::max() : std::numeric_limits<Int>::min();
  return ordered == kNan ? Format::kQuietNan : FlipMagnitudeOfNegative(ordered);
}

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_REDUCE_ORDERED_H_
