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
#include "distributed/store/groups.h"
#include "distributed/store/process_group.h"

namespace leafpack::python {
namespace {

absl::StatusOr<ReduceOp> FromTorch(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    case c10d::ReduceOp::PREMUL_SUM: {
      auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
      if (supplement == nullptr) {
        return absl::InvalidArgumentError("op is PREMUL_SUM without a factor");
      }
      if (supplement->tensor_factor.defined()) {
        return ReduceOp::PremulSum(supplement->tensor_factor.item().toDouble());
      }
      return ReduceOp::PremulSum(supplement->double_factor);
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("op is no reduction: c10d number ", static_cast<int>(op.op_)));
  }
}

}  // namespace

std::optional<absl::StatusOr<ReduceOp>> ReduceOpFromTorch(py::handle op) {
  // ReduceOp.SUM and its like are RedOpType, which torch's own binding turns into a ReduceOp.
  py::detail::make_caster<c10d::ReduceOp> caster;
  if (!caster.load(op, /*convert=*/true)) return std::nullopt;
  return FromTorch(py::detail::cast_op<c10d::ReduceOp&>(caster));
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
