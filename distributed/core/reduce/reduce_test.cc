// The whole dtype x op matrix against a scalar reference written here and against ATen's own kernels.
#include "distributed/core/reduce/reduce.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

using at::ScalarType;

const std::vector<ReduceOpKind> kAllOps = {
    ReduceOpKind::kSum,  ReduceOpKind::kAvg,  ReduceOpKind::kProduct,
    ReduceOpKind::kMin,  ReduceOpKind::kMax,  ReduceOpKind::kBand,
    ReduceOpKind::kBor,  ReduceOpKind::kBxor, ReduceOpKind::kPremulSum};
const std::vector<int64_t> kCounts = {0, 1, 3, 7, 127, 1000, 1024, 1025, 5000};

template <typename T>
inline constexpr bool kIsSmallFloat =
    std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16> ||
    std::is_same_v<T, c10::Float8_e4m3fn> || std::is_same_v<T, c10::Float8_e5m2>;
template <typename T>
inline constexpr bool kIsFloat = kIsSmallFloat<T> || std::is_floating_point_v<T>;
template <typename T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, c10::complex<float>> || std::is_same_v<T, c10::complex<double>>;

// The definition, one element at a time.
template <typename T>
T Reference(ReduceOpKind op, const std::vector<T>& x) {
  const size_t ranks = x.size();
  if constexpr (std::is_same_v<T, bool>) {
    bool acc = x[0];
    for (size_t r = 1; r < ranks; ++r) {
      const bool v = x[r];
      if (op == ReduceOpKind::kSum || op == ReduceOpKind::kMax || op == ReduceOpKind::kBor) {
        acc = acc || v;
      } else if (op == ReduceOpKind::kBxor) {
        acc = acc != v;
      } else {
        acc = acc && v;
      }
    }
    return acc;
  } else if constexpr (kIsComplex<T>) {
    using Part = typename T::value_type;
    Part re = x[0].real(), im = x[0].imag();
    for (size_t r = 1; r < ranks; ++r) {
      const Part c = x[r].real(), d = x[r].imag();
      if (op == ReduceOpKind::kProduct) {
        const Part real = re * c - im * d;
        im = re * d + im * c;
        re = real;
      } else {
        re += c;
        im += d;
      }
    }
    if (op == ReduceOpKind::kAvg) {
      re /= static_cast<Part>(ranks);
      im /= static_cast<Part>(ranks);
    }
    return T(re, im);
  } else if constexpr (kIsFloat<T>) {
    using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Acc acc = static_cast<Acc>(x[0]);
    for (size_t r = 1; r < ranks; ++r) {
      const Acc v = static_cast<Acc>(x[r]);
      if (op == ReduceOpKind::kProduct) {
        acc *= v;
      } else if (op == ReduceOpKind::kMin || op == ReduceOpKind::kMax) {
        if (std::isnan(acc) || std::isnan(v)) {
          acc = std::numeric_limits<Acc>::quiet_NaN();
        } else if (op == ReduceOpKind::kMin ? v < acc : v > acc) {
          acc = v;
        }
      } else {
        acc += v;
      }
    }
    if (op == ReduceOpKind::kAvg) acc /= static_cast<Acc>(ranks);
    return static_cast<T>(acc);
  } else {
    // Integers wrap modulo 2^64 and so modulo every smaller power.
    uint64_t acc = static_cast<uint64_t>(x[0]);
    T extreme = x[0];
    for (size_t r = 1; r < ranks; ++r) {
      const uint64_t v = static_cast<uint64_t>(x[r]);
      switch (op) {
        case ReduceOpKind::kSum:
          acc += v;
          break;
        case ReduceOpKind::kProduct:
          acc *= v;
          break;
        case ReduceOpKind::kBand:
          acc &= v;
          break;
        case ReduceOpKind::kBor:
          acc |= v;
          break;
        case ReduceOpKind::kBxor:
          acc ^= v;
          break;
        case ReduceOpKind::kMin:
          extreme = std::min(extreme, x[r]);
          break;
        default:
          extreme = std::max(extreme, x[r]);
          break;
      }
    }
    if (op == ReduceOpKind::kMin || op == ReduceOpKind::kMax) return extreme;
    return static_cast<T>(acc);
  }
}

template <typename T>
bool Same(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return Same(a.real(), b.real()) && Same(a.imag(), b.imag());
  } else if constexpr (kIsFloat<T>) {
    using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const Acc x = static_cast<Acc>(a), y = static_cast<Acc>(b);
    return x == y || (std::isnan(x) && std::isnan(y));
  } else {
    return a == b;
  }
}

template <typename T>
std::vector<char> RandomBytes(int64_t count, std::mt19937_64& rng) {
  std::vector<char> bytes(count * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    char* element = bytes.data() + i * sizeof(T);
    if constexpr (std::is_same_v<T, bool>) {
      const char values[] = {0, 0, 1, 1, 2, 3, static_cast<char>(0x80)};
      *element = values[rng() % sizeof(values)];
    } else if (kIsFloat<T> && !kIsSmallFloat<T> && rng() % 2 == 0) {
      const double value = std::ldexp(static_cast<double>(rng() % 2001) - 1000, -5);
      const T typed = static_cast<T>(value);
      std::memcpy(element, &typed, sizeof(T));
    } else {
      // Any bits: NaN, infinities, denormals, negative zero are among them.
      const uint64_t low = rng(), high = rng();
      std::memcpy(element, &low, std::min<size_t>(8, sizeof(T)));
      if (sizeof(T) > 8) std::memcpy(element + 8, &high, 8);
    }
  }
  return bytes;
}

template <typename T>
T ElementAt(const char* base, int64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return base[i] != 0;
  } else {
    T value;
    std::memcpy(static_cast<void*>(&value), base + i * sizeof(T), sizeof(T));
    return value;
  }
}

template <typename T>
class ReduceMatrixTest : public testing::Test {};

using AllTypes =
    testing::Types<bool, uint8_t, uint16_t, uint32_t, uint64_t, int8_t, int16_t, int32_t, int64_t,
                   c10::Half, c10::BFloat16, float, double, c10::Float8_e4m3fn, c10::Float8_e5m2,
                   c10::complex<float>, c10::complex<double>>;
TYPED_TEST_SUITE(ReduceMatrixTest, AllTypes);

TYPED_TEST(ReduceMatrixTest, EveryOpEqualsTheDefinition) {
  using T = TypeParam;
  const ScalarType dtype = c10::CppTypeToScalarType<T>::value;
  std::mt19937_64 rng(20240917);
  int allowed = 0;
  for (ReduceOpKind op : kAllOps) {
    if (!CheckOpAllowed(op, dtype).ok()) {
      const void* inputs[] = {nullptr};
      EXPECT_EQ(ReduceInto(op, dtype, inputs, nullptr, 1), CheckOpAllowed(op, dtype));
      continue;
    }
    ++allowed;
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int64_t count : kCounts) {
        // Every buffer starts at another odd address; the byte behind the end must stay.
        std::vector<std::vector<char>> values, buffers;
        std::vector<const void*> inputs;
        for (int r = 0; r < ranks; ++r) {
          values.push_back(RandomBytes<T>(count, rng));
          std::vector<char> buffer(1 + r, '\x55');
          buffer.insert(buffer.end(), values[r].begin(), values[r].end());
          buffer.push_back('\x55');
          buffers.push_back(std::move(buffer));
        }
        for (int r = 0; r < ranks; ++r) inputs.push_back(buffers[r].data() + 1 + r);
        // In place of any input, or apart.
        const int target = static_cast<int>(rng() % (ranks + 1));
        std::vector<char> apart(count * sizeof(T) + 4, '\x55');
        char* out = target < ranks ? buffers[target].data() + 1 + target : apart.data() + 3;
        ASSERT_TRUE(ReduceInto(op, dtype, inputs, out, count).ok());
        for (int64_t i = 0; i < count; ++i) {
          std::vector<T> column;
          for (int r = 0; r < ranks; ++r) column.push_back(ElementAt<T>(values[r].data(), i));
          const T expected = Reference<T>(op, column);
          const T got = ElementAt<T>(out, i);
          ASSERT_TRUE(Same<T>(got, expected))
              << ReduceOpName(op) << " of " << c10::toString(dtype) << ", " << ranks
              << " ranks, element " << i << " of " << count;
          if (dtype == ScalarType::Bool) {
            ASSERT_LE(static_cast<uint8_t>(out[i]), 1);
          }
        }
        ASSERT_EQ(out[count * sizeof(T)], '\x55');
        ASSERT_EQ(out[-1], '\x55');
      }
    }
  }
  EXPECT_GE(allowed, 4);
}

// ATen's kernel for two operands, where it has one for this dtype.
at::Tensor AtenReduce(ReduceOpKind op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case ReduceOpKind::kProduct:
      return at::mul(a, b);
    case ReduceOpKind::kMin:
      return at::minimum(a, b);
    case ReduceOpKind::kMax:
      return at::maximum(a, b);
    case ReduceOpKind::kBand:
      return at::bitwise_and(a, b);
    case ReduceOpKind::kBor:
      return at::bitwise_or(a, b);
    case ReduceOpKind::kBxor:
      return at::bitwise_xor(a, b);
    default:
      return at::add(a, b);
  }
}

TEST(ReduceTest, EqualsAten) {
  at::manual_seed(7);
  const int64_t n = 4099;
  int compared = 0;
  for (ScalarType dtype :
       {ScalarType::Bool, ScalarType::Byte, ScalarType::Char, ScalarType::Short, ScalarType::Int,
        ScalarType::Long, ScalarType::Half, ScalarType::BFloat16, ScalarType::Float,
        ScalarType::Double, ScalarType::ComplexFloat, ScalarType::ComplexDouble}) {
    const bool is_integral = c10::isIntegralType(dtype, /*includeBool=*/true);
    auto make = [&] {
      if (dtype == ScalarType::Bool) return at::rand({n}).gt(0.5);
      if (is_integral) {
        return at::randint(std::numeric_limits<int64_t>::min() / 2,
                           std::numeric_limits<int64_t>::max() / 2, {n}, at::kLong)
            .to(dtype);
      }
      at::Tensor x = at::randn({n}, at::TensorOptions().dtype(
                                        c10::isComplexType(dtype) ? dtype : ScalarType::Double));
      if (!c10::isComplexType(dtype)) {
        x.slice(0, 0, n, 97).fill_(std::numeric_limits<double>::quiet_NaN());
        x.slice(0, 5, n, 101).fill_(std::numeric_limits<double>::infinity());
        x.slice(0, 7, n, 103).mul_(1e-40);
      }
      return x.to(dtype);
    };
    const at::Tensor a = make(), b = make();
    for (ReduceOpKind op : kAllOps) {
      if (op == ReduceOpKind::kAvg || !CheckOpAllowed(op, dtype).ok()) continue;
      at::Tensor out = at::empty_like(a);
      const void* inputs[] = {a.const_data_ptr(), b.const_data_ptr()};
      ASSERT_TRUE(ReduceInto(op, dtype, inputs, out.mutable_data_ptr(), n).ok());
      // bool PRODUCT is AND, as ATen has it; bool SUM is OR, as ATen's add of bools is.
      const at::Tensor expected = AtenReduce(op, a, b);
      const bool bit_exact = !c10::isComplexType(dtype) || op != ReduceOpKind::kProduct;
      EXPECT_TRUE(bit_exact ? at::all(at::eq(out, expected).logical_or(
                                          at::isnan(out).logical_and(at::isnan(expected))))
                                  .item<bool>()
                            : at::allclose(out, expected, 1e-5, 1e-6))
          << ReduceOpName(op) << " of " << c10::toString(dtype);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 6 * 7 + 4 * 5 + 2 * 3);
}

TEST(ReduceTest, MinAndMaxKeepNanFromEveryRankAndOrderZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (ReduceOpKind op : {ReduceOpKind::kMin, ReduceOpKind::kMax}) {
    for (int holder = 0; holder < 3; ++holder) {
      for (float sign : {1.f, -1.f}) {
        float values[3] = {inf, -inf, 1.f};
        values[holder] = std::copysign(nan, sign);
        const void* inputs[] = {&values[0], &values[1], &values[2]};
        float out = 0;
        ASSERT_TRUE(ReduceInto(op, ScalarType::Float, inputs, &out, 1).ok());
        uint32_t bits;
        std::memcpy(&bits, &out, 4);
        EXPECT_EQ(bits, 0x7fc00000u) << "holder " << holder;
      }
    }
    for (bool swapped : {false, true}) {
      const float zeros[] = {swapped ? -0.f : 0.f, swapped ? 0.f : -0.f};
      const void* inputs[] = {&zeros[0], &zeros[1]};
      float out = 1;
      ASSERT_TRUE(ReduceInto(op, ScalarType::Float, inputs, &out, 1).ok());
      EXPECT_EQ(out, 0.f);
      EXPECT_EQ(std::signbit(out), op == ReduceOpKind::kMin);
    }
  }
}

// 2048 + 1 + 1 + ... in float16: 2048 absorbs each single 1, the float32 accumulator does not.
TEST(ReduceTest, HalfTypesAreRoundedOnce) {
  const c10::Half big = 2048, one = 1;
  const void* half[] = {&big, &one, &one, &one, &one};
  c10::Half half_out = 0;
  ASSERT_TRUE(ReduceInto(ReduceOpKind::kSum, ScalarType::Half, half, &half_out, 1).ok());
  EXPECT_EQ(static_cast<float>(half_out), 2052.f);
  ASSERT_TRUE(ReduceInto(ReduceOpKind::kAvg, ScalarType::Half, half, &half_out, 1).ok());
  EXPECT_EQ(static_cast<float>(half_out), static_cast<float>(c10::Half(2052.f / 5)));
  const c10::BFloat16 bbig = 256, bone = 1;
  const void* bfloat[] = {&bbig, &bone, &bone};
  c10::BFloat16 bout = 0;
  ASSERT_TRUE(ReduceInto(ReduceOpKind::kSum, ScalarType::BFloat16, bfloat, &bout, 1).ok());
  EXPECT_EQ(static_cast<float>(bout), 258.f);
  // AVG of values whose sum is beyond float16 does not overflow on the way.
  const c10::Half large = 60000;
  const void* larges[] = {&large, &large};
  ASSERT_TRUE(ReduceInto(ReduceOpKind::kAvg, ScalarType::Half, larges, &half_out, 1).ok());
  EXPECT_EQ(static_cast<float>(half_out), static_cast<float>(large));
}

// Every float16 pattern through SUM with zero, in bulk (vector path) and one by one (scalar path).
TEST(ReduceTest, HalfPathsAgreeOnEveryPattern) {
  std::vector<uint16_t> all(65536), bulk(65536);
  for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  const std::vector<uint16_t> zeros(65536, 0x8000);  // -0 is the neutral element
  const void* inputs[] = {all.data(), zeros.data()};
  ASSERT_TRUE(ReduceInto(ReduceOpKind::kSum, ScalarType::Half, inputs, bulk.data(), 65536).ok());
  for (int i = 0; i < 65536; ++i) {
    const void* one[] = {&all[i], &zeros[i]};
    uint16_t single = 0;
    ASSERT_TRUE(ReduceInto(ReduceOpKind::kSum, ScalarType::Half, one, &single, 1).ok());
    const bool is_nan = (i & 0x7fff) > 0x7c00;
    ASSERT_EQ(single, is_nan ? 0x7e00 : i);
    ASSERT_EQ(bulk[i], single) << i;
  }
}

TEST(ReduceTest, ApplyFactorRoundsToTheDtype) {
  float f[] = {1.f, -2.f, 3.f};
  ASSERT_TRUE(ApplyFactor(ScalarType::Float, 0.1, f, 3).ok());
  EXPECT_EQ(f[1], -2.f * 0.1f);
  double d[] = {3.0};
  ASSERT_TRUE(ApplyFactor(ScalarType::Double, 0.1, d, 1).ok());
  EXPECT_EQ(d[0], 3.0 * 0.1);
  c10::Half h[] = {c10::Half(3.f), c10::Half(-5.f)};
  ASSERT_TRUE(ApplyFactor(ScalarType::Half, 0.3, h, 2).ok());
  EXPECT_EQ(h[1].x, c10::Half(-5.f * 0.3f).x);
  c10::complex<float> c[] = {{1.f, 2.f}};
  ASSERT_TRUE(ApplyFactor(ScalarType::ComplexFloat, 0.5, c, 1).ok());
  EXPECT_EQ(c[0], c10::complex<float>(0.5f, 1.f));
  c10::Float8_e4m3fn e[] = {c10::Float8_e4m3fn(3.f)};
  ASSERT_TRUE(ApplyFactor(ScalarType::Float8_e4m3fn, 2.0, e, 1).ok());
  EXPECT_EQ(static_cast<float>(e[0]), 6.f);
  int32_t i[] = {4};
  EXPECT_EQ(ApplyFactor(ScalarType::Int, 0.5, i, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(i[0], 4);
}

TEST(ReduceTest, RefusesWithoutInputs) {
  float out = 3;
  EXPECT_EQ(ReduceInto(ReduceOpKind::kSum, ScalarType::Float, {}, &out, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(out, 3.f);
}

}  // namespace
}  // namespace leafpack
