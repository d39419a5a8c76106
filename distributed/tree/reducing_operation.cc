#include "distributed/tree/reducing_operation.h"

#include <cstddef>
#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "distributed/tree/frame.h"

namespace leafpack::internal {
namespace {

CallOptions CommonOptions(const AllReduceOptions& options) {
  return {.timeout = options.timeout,
          .name = options.name,
          .check = options.check,
          .max_in_flight_bytes = options.max_in_flight_bytes,
          .interrupt = options.interrupt,
          .on_failure = options.on_failure,
          .stats = options.stats};
}

// A predicate is the caller's code. What it throws is why this rank refuses the call; let through, it would leave
// the other ranks waiting.
absl::StatusOr<FlatTree> Select(PlanCache& cache, FlatTree tree, const LeafFilter& filter) {
  try {
    return cache.Select(std::move(tree), filter);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("the filter of leaves threw: ", e.what()));
  } catch (...) {
    return absl::InvalidArgumentError("the filter of leaves threw what is no std::exception");
  }
}

}  // namespace

ReducingOperation::ReducingOperation(CollectiveKind kind, std::string_view kind_name,
                                     std::vector<FlatTree> trees, const Group& group,
                                     const AllReduceOptions& options)
    : Operation(group, kind, kind_name, CommonOptions(options)),
      arguments_{.collective = kind,
                 .op = options.op.kind,
                 .bucketing = options.bucketing,
                 .leaves = options.leaves.kind(),
                 .on_failure = options.on_failure,
                 .name = options.name},
      op_(options.op),
      filter_(options.leaves),
      cache_(PlanCache::Of(group.engine())),
      trees_(std::move(trees)) {}

std::vector<std::string> ReducingOperation::skipped_paths() const {
  std::vector<std::string> paths;
  for (const NonTensorLeaf& skipped : tree_.non_tensors) {
    paths.push_back((*tree_.paths)[skipped.leaf].ToString());
  }
  return paths;
}

absl::Status ReducingOperation::Prepare(CallSpec& spec) {
  std::vector<size_t> tree_begin;
  for (FlatTree& tree : trees_) {
    absl::StatusOr<FlatTree> chosen = Select(*cache_, std::move(tree), filter_);
    if (!chosen.ok()) return chosen.status();
    tree = *std::move(chosen);
  }
  if (arguments_.collective == CollectiveKind::kReduceScatter) {
    tree_begin.push_back(0);
    for (const FlatTree& tree : trees_) tree_begin.push_back(tree_begin.back() + tree.size());
    tree_ = cache_->Join(trees_);
  } else {
    tree_ = std::move(trees_.front());
  }
  trees_.clear();
  absl::StatusOr<std::shared_ptr<const CallPlan>> plan =
      cache_->Get(tree_, arguments_, engine(), std::move(tree_begin));
  if (!plan.ok()) return plan.status();
  plan_ = *std::move(plan);
  if (absl::Status status = CheckAutograd(tree_, Written()); !status.ok()) return status;
  stats_.skipped = static_cast<int64_t>(tree_.non_tensors.size());
  stats_.leaves = static_cast<int64_t>(tree_.size()) - stats_.skipped;
  stats_.bytes = plan_->layout.total_bytes();
  stats_.buckets = static_cast<int64_t>(plan_->buckets.buckets.size());
  spec.digest = plan_->digest;
  spec.soft_digest = plan_->soft_digest;
  spec.describe = [plan = plan_, backend = std::string(engine().backend().name())] {
    return plan->Describe(backend);
  };
  // A frame is all or nothing anyway.
  spec.restore = restore() && !plan_->is_frame;
  spec.is_frame = plan_->is_frame;
  sparse_.emplace(*plan_, tree_, op_, rank(), size(), [this](size_t leaf) { return OwnerOf(leaf); });
  if (absl::Status status = sparse_->Collect(); !status.ok()) return status;
  if (!plan_->is_frame) return absl::OkStatus();
  if (size() == 1) {
    spec.reduce = [](absl::Span<const absl::Span<const char>>, absl::Span<char>) {};
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> payload = PackFrame(*plan_, tree_, op_);
  if (!payload.ok()) return payload.status();
  spec.payload = *std::move(payload);
  spec.reduce = MakeFrameReducer(plan_);
  return absl::OkStatus();
}

absl::Status ReducingOperation::FinishFrame(absl::Span<const char> frame) {
  absl::Status status;
  if (size() > 1) {
    status = UnpackFrame(*plan_, frame, tree_, Written());
  } else if (op_.kind == ReduceOpKind::kPremulSum) {
    // Alone, only the own factor changes anything.
    absl::StatusOr<std::string> scaled = PackFrame(*plan_, tree_, op_);
    status = scaled.status();
    if (scaled.ok()) status = UnpackFrame(*plan_, *scaled, tree_, Written());
    if (status.ok() && !plan_->sparse.empty()) {
      if (status = sparse_->ReduceAll(); status.ok()) status = sparse_->Write();
    }
  }
  BumpVersions(tree_, Written());
  return status;
}

}  // namespace leafpack::internal
