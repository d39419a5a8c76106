// Several trees of one structure become one: stack and cat along a batch dimension.
//
//   absl::StatusOr<TensorDict> batch = Stack({a, b, c}, 0);
#ifndef LEAFPACK_TENSORDICT_OPS_COMBINE_H_
#define LEAFPACK_TENSORDICT_OPS_COMBINE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// Leaves are copied. Names and device come from the first tree; the device only if all trees agree.
// InvalidArgument, naming the first path, if keys differ, a tensor is undefined in one tree only,
// values that are no tensors differ, batch sizes do not fit, or torch cannot combine the leaves;
// without any tree; or if `dim` is no batch dimension (a new one for Stack; negative counts from
// the end).
absl::StatusOr<TensorDict> Stack(absl::Span<const TensorDict> trees, int64_t dim = 0);
absl::StatusOr<TensorDict> Cat(absl::Span<const TensorDict> trees, int64_t dim = 0);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_COMBINE_H_
