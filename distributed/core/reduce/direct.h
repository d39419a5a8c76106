// Reductions in one pass over memory, for the machine at hand. Internal to distributed/core/reduce.
//
// Two to four inputs of a dtype that the vectorizer knows: most of what is reduced. They give the same
// bits as the reduction in blocks (reduce.cc), whatever the instruction set is: no operation is
// contracted or reordered.
#ifndef LEAFPACK_DISTRIBUTED_CORE_REDUCE_DIRECT_H_
#define LEAFPACK_DISTRIBUTED_CORE_REDUCE_DIRECT_H_

#include <cstdint>

namespace leafpack::reduce_internal {

// What is read and written, and in what it is accumulated.
enum class DirectType : uint8_t {
  kUint8, kUint16, kUint32, kUint64, kInt8, kInt16, kInt32, kInt64, kBool, kFloat, kDouble, kBFloat16,
  // Floats as ordered integers: kMin with NaN smallest, kMax with NaN largest.
  kOrderedFloat, kOrderedDouble, kOrderedBFloat16, kOrderedHalf,
  kCount,
};
enum class DirectOp : uint8_t { kSum, kAverage, kProduct, kMin, kMax, kAnd, kOr, kXor, kCount };

inline constexpr int kDirectInputs = 4;

// out[i] = inputs[0][i] op inputs[1][i] ... for `inputs` of 2 to kDirectInputs buffers and `count`
// elements. `out` may be one of the inputs. No alignment is needed.
using DirectKernel = void (*)(const char* const* inputs, char* out, int64_t count);

// Null where there is none.
DirectKernel FindDirectKernel(DirectType type, DirectOp op, int inputs);

// The same for one instruction set, whether this machine has it or not. For tests.
DirectKernel FindBaseKernel(DirectType type, DirectOp op, int inputs);
DirectKernel FindAvx2Kernel(DirectType type, DirectOp op, int inputs);
DirectKernel FindAvx512Kernel(DirectType type, DirectOp op, int inputs);
bool HasAvx2();
bool HasAvx512();

}  // namespace leafpack::reduce_internal

#endif  // LEAFPACK_DISTRIBUTED_CORE_REDUCE_DIRECT_H_
