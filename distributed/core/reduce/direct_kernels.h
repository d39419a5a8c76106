// The loops of direct.h. Included once by each direct_*.cc, inside a namespace without a name and
// after the choice of an instruction set, so that no function compiled for a newer machine can take the
// place of one for all. Includes nothing for the same reason: direct_*.cc do.

template <int kBytes>
struct UintOf;
template <>
struct UintOf<1> { using type = uint8_t; };
template <>
struct UintOf<2> { using type = uint16_t; };
template <>
struct UintOf<4> { using type = uint32_t; };
template <>
struct UintOf<8> { using type = uint64_t; };

template <typename T>
struct Plain {
  // Buffers need no alignment, and hold any type.
  typedef T Stored __attribute__((aligned(1), may_alias));
  using Acc = T;
  static Acc Load(T value) { return value; }
  static T Store(Acc acc) { return acc; }
};

struct Bool {
  typedef uint8_t Stored __attribute__((aligned(1), may_alias));
  using Acc = uint8_t;
  static Acc Load(uint8_t value) { return value != 0; }
  static uint8_t Store(Acc acc) { return acc; }
};

struct BFloat16 {
  typedef uint16_t Stored __attribute__((aligned(1), may_alias));
  using Acc = float;
  static Acc Load(uint16_t half) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16);
  }
  static uint16_t Store(Acc acc) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, acc);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded);
  }
};

template <typename Format, bool kNanIsLargest>
struct Ordered {
  using Acc = typename Format::Int;
  typedef Acc Stored __attribute__((aligned(1), may_alias));
  static Acc Load(Acc bits) { return ToOrdered<Format, kNanIsLargest>(bits); }
  static Acc Store(Acc acc) { return FromOrdered<Format, kNanIsLargest>(acc); }
};

// Integers come as unsigned types where they can overflow; narrow ones are widened, since uint16 *
// uint16 would be a signed product.
template <typename T>
using Wide = decltype(T{} + 0u + T{});

struct Sum {
  template <typename T>
  static T Do(T a, T b) { return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b)); }
};
struct Product {
  template <typename T>
  static T Do(T a, T b) { return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)); }
};
struct Min {
  template <typename T>
  static T Do(T a, T b) { return b < a ? b : a; }
};
struct Max {
  template <typename T>
  static T Do(T a, T b) { return a < b ? b : a; }
};
struct And {
  template <typename T>
  static T Do(T a, T b) { return static_cast<T>(a & b); }
};
struct Or {
  template <typename T>
  static T Do(T a, T b) { return static_cast<T>(a | b); }
};
struct Xor {
  template <typename T>
  static T Do(T a, T b) { return static_cast<T>(a ^ b); }
};

template <typename Codec, typename Op, int kInputs, bool kAverage>
void Direct(const char* const* inputs, char* out, int64_t count) {
  using Stored = typename Codec::Stored;
  using Acc = typename Codec::Acc;
  const Stored* a = reinterpret_cast<const Stored*>(inputs[0]);
  const Stored* b = reinterpret_cast<const Stored*>(inputs[1]);
  const Stored* c = reinterpret_cast<const Stored*>(inputs[kInputs > 2 ? 2 : 0]);
  const Stored* d = reinterpret_cast<const Stored*>(inputs[kInputs > 3 ? 3 : 0]);
  Stored* to = reinterpret_cast<Stored*>(out);
  // An element is read from all inputs before it is written, and no other is touched.
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    Acc acc = Op::Do(Codec::Load(a[i]), Codec::Load(b[i]));
    if (kInputs > 2) acc = Op::Do(acc, Codec::Load(c[i]));
    if (kInputs > 3) acc = Op::Do(acc, Codec::Load(d[i]));
    if (kAverage) acc /= static_cast<Acc>(kInputs);
    to[i] = Codec::Store(acc);
  }
}

template <typename Codec, typename Op, bool kAverage = false>
DirectKernel ForInputs(int inputs) {
  switch (inputs) {
    case 2: return &Direct<Codec, Op, 2, kAverage>;
    case 3: return &Direct<Codec, Op, 3, kAverage>;
    case 4: return &Direct<Codec, Op, 4, kAverage>;
    default: return nullptr;
  }
}

template <typename Codec>
DirectKernel Floating(DirectOp op, int inputs) {
  switch (op) {
    case DirectOp::kSum: return ForInputs<Codec, Sum>(inputs);
    case DirectOp::kAverage: return ForInputs<Codec, Sum, true>(inputs);
    case DirectOp::kProduct: return ForInputs<Codec, Product>(inputs);
    default: return nullptr;
  }
}

template <typename T>
DirectKernel Unsigned(DirectOp op, int inputs) {
  switch (op) {
    case DirectOp::kSum: return ForInputs<Plain<T>, Sum>(inputs);
    case DirectOp::kProduct: return ForInputs<Plain<T>, Product>(inputs);
    case DirectOp::kMin: return ForInputs<Plain<T>, Min>(inputs);
    case DirectOp::kMax: return ForInputs<Plain<T>, Max>(inputs);
    case DirectOp::kAnd: return ForInputs<Plain<T>, And>(inputs);
    case DirectOp::kOr: return ForInputs<Plain<T>, Or>(inputs);
    case DirectOp::kXor: return ForInputs<Plain<T>, Xor>(inputs);
    default: return nullptr;
  }
}

// MIN and MAX only; the rest has the bits of the unsigned type.
template <typename T>
DirectKernel Signed(DirectOp op, int inputs) {
  if (op == DirectOp::kMin) return ForInputs<Plain<T>, Min>(inputs);
  if (op == DirectOp::kMax) return ForInputs<Plain<T>, Max>(inputs);
  return nullptr;
}

template <typename Format>
DirectKernel OrderedFloats(DirectOp op, int inputs) {
  if (op == DirectOp::kMin) return ForInputs<Ordered<Format, false>, Min>(inputs);
  if (op == DirectOp::kMax) return ForInputs<Ordered<Format, true>, Max>(inputs);
  return nullptr;
}

inline DirectKernel FindKernel(DirectType type, DirectOp op, int inputs) {
  switch (type) {
    case DirectType::kUint8: return Unsigned<uint8_t>(op, inputs);
    case DirectType::kUint16: return Unsigned<uint16_t>(op, inputs);
    case DirectType::kUint32: return Unsigned<uint32_t>(op, inputs);
    case DirectType::kUint64: return Unsigned<uint64_t>(op, inputs);
    case DirectType::kInt8: return Signed<int8_t>(op, inputs);
    case DirectType::kInt16: return Signed<int16_t>(op, inputs);
    case DirectType::kInt32: return Signed<int32_t>(op, inputs);
    case DirectType::kInt64: return Signed<int64_t>(op, inputs);
    case DirectType::kBool:
      if (op == DirectOp::kAnd) return ForInputs<Bool, And>(inputs);
      if (op == DirectOp::kOr) return ForInputs<Bool, Or>(inputs);
      if (op == DirectOp::kXor) return ForInputs<Bool, Xor>(inputs);
      return nullptr;
    case DirectType::kFloat: return Floating<Plain<float>>(op, inputs);
    case DirectType::kDouble: return Floating<Plain<double>>(op, inputs);
    case DirectType::kBFloat16: return Floating<BFloat16>(op, inputs);
    case DirectType::kOrderedFloat: return OrderedFloats<FloatFormat32>(op, inputs);
    case DirectType::kOrderedDouble: return OrderedFloats<FloatFormat64>(op, inputs);
    case DirectType::kOrderedBFloat16: return OrderedFloats<BFloat16Format>(op, inputs);
    case DirectType::kOrderedHalf: return OrderedFloats<HalfFormat>(op, inputs);
    case DirectType::kCount: break;
  }
  return nullptr;
}
