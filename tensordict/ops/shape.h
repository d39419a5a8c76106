// Operations on the batch dimensions of a tree. Dimensions behind the batch are left as they are,
// and so are the further batch dimensions of nodes below.
//
//   absl::StatusOr<TensorDict> flat = View(tree, {-1});   // batch [4, 3] -> [12], views
//   absl::StatusOr<std::vector<TensorDict>> rows = Unbind(tree, 0);
#ifndef LEAFPACK_TENSORDICT_OPS_SHAPE_H_
#define LEAFPACK_TENSORDICT_OPS_SHAPE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// In all of these: a negative dimension counts from the last batch dimension; InvalidArgument, with
// the path where it is about a leaf, if a dimension is out of range or sizes do not fit. Undefined
// tensors and values that are no tensors are taken over. The tree itself does not change; leaves of
// the result are views wherever torch gives views. Names go with their dimensions; dimensions that
// are merged, split or new have none.

// One size may be -1. View fails where torch's does (a leaf whose memory does not allow it);
// Reshape copies such leaves.
absl::StatusOr<TensorDict> View(const TensorDict& tree, at::IntArrayRef sizes);
absl::StatusOr<TensorDict> Reshape(const TensorDict& tree, at::IntArrayRef sizes);

// Every dimension once, in the new order.
absl::StatusOr<TensorDict> Permute(const TensorDict& tree, at::IntArrayRef dims);
absl::StatusOr<TensorDict> Transpose(const TensorDict& tree, int64_t dim0, int64_t dim1);

// Takes away `dim` if its size is 1; without `dim`, all batch dimensions of size 1.
absl::StatusOr<TensorDict> Squeeze(const TensorDict& tree,
                                   std::optional<int64_t> dim = std::nullopt);
// -dims - 1 <= dim <= dims.
absl::StatusOr<TensorDict> Unsqueeze(const TensorDict& tree, int64_t dim);

// -1 keeps a size; new dimensions come first. Expanded leaves overlap themselves: collectives
// refuse them.
absl::StatusOr<TensorDict> Expand(const TensorDict& tree, at::IntArrayRef sizes);

// Merges dimensions start to end into one; leaves are copied where they must be.
absl::StatusOr<TensorDict> FlattenDims(const TensorDict& tree, int64_t start_dim,
                                       int64_t end_dim = -1);
// Splits one dimension; one size may be -1.
absl::StatusOr<TensorDict> UnflattenDim(const TensorDict& tree, int64_t dim, at::IntArrayRef sizes);

// Parts of `size` (the last may be smaller), which must be positive.
absl::StatusOr<std::vector<TensorDict>> Split(const TensorDict& tree, int64_t size,
                                              int64_t dim = 0);
// Parts of these sizes, whose sum must be the size of the dimension.
absl::StatusOr<std::vector<TensorDict>> Split(const TensorDict& tree, at::IntArrayRef sizes,
                                              int64_t dim = 0);
// At most `chunks` (> 0) parts of equal size, the last one may be smaller, as torch.chunk.
absl::StatusOr<std::vector<TensorDict>> Chunk(const TensorDict& tree, int64_t chunks,
                                              int64_t dim = 0);
// One tree per position of the dimension, without that dimension.
absl::StatusOr<std::vector<TensorDict>> Unbind(const TensorDict& tree, int64_t dim = 0);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_SHAPE_H_
