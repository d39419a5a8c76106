#include "distributed/tree/all_reduce.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/error.h"
#include "distributed/tree/bucket_pipeline.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/frame.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/stopwatch.h"
#include "distributed/tree/tree_work_state.h"

namespace leafpack {
namespace internal {
namespace {

constexpr size_t kMaxNameBytes = 256;

// Buckets of the automatic plan that together are no larger share an operation of a backend that packs
// for itself.
constexpr int64_t kSharedOperationBytes = int64_t{16} << 20;

std::string CallName(std::string_view name) {
  return name.empty() ? "all_reduce" : absl::StrCat("all_reduce '", name, "'");
}

// One all-reduce from its arguments to its end.
class AllReduceOperation : public TreeOperation {
 public:
  // Checks, plans and posts. On an error the other ranks have been told.
  static absl::StatusOr<std::shared_ptr<AllReduceOperation>> Post(FlatTree tree,
                                                                  const Group& group,
                                                                  const AllReduceOptions& options,
                                                                  bool async);

  std::optional<absl::Status> RunUntil(absl::Time until, const InterruptCheck& interrupt) override;
  void Cancel() override { call_->Cancel(); }
  AllReduceStats stats() const override { return stats_; }
  size_t num_buckets() const override { return plan_->buckets.buckets.size(); }
  int64_t bucket_bytes(size_t index) const override { return plan_->buckets.buckets[index].bytes; }
  std::vector<std::string> bucket_paths(size_t index) const override {
    return PathsOf(plan_->buckets.buckets[index]);
  }
  std::vector<std::string> skipped_paths() const override {
    std::vector<std::string> paths;
    for (const NonTensorLeaf& skipped : tree_.non_tensors) {
      paths.push_back((*tree_.paths)[skipped.leaf].ToString());
    }
    return paths;
  }

  // Whether it has a data phase, i.e. messages beside the control channel.
  bool has_data() const { return !plan_->is_frame; }
  void set_run(std::weak_ptr<OperationRun> run) { run_ = std::move(run); }

 private:
  AllReduceOperation(const Group& group, const AllReduceOptions& options)
      : group_size_(group.size()),
        where_(absl::StrCat(CallName(options.name), " on rank ", group.global_rank().value())),
        op_(options.op),
        restore_(options.on_failure == OnFailure::kRestore),
        leaf_views_(group.backend().PacksForItself()),
        max_in_flight_bytes_(options.max_in_flight_bytes) {}

  absl::Status Prepare(FlatTree tree, const Group& group, const AllReduceOptions& options);
  absl::Status FinishFrame();
  absl::Status RunData(const InterruptCheck& interrupt);
  std::vector<std::string> PathsOf(const Bucket& bucket) const;
  std::vector<std::string> PathsDone(const BucketPlan& plan, const std::vector<size_t>& done) const;

  const int group_size_;
  const std::string where_;
  const ReduceOp op_;
  const bool restore_;
  const bool leaf_views_;
  const int64_t max_in_flight_bytes_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  FlatTree tree_;  // the leaves that take part
  std::shared_ptr<const CallPlan> plan_;
  std::shared_ptr<PlanCache> cache_;
  std::shared_ptr<Call> call_;
  std::weak_ptr<OperationRun> run_;  // told of each bucket; none for a synchronous call
  AllReduceStats stats_;
};

absl::Status AllReduceOperation::Prepare(FlatTree tree, const Group& group,
                                         const AllReduceOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout must be > 0, got ", absl::FormatDuration(options.timeout)));
  }
  if (options.max_in_flight_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_in_flight_bytes must be > 0, got ",
                                                   options.max_in_flight_bytes));
  }
  if (options.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("name has ", options.name.size(),
                                                   " bytes; at most ", kMaxNameBytes,
                                                   " are allowed"));
  }
  tree_ = cache_->Select(std::move(tree), options.leaves);
  absl::StatusOr<std::shared_ptr<const CallPlan>> plan =
      cache_->Get(tree_,
                  {.op = options.op.kind,
                   .bucketing = options.bucketing,
                   .leaves = options.leaves.kind(),
                   .on_failure = options.on_failure,
                   .name = options.name},
                  group.engine());
  if (!plan.ok()) return plan.status();
  plan_ = *std::move(plan);
  return CheckAutograd(tree_);
}

absl::StatusOr<std::shared_ptr<AllReduceOperation>> AllReduceOperation::Post(
    FlatTree tree, const Group& group, const AllReduceOptions& options, bool async) {
  Engine& engine = group.engine();
  std::shared_ptr<AllReduceOperation> operation(new AllReduceOperation(group, options));
  operation->cache_ = PlanCache::Of(engine);
  const bool own_timeout =
      options.timeout > absl::ZeroDuration() && options.timeout != absl::InfiniteDuration();
  const absl::Time deadline =
      absl::Now() + (own_timeout ? options.timeout : group.options().timeout);
  CallSpec spec;
  {
    ScopedStopwatch watch(operation->stats_.prepare);
    absl::Status status = operation->Prepare(std::move(tree), group, options);
    if (status.ok() && operation->plan_->is_frame && engine.size() > 1) {
      absl::StatusOr<std::string> payload =
          PackFrame(*operation->plan_, operation->tree_, options.op);
      status = payload.status();
      if (payload.ok()) spec.payload = *std::move(payload);
    }
    if (!status.ok()) {
      return engine.Refuse(CollectiveKind::kAllReduce, AnnotateStatus(status, operation->where_),
                           deadline);
    }
  }
  const std::shared_ptr<const CallPlan>& plan = operation->plan_;
  operation->stats_.skipped = static_cast<int64_t>(operation->tree_.non_tensors.size());
  operation->stats_.leaves =
      static_cast<int64_t>(operation->tree_.size()) - operation->stats_.skipped;
  operation->stats_.bytes = plan->layout.total_bytes();
  operation->stats_.buckets = static_cast<int64_t>(plan->buckets.buckets.size());
  spec.kind = CollectiveKind::kAllReduce;
  spec.name = operation->where_;  // begins the text of every error of the call
  spec.label = options.name;
  spec.leaves = operation->stats_.leaves;
  spec.bytes = operation->stats_.bytes;
  spec.digest = plan->digest;
  spec.soft_digest = plan->soft_digest;
  spec.describe = [plan, backend = std::string(engine.backend().name())] {
    return plan->Describe(backend);
  };
  spec.deadline = deadline;
  spec.restore = operation->restore_ && !plan->is_frame;  // a frame is all or nothing anyway
  // Host backends die of what an unchecked call lets through, so theirs are always checked.
  spec.check = engine.backend().MustEnqueueInCallerThread() ? options.check : CheckMode::kAlways;
  spec.async = async;
  spec.is_frame = plan->is_frame;
  if (plan->is_frame) {
    if (engine.size() > 1) {
      spec.reduce = MakeFrameReducer(plan);
    } else {
      spec.reduce = [](absl::Span<const absl::Span<const char>>, absl::Span<char>) {};
    }
  }
  absl::StatusOr<std::shared_ptr<Call>> call = engine.Post(std::move(spec));
  if (!call.ok()) return call.status();
  operation->call_ = *std::move(call);
  return operation;
}

std::optional<absl::Status> AllReduceOperation::RunUntil(absl::Time until,
                                                         const InterruptCheck& interrupt) {
  absl::StatusOr<bool> decided = true;
  {
    ScopedStopwatch watch(stats_.agree);
    if (until == absl::InfiniteFuture()) {
      if (absl::Status status = call_->AwaitDecision(interrupt); !status.ok()) decided = status;
    } else {
      decided = call_->AwaitDecisionUntil(until, interrupt);
    }
  }
  if (decided.ok() && !*decided) return std::nullopt;
  absl::Status status = decided.status();
  if (status.ok()) status = has_data() ? RunData(interrupt) : FinishFrame();
  stats_.total =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return status;
}

absl::Status AllReduceOperation::FinishFrame() {
  ScopedStopwatch watch(stats_.unpack);
  absl::Status status;
  if (group_size_ > 1) {
    status = UnpackFrame(*plan_, call_->frame_result(), tree_);
  } else if (op_.kind == ReduceOpKind::kPremulSum) {
    // Alone, only the own factor changes anything.
    absl::StatusOr<std::string> scaled = PackFrame(*plan_, tree_, op_);
    status = scaled.status();
    if (scaled.ok()) status = UnpackFrame(*plan_, *scaled, tree_);
  }
  BumpVersions(tree_);
  return status.ok() ? status : AnnotateStatus(status, where_);
}

absl::Status AllReduceOperation::RunData(const InterruptCheck& interrupt) {
  absl::StatusOr<std::shared_ptr<DataContext>> context = call_->EnterData(interrupt);
  if (!context.ok()) return context.status();
  const bool strides_agree = call_->soft_digests_agree();
  const BucketPlan& buckets = plan_->buckets_for(strides_agree);
  stats_.buckets = static_cast<int64_t>(buckets.buckets.size());
  const std::shared_ptr<OperationRun> run = run_.lock();
  BucketPipeline::Options options;
  options.op = op_;
  options.order = strides_agree ? PackOrder::kMemory : PackOrder::kLogical;
  options.stage = restore_;
  options.leaf_views = leaf_views_;
  // Small buckets of other dtypes ride along; who asks for one reduction per leaf gets it.
  if (plan_->arguments.bucketing.mode() == Bucketing::Mode::kAuto) {
    options.shared_operation_bytes = kSharedOperationBytes;
  }
  options.max_in_flight_bytes = max_in_flight_bytes_;
  options.interrupt = interrupt;
  std::vector<size_t> missing;  // of each bucket that the handle knows: leaves without result
  if (run != nullptr) {
    for (const Bucket& bucket : plan_->buckets.buckets) missing.push_back(bucket.slots.size());
    options.on_bucket_done = [&](size_t i) {
      for (const Slot& slot : buckets.buckets[i].slots) {
        const size_t known = plan_->bucket_of[static_cast<size_t>(slot.leaf)];
        if (--missing[known] == 0) run->MarkBucketDone(known);
      }
    };
  }
  Packer packer(cache_->pool());
  BucketPipeline pipeline(buckets, tree_, packer, *call_, **context, std::move(options), stats_);

  absl::Status status = pipeline.Run();
  const bool ran = status.ok();
  status = call_->FinishData(
      std::move(status), ran ? std::vector<std::string>() : PathsDone(buckets, pipeline.done()),
      interrupt);
  if (status.ok() && restore_) status = pipeline.Commit();
  if (!ran) pipeline.Settle();
  if (status.ok() || !restore_) BumpVersions(tree_);
  if (status.ok()) return status;
  ErrorDetails details = GetErrorDetails(status);
  details.tree_unchanged = restore_ || (pipeline.done().empty() && !pipeline.wrote_partly());
  // Also where this rank had got through and the call failed elsewhere.
  if (!restore_) details.paths_done = PathsDone(buckets, pipeline.done());
  return WithErrorDetails(std::move(status), details);
}

std::vector<std::string> AllReduceOperation::PathsOf(const Bucket& bucket) const {
  std::vector<std::string> paths;
  paths.reserve(bucket.slots.size());
  for (const Slot& slot : bucket.slots) {
    paths.push_back(plan_->layout.path(static_cast<size_t>(slot.leaf)).ToString());
  }
  return paths;
}

std::vector<std::string> AllReduceOperation::PathsDone(const BucketPlan& plan,
                                                       const std::vector<size_t>& done) const {
  std::vector<bool> is_done(plan_->layout.size(), false);
  for (const size_t i : done) {
    for (const Slot& slot : plan.buckets[i].slots) is_done[static_cast<size_t>(slot.leaf)] = true;
  }
  std::vector<std::string> paths;
  for (size_t i = 0; i < plan_->layout.size(); ++i) {
    const int64_t alias = plan_->layout.leaf(i).alias_of;
    if (is_done[alias < 0 ? i : static_cast<size_t>(alias)]) {
      paths.push_back(plan_->layout.path(i).ToString());
    }
  }
  return paths;
}

}  // namespace
}  // namespace internal

namespace internal {
namespace {

absl::Status Run(FlatTree tree, const Group& group, const AllReduceOptions& options) {
  absl::StatusOr<std::shared_ptr<AllReduceOperation>> operation =
      AllReduceOperation::Post(std::move(tree), group, options, /*async=*/false);
  if (!operation.ok()) return operation.status();
  const std::optional<absl::Status> status =
      (*operation)->RunUntil(absl::InfiniteFuture(), options.interrupt);
  if (options.stats != nullptr) *options.stats = (*operation)->stats();
  return status.value_or(absl::InternalError("a wait without end came back without a result"));
}

absl::StatusOr<TreeWork> Start(FlatTree tree, const Group& group,
                               const AllReduceOptions& options) {
  absl::StatusOr<std::shared_ptr<AllReduceOperation>> operation =
      AllReduceOperation::Post(std::move(tree), group, options, /*async=*/true);
  if (!operation.ok()) return operation.status();
  auto run = std::make_shared<OperationRun>(group, *operation);
  (*operation)->set_run(run);
  const bool has_data = (*operation)->has_data();
  return TreeWorkState::Start(std::move(run), /*in_worker=*/has_data);
}

}  // namespace
}  // namespace internal

absl::Status AllReduce(const FlatTree& tree, const Group& group, const AllReduceOptions& options) {
  return internal::Run(tree, group, options);
}

absl::Status AllReduce(const TensorDict& tree, const Group& group,
                       const AllReduceOptions& options) {
  return internal::Run(Flatten(tree), group, options);
}

absl::StatusOr<TreeWork> AllReduceAsync(const FlatTree& tree, const Group& group,
                                        const AllReduceOptions& options) {
  return internal::Start(tree, group, options);
}

absl::StatusOr<TreeWork> AllReduceAsync(const TensorDict& tree, const Group& group,
                                        const AllReduceOptions& options) {
  return internal::Start(Flatten(tree), group, options);
}

absl::Status RefuseAllReduce(const Group& group, absl::Status reason) {
  return group.engine().Refuse(CollectiveKind::kAllReduce, std::move(reason),
                               absl::Now() + group.options().timeout);
}

}  // namespace leafpack
