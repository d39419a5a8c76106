// Comparing trees, and measuring them.
#ifndef LEAFPACK_TENSORDICT_OPS_COMPARE_H_
#define LEAFPACK_TENSORDICT_OPS_COMPARE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tensordict/digest128.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// True if both have the same structure, batch sizes, dtypes, shapes and values. NaN is not equal to
// itself. Layout in memory, names and devices rules do not matter. An error only if torch cannot
// compare two leaves (on different devices).
absl::StatusOr<bool> Equal(const TensorDict& a, const TensorDict& b);

struct Tolerance {
  double relative = 1e-5;
  double absolute = 1e-8;
  bool equal_nan = false;
};
// The same with |a - b| <= absolute + relative * |b| for floating and complex leaves.
absl::StatusOr<bool> AllClose(const TensorDict& a, const TensorDict& b,
                              const Tolerance& tolerance = {});

// A tree of bool tensors: which elements are equal. InvalidArgument, naming the path, if the
// structures differ or shapes do not broadcast.
absl::StatusOr<TensorDict> ElementsEqual(const TensorDict& a, const TensorDict& b);

// Number of batch elements: the product of the batch size.
int64_t BatchNumel(const TensorDict& tree);
// Number of elements of all tensors; one that stands under two paths counts twice.
int64_t Numel(const TensorDict& tree);
// Bytes of the elements of all tensors. With `duplicates` false, tensors that are the same elements
// in memory (equal address, dtype, sizes and strides) count once.
int64_t Bytes(const TensorDict& tree, bool duplicates = true);
// No leaf in the whole tree; nodes do not count.
bool IsEmpty(const TensorDict& tree);

// Of the layout: equal for trees that collectives would take for each other, see Layout::digest.
// Errors as of Layout::Of.
absl::StatusOr<Digest128> LayoutDigest(const TensorDict& tree);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_COMPARE_H_
