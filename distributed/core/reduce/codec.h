// How the elements of a dtype are read into and written from the blocks that a reduction works on.
// Internal to distributed/core/reduce. Buffers need no alignment.
#ifndef LEAFPACK_DISTRIBUTED_CORE_REDUCE_CODEC_H_
#define LEAFPACK_DISTRIBUTED_CORE_REDUCE_CODEC_H_

#include <array>
#include <cstdint>
#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include "distributed/core/reduce/ordered.h"

namespace leafpack::reduce_internal {

// Elements per block: the accumulator and one operand stay in the first-level cache.
inline constexpr int kBlock = 1024;

// A codec has: Acc, the type that is accumulated; kBytes per element in memory; Load and Store of `n`
// elements, n <= kBlock.

// Elements that are accumulated as they are.
template <typename T>
struct PlainCodec {
  using Acc = T;
  static constexpr int kBytes = sizeof(T);
  static void Load(const char* source, Acc* acc, int n) {
    std::memcpy(acc, source, sizeof(T) * n);
  }
  static void Store(const Acc* acc, char* target, int n) {
    std::memcpy(target, acc, sizeof(T) * n);
  }
};

struct BoolCodec {
  using Acc = uint8_t;
  static constexpr int kBytes = 1;
  static void Load(const char* source, Acc* acc, int n) {
    for (int i = 0; i < n; ++i) acc[i] = source[i] != 0;
  }
  static void Store(const Acc* acc, char* target, int n) { std::memcpy(target, acc, n); }
};

struct BFloat16Codec {
  using Acc = float;
  static constexpr int kBytes = 2;
  static void Load(const char* source, Acc* acc, int n) {
    for (int i = 0; i < n; ++i) {
      uint16_t half;
      std::memcpy(&half, source + 2 * i, 2);
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      std::memcpy(&acc[i], &bits, 4);
    }
  }
  static void Store(const Acc* acc, char* target, int n) {
    for (int i = 0; i < n; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &acc[i], 4);
      const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
      const uint16_t half = static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded);
      std::memcpy(target + 2 * i, &half, 2);
    }
  }
};

// Uses the machine's conversion instructions where it has them; both ways give the same bits, but for
// the payload of a NaN, which is made canonical.
struct HalfCodec {
  using Acc = float;
  static constexpr int kBytes = 2;
  static void Load(const char* source, Acc* acc, int n);
  static void Store(const Acc* acc, char* target, int n);
};

template <typename Float8>
struct Float8Codec {
  using Acc = float;
  static constexpr int kBytes = 1;
  static void Load(const char* source, Acc* acc, int n) {
    static const std::array<float, 256> kTable = [] {
      std::array<float, 256> table;
      for (int i = 0; i < 256; ++i) {
        table[i] = static_cast<float>(Float8(static_cast<uint8_t>(i), Float8::from_bits()));
      }
      return table;
    }();
    for (int i = 0; i < n; ++i) acc[i] = kTable[static_cast<uint8_t>(source[i])];
  }
  static void Store(const Acc* acc, char* target, int n) {
    for (int i = 0; i < n; ++i) target[i] = static_cast<char>(Float8(acc[i]).x);
  }
};

// Floats as ordered integers, for MIN (NaN smallest) and MAX (NaN largest).
template <typename Format, bool kNanIsLargest>
struct OrderedCodec {
  using Acc = typename Format::Int;
  static constexpr int kBytes = sizeof(Acc);
  static void Load(const char* source, Acc* acc, int n) {
    for (int i = 0; i < n; ++i) {
      Acc bits;
      std::memcpy(&bits, source + sizeof(Acc) * i, sizeof(Acc));
      acc[i] = ToOrdered<Format, kNanIsLargest>(bits);
    }
  }
  static void Store(const Acc* acc, char* target, int n) {
    for (int i = 0; i < n; ++i) {
      const Acc bits = FromOrdered<Format, kNanIsLargest>(acc[i]);
      std::memcpy(target + sizeof(Acc) * i, &bits, sizeof(Acc));
    }
  }
};

}  // namespace leafpack::reduce_internal

#endif  // LEAFPACK_DISTRIBUTED_CORE_REDUCE_CODEC_H_
