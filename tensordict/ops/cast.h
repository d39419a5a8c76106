// Copies and conversions of a whole tree, and what is asked of all its tensors at once.
//
//   absl::StatusOr<TensorDict> half = To(tree, {.dtype = at::kHalf});
//   absl::StatusOr<TensorDict> copy = Clone(tree);
#ifndef LEAFPACK_TENSORDICT_OPS_CAST_H_
#define LEAFPACK_TENSORDICT_OPS_CAST_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

struct ToOptions {
  // The result also asks for this device from then on, as TensorDict::device says.
  std::optional<c10::Device> device{};
  std::optional<at::ScalarType> dtype{};
  // Copies between host and device may go on after the return, as in torch.
  bool non_blocking = false;
};

// Tensors that are already as asked for are shared. Every leaf is converted, whole numbers too.
absl::StatusOr<TensorDict> To(const TensorDict& tree, const ToOptions& options);

// With `recurse` every tensor is copied (autograd passes through), else only the nodes are: the
// result has the same tensors. The result is not locked.
absl::StatusOr<TensorDict> Clone(const TensorDict& tree, bool recurse = true);

// Tensors that are contiguous are shared, the others copied.
absl::StatusOr<TensorDict> Contiguous(const TensorDict& tree);
// Tensors over the same memory, without their autograd history.
absl::StatusOr<TensorDict> Detach(const TensorDict& tree);

// In place, values only: also in a locked tree.
absl::Status ZeroInPlace(const TensorDict& tree);
// InvalidArgument, naming the path, for a leaf that is neither floating nor complex, or was
// computed by autograd and shall not require grad.
absl::Status RequiresGradInPlace(const TensorDict& tree, bool requires_grad = true);

// The gradients of the tensors: undefined where there is none. They are the gradients themselves,
// no copies.
absl::StatusOr<TensorDict> Grads(const TensorDict& tree);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_CAST_H_
