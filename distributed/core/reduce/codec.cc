#include "distributed/core/reduce/codec.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define LEAFPACK_HAS_F16C_TARGET 1
#endif

namespace leafpack::reduce_internal {
namespace {

void LoadHalfPortable(const char* source, float* acc, int n) {
  for (int i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    acc[i] = c10::detail::fp16_ieee_to_fp32_value(bits);
  }
}

uint16_t HalfBits(float value) {
  if (value != value) return 0x7e00;
  return c10::detail::fp16_ieee_from_fp32_value(value);
}

void StoreHalfPortable(const float* acc, char* target, int n) {
  for (int i = 0; i < n; ++i) {
    const uint16_t bits = HalfBits(acc[i]);
    std::memcpy(target + 2 * i, &bits, 2);
  }
}

#ifdef LEAFPACK_HAS_F16C_TARGET
bool HasF16c() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}

__attribute__((target("avx,f16c"))) void LoadHalfF16c(const char* source, float* acc, int n) {
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 2 * i));
    _mm256_storeu_ps(acc + i, _mm256_cvtph_ps(bits));
  }
  LoadHalfPortable(source + 2 * i, acc + i, n - i);
}

__attribute__((target("avx,f16c"))) void StoreHalfF16c(const float* acc, char* target, int n) {
  const __m256 quiet_nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 value = _mm256_loadu_ps(acc + i);
    const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256 canonical = _mm256_blendv_ps(value, quiet_nan, is_nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 2 * i),
                     _mm256_cvtps_ph(canonical, _MM_FROUND_TO_NEAREST_INT));
  }
  StoreHalfPortable(acc + i, target + 2 * i, n - i);
}
#endif

}  // namespace

void HalfCodec::Load(const char* source, Acc* acc, int n) {
#ifdef LEAFPACK_HAS_F16C_TARGET
  if (HasF16c()) return LoadHalfF16c(source, acc, n);
#endif
  LoadHalfPortable(source, acc, n);
}

void HalfCodec::Store(const Acc* acc, char* target, int n) {
#ifdef LEAFPACK_HAS_F16C_TARGET
  if (HasF16c()) return StoreHalfF16c(acc, target, n);
#endif
  StoreHalfPortable(acc, target, n);
}

}  // namespace leafpack::reduce_internal
