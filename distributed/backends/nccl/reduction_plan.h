// Which leaves of an operation NCCL reduces where they are and which are packed, and what it is told that their
// elements are. Pure.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_REDUCTION_PLAN_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_REDUCTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::nccl_internal {

// Leaves of fewer bytes share a run. Packing moves each byte four times through the memory of a GPU, at some
// terabytes a second, where one more member of a group of NCCL calls costs a microsecond or two. Reckoned,
// not measured.
inline constexpr int64_t kAloneBytes = int64_t{1} << 20;

// How elements of one dtype are reduced by one op.
struct Wire {
  // What the memory is said to hold: elements of the same size, whose reduction gives the same bytes.
  at::ScalarType dtype = at::ScalarType::Undefined;
  ReduceOpKind op = ReduceOpKind::kSum;
  // NCCL's min and max lose NaN: where one was is reduced as well, and it is put back.
  bool keep_nan = false;
  friend bool operator==(const Wire&, const Wire&) = default;
};

// Unimplemented for what NCCL cannot do, InvalidArgument for what no backend does (CheckOpAllowed).
// kPremulSum is kSum: its factor was applied before.
absl::StatusOr<Wire> WireOf(at::ScalarType dtype, ReduceOpKind op);

// One member of the group of NCCL calls: leaves of one dtype, one after the other.
struct Run {
  struct Part {
    size_t view = 0;     // index
    int64_t offset = 0;  // elements
    int64_t numel = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  at::ScalarType dtype = at::ScalarType::Undefined;  // of the leaves
  int64_t numel = 0;
  std::vector<Part> parts;  // in the order of the views; one: nothing is packed
};

int64_t ElementCount(const LeafView& view);
bool IsContiguous(const LeafView& view);

// The runs of an operation, ordered by their first views. All ranks must give NCCL the same calls, so this is a
// function of dtypes and numbers of elements alone, on which the ranks agreed: never of strides. Views
// without elements are in no run.
std::vector<Run> PlanRuns(absl::Span<const LeafView> views);

}  // namespace leafpack::nccl_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_REDUCTION_PLAN_H_
