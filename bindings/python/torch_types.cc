// The only source that sees c10d's types: groups and ops of torch.distributed.
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind.h"
#include "bindings/python/bind_group.h"
#include "distributed/store/c10d_reduce_op.h"
#include "distributed/store/groups.h"
#include "distributed/store/process_group.h"

namespace leafpack::python {

std::optional<absl::StatusOr<ReduceOp>> ReduceOpFromTorch(py::handle op) {
  // ReduceOp.SUM and its like are RedOpType, which torch's own binding turns into a ReduceOp.
  py::detail::make_caster<c10d::ReduceOp> caster;
  if (!caster.load(op, /*convert=*/true)) return std::nullopt;
  return ReduceOpFromC10d(py::detail::cast_op<c10d::ReduceOp&>(caster));
}

absl::StatusOr<Group> GroupAround(py::handle process_group, std::vector<GlobalRank> global_ranks) {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  try {
    group = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(
        process_group.cast<c10d::ProcessGroup*>());
  } catch (const py::cast_error&) {
    return absl::InvalidArgumentError(
        absl::StrCat("group must be a torch.distributed ProcessGroup, not ",
                     py::repr(process_group).cast<std::string>()));
  }
  py::gil_scoped_release release;
  WrapOptions options;
  options.global_ranks = std::move(global_ranks);
  return GroupFromProcessGroup(group, std::move(options));
}

absl::StatusOr<Group> GroupOverStore(py::handle store, const std::string& prefix, int rank, int size,
                                     const GroupOptions& options) {
  c10::intrusive_ptr<c10d::Store> taken;
  try {
    taken = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store.cast<c10d::Store*>());
  } catch (const py::cast_error&) {
    throw py::type_error(absl::StrCat("store must be a store of torch.distributed, not ",
                                      py::repr(store).cast<std::string>()));
  }
  py::gil_scoped_release release;
  return GroupFromStore(std::move(taken), prefix, rank, size, {}, options);
}

}  // namespace leafpack::python
