#include "distributed/core/reduce/reduce.h"

#include <algorithm>
#include <type_traits>

#include "distributed/core/reduce/codec.h"
#include "distributed/core/reduce/direct.h"

namespace leafpack {
namespace {

using reduce_internal::BFloat16Codec;
using reduce_internal::BoolCodec;
using reduce_internal::DirectKernel;
using reduce_internal::DirectOp;
using reduce_internal::DirectType;
using reduce_internal::Float8Codec;
using reduce_internal::HalfCodec;
using reduce_internal::kBlock;
using reduce_internal::OrderedCodec;
using reduce_internal::PlainCodec;

template <typename T>
struct ComplexPair {
  T re, im;
};

// Operations on accumulators. Integers come as unsigned types, so that overflow wraps; narrow ones are
// widened first, since uint16 * uint16 would be a signed product.
struct SumOp {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T> && sizeof(T) < 4) {
      return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
    } else {
      return a + b;
    }
  }
};
struct ProductOp {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T> && sizeof(T) < 4) {
      return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    } else {
      return a * b;
    }
  }
  template <typename T>
  ComplexPair<T> operator()(ComplexPair<T> a, ComplexPair<T> b) const {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};
struct MinOp {
  template <typename T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct MaxOp {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct AndOp {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct OrOp {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct XorOp {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// Each block is read from every input before it is written, so `out` may be any of the inputs.
template <typename Codec, typename Op>
void ReduceBlocks(absl::Span<const void* const> inputs, void* out, int64_t count, bool average) {
  using Acc = typename Codec::Acc;
  alignas(64) Acc acc[kBlock];
  alignas(64) Acc operand[kBlock];
  const Op op;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int n = static_cast<int>(std::min<int64_t>(kBlock, count - begin));
    const int64_t offset = begin * Codec::kBytes;
    Codec::Load(static_cast<const char*>(inputs[0]) + offset, acc, n);
    for (const void* input : inputs.subspan(1)) {
      Codec::Load(static_cast<const char*>(input) + offset, operand, n);
      for (int i = 0; i < n; ++i) acc[i] = op(acc[i], operand[i]);
    }
    if constexpr (std::is_floating_point_v<Acc>) {
      if (average) {
        const Acc ranks = static_cast<Acc>(inputs.size());
        for (int i = 0; i < n; ++i) acc[i] /= ranks;
      }
    }
    Codec::Store(acc, static_cast<char*>(out) + offset, n);
  }
}

struct Arguments {
  absl::Span<const void* const> inputs;
  void* out;
  int64_t count;
};

// Only the operations that CheckOpAllowed lets through reach the functions below.
template <typename Codec>
void ReduceArithmetic(ReduceOpKind op, const Arguments& args) {
  if (op == ReduceOpKind::kProduct) {
    ReduceBlocks<Codec, ProductOp>(args.inputs, args.out, args.count, false);
  } else {
    ReduceBlocks<Codec, SumOp>(args.inputs, args.out, args.count, op == ReduceOpKind::kAvg);
  }
}

template <typename Codec, typename Format>
void ReduceFloating(ReduceOpKind op, const Arguments& args) {
  if (op == ReduceOpKind::kMin) {
    ReduceBlocks<OrderedCodec<Format, false>, MinOp>(args.inputs, args.out, args.count, false);
  } else if (op == ReduceOpKind::kMax) {
    ReduceBlocks<OrderedCodec<Format, true>, MaxOp>(args.inputs, args.out, args.count, false);
  } else {
    ReduceArithmetic<Codec>(op, args);
  }
}

template <typename T>
void ReduceComplex(ReduceOpKind op, const Arguments& args) {
  if (op == ReduceOpKind::kProduct) {
    ReduceBlocks<PlainCodec<ComplexPair<T>>, ProductOp>(args.inputs, args.out, args.count, false);
  } else {
    ReduceArithmetic<PlainCodec<T>>(op, {args.inputs, args.out, args.count * 2});
  }
}

template <typename Codec>
void ReduceBits(ReduceOpKind op, const Arguments& args) {
  if (op == ReduceOpKind::kBand) {
    ReduceBlocks<Codec, AndOp>(args.inputs, args.out, args.count, false);
  } else if (op == ReduceOpKind::kBor) {
    ReduceBlocks<Codec, OrOp>(args.inputs, args.out, args.count, false);
  } else {
    ReduceBlocks<Codec, XorOp>(args.inputs, args.out, args.count, false);
  }
}

template <typename T>
void ReduceInteger(ReduceOpKind op, const Arguments& args) {
  using Unsigned = PlainCodec<std::make_unsigned_t<T>>;
  switch (op) {
    case ReduceOpKind::kMin:
      return ReduceBlocks<PlainCodec<T>, MinOp>(args.inputs, args.out, args.count, false);
    case ReduceOpKind::kMax:
      return ReduceBlocks<PlainCodec<T>, MaxOp>(args.inputs, args.out, args.count, false);
    case ReduceOpKind::kSum:
    case ReduceOpKind::kProduct:
      return ReduceArithmetic<Unsigned>(op, args);
    default:
      return ReduceBits<Unsigned>(op, args);
  }
}

void ReduceBool(ReduceOpKind op, const Arguments& args) {
  switch (op) {
    case ReduceOpKind::kSum:
    case ReduceOpKind::kMax:
      return ReduceBits<BoolCodec>(ReduceOpKind::kBor, args);
    case ReduceOpKind::kProduct:
    case ReduceOpKind::kMin:
      return ReduceBits<BoolCodec>(ReduceOpKind::kBand, args);
    default:
      return ReduceBits<BoolCodec>(op, args);
  }
}

DirectOp ToDirectOp(ReduceOpKind op) {
  switch (op) {
    case ReduceOpKind::kSum:
    case ReduceOpKind::kPremulSum: return DirectOp::kSum;
    case ReduceOpKind::kAvg: return DirectOp::kAverage;
    case ReduceOpKind::kProduct: return DirectOp::kProduct;
    case ReduceOpKind::kMin: return DirectOp::kMin;
    case ReduceOpKind::kMax: return DirectOp::kMax;
    case ReduceOpKind::kBand: return DirectOp::kAnd;
    case ReduceOpKind::kBor: return DirectOp::kOr;
    case ReduceOpKind::kBxor: return DirectOp::kXor;
  }
  return DirectOp::kCount;
}

// The kernel for one pass over memory, null if there is none; `parts` numbers make an element.
DirectKernel FindDirect(ReduceOpKind op, at::ScalarType dtype, size_t inputs, int& parts) {
  if (inputs < 2 || inputs > static_cast<size_t>(reduce_internal::kDirectInputs)) return nullptr;
  DirectOp direct = ToDirectOp(op);
  const bool ordered = direct == DirectOp::kMin || direct == DirectOp::kMax;
  DirectType type = DirectType::kCount;
  switch (dtype) {
    case at::ScalarType::Bool:
      type = DirectType::kBool;
      if (direct == DirectOp::kSum || direct == DirectOp::kMax) direct = DirectOp::kOr;
      if (direct == DirectOp::kProduct || direct == DirectOp::kMin) direct = DirectOp::kAnd;
      break;
    case at::ScalarType::Byte: type = DirectType::kUint8; break;
    case at::ScalarType::UInt16: type = DirectType::kUint16; break;
    case at::ScalarType::UInt32: type = DirectType::kUint32; break;
    case at::ScalarType::UInt64: type = DirectType::kUint64; break;
    case at::ScalarType::Char: type = ordered ? DirectType::kInt8 : DirectType::kUint8; break;
    case at::ScalarType::Short: type = ordered ? DirectType::kInt16 : DirectType::kUint16; break;
    case at::ScalarType::Int: type = ordered ? DirectType::kInt32 : DirectType::kUint32; break;
    case at::ScalarType::Long: type = ordered ? DirectType::kInt64 : DirectType::kUint64; break;
    case at::ScalarType::Half:
      if (ordered) type = DirectType::kOrderedHalf;
      break;
    case at::ScalarType::BFloat16:
      type = ordered ? DirectType::kOrderedBFloat16 : DirectType::kBFloat16;
      break;
    case at::ScalarType::Float:
      type = ordered ? DirectType::kOrderedFloat : DirectType::kFloat;
      break;
    case at::ScalarType::Double:
      type = ordered ? DirectType::kOrderedDouble : DirectType::kDouble;
      break;
    case at::ScalarType::ComplexFloat:
    case at::ScalarType::ComplexDouble:
      if (direct == DirectOp::kProduct) break;
      parts = 2;
      type = dtype == at::ScalarType::ComplexFloat ? DirectType::kFloat : DirectType::kDouble;
      break;
    default: break;
  }
  return reduce_internal::FindDirectKernel(type, direct, static_cast<int>(inputs));
}

// data[i] = change(data[i]).
template <typename Codec, typename Change>
void Transform(void* data, int64_t count, Change change) {
  using Acc = typename Codec::Acc;
  alignas(64) Acc acc[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int n = static_cast<int>(std::min<int64_t>(kBlock, count - begin));
    char* block = static_cast<char*>(data) + begin * Codec::kBytes;
    Codec::Load(block, acc, n);
    for (int i = 0; i < n; ++i) acc[i] = change(acc[i]);
    Codec::Store(acc, block, n);
  }
}

// Transform for each dtype that has an AVG; complex numbers by parts.
template <typename MakeChange>
absl::Status TransformFloating(at::ScalarType dtype, void* data, int64_t count, MakeChange make) {
  switch (dtype) {
    case at::ScalarType::Half:
      Transform<HalfCodec>(data, count, make(float{}));
      break;
    case at::ScalarType::BFloat16:
      Transform<BFloat16Codec>(data, count, make(float{}));
      break;
    case at::ScalarType::Float:
      Transform<PlainCodec<float>>(data, count, make(float{}));
      break;
    case at::ScalarType::Double:
      Transform<PlainCodec<double>>(data, count, make(double{}));
      break;
    case at::ScalarType::Float8_e4m3fn:
      Transform<Float8Codec<c10::Float8_e4m3fn>>(data, count, make(float{}));
      break;
    case at::ScalarType::Float8_e5m2:
      Transform<Float8Codec<c10::Float8_e5m2>>(data, count, make(float{}));
      break;
    case at::ScalarType::ComplexFloat:
      Transform<PlainCodec<float>>(data, 2 * count, make(float{}));
      break;
    case at::ScalarType::ComplexDouble:
      Transform<PlainCodec<double>>(data, 2 * count, make(double{}));
      break;
    default:
      return absl::InternalError("CheckOpAllowed and the kernels know different dtypes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReduceInto(ReduceOpKind op, at::ScalarType dtype,
                        absl::Span<const void* const> inputs, void* out, int64_t count) {
  if (absl::Status status = CheckOpAllowed(op, dtype); !status.ok()) return status;
  if (inputs.empty()) return absl::InvalidArgumentError("a reduction needs at least one input");
  int parts = 1;
  if (const DirectKernel kernel = FindDirect(op, dtype, inputs.size(), parts)) {
    const char* sources[reduce_internal::kDirectInputs];
    for (size_t i = 0; i < inputs.size(); ++i) sources[i] = static_cast<const char*>(inputs[i]);
    kernel(sources, static_cast<char*>(out), count * parts);
    return absl::OkStatus();
  }
  const Arguments args{inputs, out, count};
  switch (dtype) {
    case at::ScalarType::Bool:
      ReduceBool(op, args);
      break;
    case at::ScalarType::Byte:
      ReduceInteger<uint8_t>(op, args);
      break;
    case at::ScalarType::UInt16:
      ReduceInteger<uint16_t>(op, args);
      break;
    case at::ScalarType::UInt32:
      ReduceInteger<uint32_t>(op, args);
      break;
    case at::ScalarType::UInt64:
      ReduceInteger<uint64_t>(op, args);
      break;
    case at::ScalarType::Char:
      ReduceInteger<int8_t>(op, args);
      break;
    case at::ScalarType::Short:
      ReduceInteger<int16_t>(op, args);
      break;
    case at::ScalarType::Int:
      ReduceInteger<int32_t>(op, args);
      break;
    case at::ScalarType::Long:
      ReduceInteger<int64_t>(op, args);
      break;
    case at::ScalarType::Half:
      ReduceFloating<HalfCodec, HalfFormat>(op, args);
      break;
    case at::ScalarType::BFloat16:
      ReduceFloating<BFloat16Codec, BFloat16Format>(op, args);
      break;
    case at::ScalarType::Float:
      ReduceFloating<PlainCodec<float>, FloatFormat32>(op, args);
      break;
    case at::ScalarType::Double:
      ReduceFloating<PlainCodec<double>, FloatFormat64>(op, args);
      break;
    case at::ScalarType::Float8_e4m3fn:
      ReduceFloating<Float8Codec<c10::Float8_e4m3fn>, Float8E4m3fnFormat>(op, args);
      break;
    case at::ScalarType::Float8_e5m2:
      ReduceFloating<Float8Codec<c10::Float8_e5m2>, Float8E5m2Format>(op, args);
      break;
    case at::ScalarType::ComplexFloat:
      ReduceComplex<float>(op, args);
      break;
    case at::ScalarType::ComplexDouble:
      ReduceComplex<double>(op, args);
      break;
    default:
      return absl::InternalError("CheckOpAllowed and ReduceInto know different dtypes");
  }
  return absl::OkStatus();
}

absl::Status ApplyFactor(at::ScalarType dtype, double factor, void* data, int64_t count) {
  if (absl::Status status = CheckOpAllowed(ReduceOpKind::kPremulSum, dtype); !status.ok()) {
    return status;
  }
  return TransformFloating(dtype, data, count, [factor](auto acc) {
    using Acc = decltype(acc);
    return [scale = static_cast<Acc>(factor)](Acc value) { return value * scale; };
  });
}

}  // namespace leafpack
