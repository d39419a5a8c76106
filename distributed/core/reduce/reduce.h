// Local reduction of the buffers of several ranks, in rank order: what a rank does with its peers'
// data once it is here. No communication.
//
//   const void* inputs[] = {of_rank_0, of_rank_1, of_rank_2};
//   RETURN_IF_ERROR(ReduceInto(ReduceOpKind::kAvg, at::kFloat, inputs, out, count));
//
// Numerics. The order is that of the ranks: ((x0 op x1) op x2) ... Half types and float8 accumulate in
// float32 and are rounded once (to nearest even; float8 e4m3fn beyond its range is NaN, as in torch).
// AVG divides the sum once, before that rounding. Integers wrap. MIN and MAX keep NaN (the result is
// the canonical quiet NaN) and take -0 as smaller than +0. bool: SUM, MAX and BOR are OR; PRODUCT, MIN
// and BAND are AND; any byte but 0 is true, results are 0 or 1. Complex SUM is by parts, PRODUCT is
// (ac - bd) + (ad + bc)i. The bits of a result depend on the values alone, never on the position of an
// element or on `count`.
#ifndef LEAFPACK_DISTRIBUTED_CORE_REDUCE_REDUCE_H_
#define LEAFPACK_DISTRIBUTED_CORE_REDUCE_REDUCE_H_

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "distributed/core/reduce_op.h"

namespace leafpack {

// out[i] = inputs[0][i] op inputs[1][i] op ... for `count` elements of `dtype`. AVG divides by the
// number of inputs; PREMUL_SUM is SUM (factors were applied, see ApplyFactor). `out` may be one of
// the inputs; it may not overlap one otherwise. No buffer needs an alignment. Returns what
// CheckOpAllowed says about op and dtype, and InvalidArgument without inputs; nothing is written then.
// Thread-safe.
absl::Status ReduceInto(ReduceOpKind op, at::ScalarType dtype,
                        absl::Span<const void* const> inputs, void* out, int64_t count);

// data[i] *= factor, rounded to `dtype` (in float32 for half types and float8): what each rank does
// before a PREMUL_SUM. Errors as CheckOpAllowed(kPremulSum, dtype). Thread-safe.
absl::Status ApplyFactor(at::ScalarType dtype, double factor, void* data, int64_t count);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_REDUCE_REDUCE_H_
