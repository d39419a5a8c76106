// Indexing the batch dimensions of a tree, as torch indexes a tensor.
//
//   Index(tree, {0});                                  // tree[0]
//   Index(tree, {Ellipsis(), Slice(1, 3)});            // tree[..., 1:3]
//   Index(tree, {NewAxis(), mask});                    // tree[None, mask]
//   SetIndex(tree, {0}, other);                        // tree[0] = other
#ifndef LEAFPACK_TENSORDICT_OPS_INDEX_H_
#define LEAFPACK_TENSORDICT_OPS_INDEX_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/nested_key.h"
#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// `...`: all batch dimensions that no other item takes.
struct Ellipsis {};
// `None`: a new dimension of size 1.
struct NewAxis {};
// `start:stop:step`; negative ends count from the end, ends beyond the size are cut. step >= 1.
struct Slice {
  explicit Slice(std::optional<int64_t> start_at = std::nullopt,
                 std::optional<int64_t> stop_before = std::nullopt, int64_t by = 1)
      : start(start_at), stop(stop_before), step(by) {}
  std::optional<int64_t> start, stop;
  int64_t step;
};

// One item of an index: a position (negative from the end), a Slice, Ellipsis, NewAxis, a tensor of
// whole numbers, or a mask (bool, or uint8 as in torch) over one or more dimensions.
class IndexItem {
 public:
  template <std::integral Int>
    requires(!std::same_as<Int, bool>)
  IndexItem(Int position) : item(static_cast<int64_t>(position)) {}  // NOLINT(runtime/explicit)
  IndexItem(Slice slice) : item(slice) {}                            // NOLINT(runtime/explicit)
  IndexItem(Ellipsis ellipsis) : item(ellipsis) {}                   // NOLINT(runtime/explicit)
  IndexItem(NewAxis axis) : item(axis) {}                            // NOLINT(runtime/explicit)
  IndexItem(at::Tensor tensor) : item(std::move(tensor)) {}          // NOLINT(runtime/explicit)

  std::variant<int64_t, Slice, Ellipsis, NewAxis, at::Tensor> item;
};

// The tree at these positions of its batch dimensions: views where torch gives views (positions,
// slices, new axes), copies where it copies (tensors, masks). Nodes below are indexed in the same
// dimensions. Values that are no tensors are taken over. InvalidArgument if there are more items
// than batch dimensions, a position is out of range, or a mask has another shape than its
// dimensions.
absl::StatusOr<TensorDict> Index(const TensorDict& tree, const std::vector<IndexItem>& index);

// Writes `value` at these positions, in place. Each leaf of `value` must have a counterpart in
// `tree` and equal sizes behind the batch; its batch size may broadcast to that of Index(tree,
// index). Leaves without counterpart in `value` are left alone; values that are no tensors must be
// equal. NotFound or InvalidArgument, naming the path, before anything is written.
absl::Status SetIndex(TensorDict& tree, const std::vector<IndexItem>& index,
                      const TensorDict& value, Cast cast = Cast::kRefuse);
// The same with one number for all leaves.
absl::Status SetIndex(TensorDict& tree, const std::vector<IndexItem>& index,
                      const at::Scalar& value);
// The same for the one leaf at `key`; `value` broadcasts as torch does.
absl::Status SetIndex(TensorDict& tree, const NestedKey& key, const std::vector<IndexItem>& index,
                      const at::Tensor& value, Cast cast = Cast::kRefuse);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_INDEX_H_
