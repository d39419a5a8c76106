// c10d's reductions as this library's.
#ifndef LEAFPACK_DISTRIBUTED_STORE_C10D_REDUCE_OP_H_
#define LEAFPACK_DISTRIBUTED_STORE_C10D_REDUCE_OP_H_

#include "absl/status/statusor.h"

#include "distributed/core/reduce_op.h"

namespace c10d {
struct ReduceOp;
}

namespace leafpack {

// InvalidArgument for what is no reduction, and for PREMUL_SUM without a factor.
absl::StatusOr<ReduceOp> ReduceOpFromC10d(const c10d::ReduceOp& op);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_C10D_REDUCE_OP_H_
