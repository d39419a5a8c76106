#include "distributed/tree/all_reduce.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

#include "distributed/core/error.h"
#include "distributed/tree/bucket_pipeline.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/frame.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/operation.h"
#include "tensordict/bucket/packer.h"

namespace leafpack {
namespace internal {
namespace {

// Buckets of the automatic plan that together are no larger share an operation of a backend that packs
// for itself.
constexpr int64_t kSharedOperationBytes = int64_t{16} << 20;

CallOptions CommonOptions(const AllReduceOptions& options) {
  return {.timeout = options.timeout,
          .name = options.name,
          .check = options.check,
          .max_in_flight_bytes = options.max_in_flight_bytes,
          .interrupt = options.interrupt,
          .on_failure = options.on_failure,
          .stats = options.stats};
}

std::vector<std::string> PathsDone(const CallPlan& plan, const BucketPlan& buckets,
                                   const std::vector<size_t>& done) {
  std::vector<bool> is_done(plan.layout.size(), false);
  for (const size_t i : done) {
    for (const Slot& slot : buckets.buckets[i].slots) is_done[static_cast<size_t>(slot.leaf)] = true;
  }
  std::vector<std::string> paths;
  for (size_t i = 0; i < plan.layout.size(); ++i) {
    const int64_t alias = plan.layout.leaf(i).alias_of;
    if (is_done[alias < 0 ? i : static_cast<size_t>(alias)]) {
      paths.push_back(plan.layout.path(i).ToString());
    }
  }
  return paths;
}

// The buckets of one all-reduce through the pipeline.
class ReducePhase : public DataPhase {
 public:
  ReducePhase(const CallPlan& plan, const FlatTree& tree, std::shared_ptr<BufferPool> pool,
              Call& call, DataContext& context, BucketPipeline::Options options,
              CollectiveStats& stats, std::shared_ptr<OperationRun> run)
      : plan_(plan),
        tree_(tree),
        buckets_(plan.buckets_for(call.soft_digests_agree())),
        restore_(options.stage),
        run_(std::move(run)),
        packer_(std::move(pool)),
        pipeline_(buckets_, tree, packer_, call, context, WithBuckets(std::move(options)), stats) {
    stats.buckets = static_cast<int64_t>(buckets_.buckets.size());
  }

  absl::Status Run() override { return pipeline_.Run(); }
  absl::Status Commit() override { return restore_ ? pipeline_.Commit() : absl::OkStatus(); }
  void Close(bool ran, bool ok) override {
    if (!ran) pipeline_.Settle();
    if (ok || !restore_) BumpVersions(tree_);
  }
  std::vector<std::string> PathsDone() const override {
    return internal::PathsDone(plan_, buckets_, pipeline_.done());
  }
  bool TreeUnchanged() const override {
    return restore_ || (pipeline_.done().empty() && !pipeline_.wrote_partly());
  }

 private:
  // Tells the handle of each of its buckets that is done: it knows those of plan.buckets.
  BucketPipeline::Options WithBuckets(BucketPipeline::Options options) {
    if (run_ == nullptr) return options;
    for (const Bucket& bucket : plan_.buckets.buckets) missing_.push_back(bucket.slots.size());
    options.on_bucket_done = [this](size_t i) {
      for (const Slot& slot : buckets_.buckets[i].slots) {
        const size_t known = plan_.bucket_of[static_cast<size_t>(slot.leaf)];
        if (--missing_[known] == 0) run_->MarkBucketDone(known);
      }
    };
    return options;
  }

  const CallPlan& plan_;
  const FlatTree& tree_;
  const BucketPlan& buckets_;
  const bool restore_;
  const std::shared_ptr<OperationRun> run_;
  std::vector<size_t> missing_;  // of each bucket that the handle knows: leaves without result
  Packer packer_;
  BucketPipeline pipeline_;
};

class AllReduceOperation : public Operation {
 public:
  AllReduceOperation(FlatTree tree, const Group& group, const AllReduceOptions& options)
      : Operation(group, CollectiveKind::kAllReduce, "all_reduce", CommonOptions(options)),
        arguments_{.op = options.op.kind,
                   .bucketing = options.bucketing,
                   .leaves = options.leaves.kind(),
                   .on_failure = options.on_failure,
                   .name = options.name},
        op_(options.op),
        filter_(options.leaves),
        tree_(std::move(tree)),
        cache_(PlanCache::Of(group.engine())) {}

  size_t num_buckets() const override { return plan_->buckets.buckets.size(); }
  int64_t bucket_bytes(size_t index) const override { return plan_->buckets.buckets[index].bytes; }
  std::vector<std::string> bucket_paths(size_t index) const override {
    std::vector<std::string> paths;
    for (const Slot& slot : plan_->buckets.buckets[index].slots) {
      paths.push_back(plan_->layout.path(static_cast<size_t>(slot.leaf)).ToString());
    }
    return paths;
  }
  std::vector<std::string> skipped_paths() const override {
    std::vector<std::string> paths;
    for (const NonTensorLeaf& skipped : tree_.non_tensors) {
      paths.push_back((*tree_.paths)[skipped.leaf].ToString());
    }
    return paths;
  }

 protected:
  absl::Status Prepare(CallSpec& spec) override;
  absl::Status FinishFrame(absl::Span<const char> frame) override;
  std::unique_ptr<DataPhase> StartData(DataContext& context,
                                       const InterruptCheck& interrupt) override;

 private:
  const CallArguments arguments_;
  const ReduceOp op_;
  const LeafFilter filter_;
  FlatTree tree_;  // since Prepare: the leaves that take part
  const std::shared_ptr<PlanCache> cache_;
  std::shared_ptr<const CallPlan> plan_;
};

absl::Status AllReduceOperation::Prepare(CallSpec& spec) {
  tree_ = cache_->Select(std::move(tree_), filter_);
  absl::StatusOr<std::shared_ptr<const CallPlan>> plan = cache_->Get(tree_, arguments_, engine());
  if (!plan.ok()) return plan.status();
  plan_ = *std::move(plan);
  if (absl::Status status = CheckAutograd(tree_); !status.ok()) return status;
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
  spec.restore = arguments_.on_failure == OnFailure::kRestore && !plan_->is_frame;
  spec.is_frame = plan_->is_frame;
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

absl::Status AllReduceOperation::FinishFrame(absl::Span<const char> frame) {
  absl::Status status;
  if (size() > 1) {
    status = UnpackFrame(*plan_, frame, tree_);
  } else if (op_.kind == ReduceOpKind::kPremulSum) {
    // Alone, only the own factor changes anything.
    absl::StatusOr<std::string> scaled = PackFrame(*plan_, tree_, op_);
    status = scaled.status();
    if (scaled.ok()) status = UnpackFrame(*plan_, *scaled, tree_);
  }
  BumpVersions(tree_);
  return status;
}

std::unique_ptr<DataPhase> AllReduceOperation::StartData(DataContext& context,
                                                         const InterruptCheck& interrupt) {
  BucketPipeline::Options options;
  options.op = op_;
  options.order = call().soft_digests_agree() ? PackOrder::kMemory : PackOrder::kLogical;
  options.leaf_views = engine().backend().PacksForItself();
  // Small buckets of other dtypes ride along; who asks for one reduction per leaf gets it.
  if (arguments_.bucketing.mode() == Bucketing::Mode::kAuto) {
    options.shared_operation_bytes = kSharedOperationBytes;
  }
  options.stage = arguments_.on_failure == OnFailure::kRestore;
  options.max_in_flight_bytes = this->options().max_in_flight_bytes;
  options.interrupt = interrupt;
  return std::make_unique<ReducePhase>(*plan_, tree_, cache_->pool(), call(), context,
                                       std::move(options), stats_, run());
}

}  // namespace
}  // namespace internal

absl::Status AllReduce(const FlatTree& tree, const Group& group, const AllReduceOptions& options) {
  internal::AllReduceOperation operation(tree, group, options);
  return internal::RunNow(operation);
}

absl::Status AllReduce(const TensorDict& tree, const Group& group,
                       const AllReduceOptions& options) {
  return AllReduce(Flatten(tree), group, options);
}

absl::StatusOr<TreeWork> AllReduceAsync(const FlatTree& tree, const Group& group,
                                        const AllReduceOptions& options) {
  return internal::RunAsync(std::make_shared<internal::AllReduceOperation>(tree, group, options));
}

absl::StatusOr<TreeWork> AllReduceAsync(const TensorDict& tree, const Group& group,
                                        const AllReduceOptions& options) {
  return AllReduceAsync(Flatten(tree), group, options);
}

}  // namespace leafpack
