// Whether tensors can be written in place, asked before the first of many is. For the operations in
// tensordict/ only.
#ifndef LEAFPACK_TENSORDICT_OPS_WRITABLE_H_
#define LEAFPACK_TENSORDICT_OPS_WRITABLE_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::internal {

// Why torch would not write the elements of `leaf` in place, now; empty if it would.
std::string_view WhyNotWritable(const at::Tensor& leaf);

// InvalidArgument "<op>: <path>: ..." if it would not.
absl::Status CheckWritable(std::string_view op, const NestedKey& path, const at::Tensor& leaf);
// The same for all tensors of a tree.
absl::Status CheckWritable(std::string_view op, const TensorDict& tree);

// The path of defined tensor number `index` in canonical order.
NestedKey PathOfTensor(const TensorDict& tree, size_t index);

// Whether a kernel can write its result for the tensors of `tree` into them. `operands` are lists as
// long as `tensors`. `kernel` must refuse where it would refuse the tensors of the same dtypes and
// devices; it is called on small ones, unless the first tensor of all tells.
using SmallKernel =
    absl::FunctionRef<void(const at::Tensor& tensor, absl::Span<const at::Tensor> operands)>;
absl::Status CheckInPlace(std::string_view op, const TensorDict& tree,
                          absl::Span<const at::Tensor> tensors,
                          absl::Span<const absl::Span<const at::Tensor>> operands,
                          SmallKernel kernel);

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_OPS_WRITABLE_H_
