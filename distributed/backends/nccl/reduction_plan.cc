#include "distributed/backends/nccl/reduction_plan.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack::nccl_internal {
namespace {

absl::Status Unsupported(at::ScalarType dtype, ReduceOpKind op) {
  const std::string_view name = c10::getDtypeNames(dtype).first;
  return absl::UnimplementedError(absl::StrCat(
      "the nccl backend does not reduce ",
      name.empty() ? std::string_view(c10::toString(dtype)) : name, " by ", ReduceOpName(op)));
}

bool IsOrder(ReduceOpKind op) { return op == ReduceOpKind::kMin || op == ReduceOpKind::kMax; }

bool IsBits(ReduceOpKind op) {
  return op == ReduceOpKind::kBand || op == ReduceOpKind::kBor || op == ReduceOpKind::kBxor;
}

}  // namespace

absl::StatusOr<Wire> WireOf(at::ScalarType dtype, ReduceOpKind op) {
  if (absl::Status status = CheckOpAllowed(op, dtype); !status.ok()) return status;
  if (op == ReduceOpKind::kPremulSum) op = ReduceOpKind::kSum;
  if (dtype == at::ScalarType::Bool) {
    // Bytes 0 and 1.
    switch (op) {
      case ReduceOpKind::kSum:
      case ReduceOpKind::kBor:
      case ReduceOpKind::kMax:
        return Wire{at::ScalarType::Byte, ReduceOpKind::kMax};
      case ReduceOpKind::kProduct:
      case ReduceOpKind::kBand:
      case ReduceOpKind::kMin:
        return Wire{at::ScalarType::Byte, ReduceOpKind::kMin};
      default:
        return Unsupported(dtype, op);
    }
  }
  if (IsBits(op)) return Unsupported(dtype, op);
  switch (dtype) {
    case at::ScalarType::Byte:
    case at::ScalarType::Char:
    case at::ScalarType::Int:
    case at::ScalarType::Long:
      return Wire{dtype, op};
    case at::ScalarType::Half:
    case at::ScalarType::BFloat16:
    case at::ScalarType::Float:
    case at::ScalarType::Double:
      return Wire{dtype, op, IsOrder(op)};
    // Sums and products modulo a power of two are the same with and without a sign.
    case at::ScalarType::UInt32:
      if (IsOrder(op)) return Unsupported(dtype, op);
      return Wire{at::ScalarType::Int, op};
    case at::ScalarType::UInt64:
      if (IsOrder(op)) return Unsupported(dtype, op);
      return Wire{at::ScalarType::Long, op};
    // Reduced as pairs of real numbers.
    case at::ScalarType::ComplexFloat:
    case at::ScalarType::ComplexDouble:
      if (op == ReduceOpKind::kProduct) return Unsupported(dtype, op);
      return Wire{dtype, op};
    default:
      return Unsupported(dtype, op);
  }
}

int64_t ElementCount(const LeafView& view) {
  int64_t count = 1;
  for (const int64_t size : view.sizes) count *= size;
  return count;
}

bool IsContiguous(const LeafView& view) {
  int64_t step = 1;
  for (size_t i = view.sizes.size(); i-- > 0;) {
    if (view.sizes[i] != 1 && view.strides[i] != step) return false;
    step *= view.sizes[i];
  }
  return true;
}

std::vector<Run> PlanRuns(absl::Span<const LeafView> views) {
  std::vector<Run> runs;
  std::vector<std::pair<at::ScalarType, size_t>> shared;  // by dtype: the run of small leaves
  for (size_t i = 0; i < views.size(); ++i) {
    const int64_t numel = ElementCount(views[i]);
    if (numel == 0) continue;
    const at::ScalarType dtype = views[i].dtype;
    Run* run = nullptr;
    if (numel * static_cast<int64_t>(c10::elementSize(dtype)) < kAloneBytes) {
      for (const auto& [of_dtype, index] : shared) {
        if (of_dtype == dtype) run = &runs[index];
      }
      if (run == nullptr) shared.emplace_back(dtype, runs.size());
    }
    if (run == nullptr) {
      run = &runs.emplace_back();
      run->dtype = dtype;
    }
    run->parts.push_back({i, run->numel, numel});
    run->numel += numel;
  }
  return runs;
}

}  // namespace leafpack::nccl_internal
