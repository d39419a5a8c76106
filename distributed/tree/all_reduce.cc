#include "distributed/tree/all_reduce.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "distributed/tree/arena_leaves.h"
#include "distributed/tree/arena_phase.h"
#include "distributed/tree/bucket_pipeline.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/reducing_operation.h"
#include "distributed/tree/sparse_reduce.h"
#include "tensordict/bucket/packer.h"

namespace leafpack {
namespace internal {
namespace {

// Buckets of the automatic plan that together are no larger share an operation of a backend that packs
// for itself.
constexpr int64_t kSharedOperationBytes = int64_t{16} << 20;

// Tells the handle of a call of each of its buckets that is done: it knows those of plan.buckets.
class BucketsDone {
 public:
  // `run` may be null. References outlive this.
  BucketsDone(const CallPlan& plan, const BucketPlan& buckets, std::shared_ptr<OperationRun> run)
      : plan_(plan), buckets_(buckets), run_(std::move(run)) {
    if (run_ == nullptr) return;
    for (const Bucket& bucket : plan.buckets.buckets) missing_.push_back(bucket.slots.size());
  }
  void Mark(size_t i) {
    if (run_ == nullptr) return;
    for (const Slot& slot : buckets_.buckets[i].slots) {
      const size_t known = plan_.bucket_of[static_cast<size_t>(slot.leaf)];
      if (--missing_[known] == 0) run_->MarkBucketDone(known);
    }
  }

 private:
  const CallPlan& plan_;
  const BucketPlan& buckets_;
  const std::shared_ptr<OperationRun> run_;
  std::vector<size_t> missing_;  // of each bucket that the handle knows: leaves without result
};

// The buckets of one all-reduce through the pipeline, its sparse leaves before.
class ReducePhase : public DataPhase {
 public:
  ReducePhase(const CallPlan& plan, const FlatTree& tree, std::shared_ptr<BufferPool> pool,
              SparseReduce& sparse, Call& call, DataContext& context,
              BucketPipeline::Options options, CollectiveStats& stats,
              std::shared_ptr<OperationRun> run)
      : plan_(plan),
        tree_(tree),
        buckets_(plan.buckets_for(call.soft_digests_agree())),
        restore_(options.stage),
        done_(plan, buckets_, std::move(run)),
        sparse_(sparse),
        context_(context),
        waiter_(call, options.interrupt, stats.communicate),
        packer_(std::move(pool)),
        pipeline_(buckets_, tree, packer_, call, context, WithHooks(std::move(options)), stats) {
    stats.buckets = static_cast<int64_t>(buckets_.buckets.size());
  }

  absl::Status Run() override {
    if (plan_.sparse.empty()) return pipeline_.Run();
    absl::Status status = sparse_.Run(context_, waiter_);
    if (status.ok() && !restore_) status = sparse_.Write();
    if (!status.ok()) return status;
    return pipeline_.Run();
  }
  absl::Status Commit() override {
    if (!restore_) return absl::OkStatus();
    if (absl::Status status = sparse_.Write(); !status.ok()) return status;
    return pipeline_.Commit();
  }
  void Close(bool ran, bool ok) override {
    if (!ran) pipeline_.Settle();
    if (!bumped_ && (ok || !restore_)) BumpVersions(tree_);
  }
  std::vector<std::string> PathsDone() const override {
    std::vector<std::string> paths = sparse_.PathsDone();
    std::ranges::move(internal::PathsDone(plan_, buckets_, pipeline_.done()),
                      std::back_inserter(paths));
    return paths;
  }
  bool TreeUnchanged() const override {
    // With restore only Commit writes, and it may fail half-way.
    return pipeline_.done().empty() && !pipeline_.wrote_partly() && !sparse_.touched();
  }

 private:
  BucketPipeline::Options WithHooks(BucketPipeline::Options options) {
    // Counters are far apart in memory: on many small leaves they take a tenth of the call, at its end.
    if (!restore_) {
      options.on_enqueued = [this] {
        BumpVersions(tree_);
        bumped_ = true;
      };
    }
    options.on_bucket_done = [this](size_t i) { done_.Mark(i); };
    return options;
  }

  const CallPlan& plan_;
  const FlatTree& tree_;
  const BucketPlan& buckets_;
  const bool restore_;
  bool bumped_ = false;
  BucketsDone done_;
  SparseReduce& sparse_;
  DataContext& context_;
  DataWaiter waiter_;
  Packer packer_;
  BucketPipeline pipeline_;
};

// The same where leaves stand in arenas: in memory order, without sparse or staged leaves.
class ArenaPhase : public DataPhase {
 public:
  ArenaPhase(const CallPlan& plan, const FlatTree& tree, Call& call, ArenaContext& arenas,
             ArenaPipeline::Options options, CollectiveStats& stats,
             std::shared_ptr<OperationRun> run)
      : plan_(plan),
        tree_(tree),
        buckets_(plan.memory_buckets),
        done_(plan, buckets_, std::move(run)),
        pipeline_(buckets_, tree, call, arenas, WithHooks(std::move(options)), stats) {
    stats.buckets = static_cast<int64_t>(buckets_.buckets.size());
  }

  absl::Status Run() override { return pipeline_.Run(); }
  void Close(bool ran, bool /*ok*/) override {
    if (!ran) pipeline_.Settle();
    if (!bumped_) BumpVersions(tree_);
  }
  std::vector<std::string> PathsDone() const override {
    return internal::PathsDone(plan_, buckets_, pipeline_.done());
  }
  bool TreeUnchanged() const override {
    return pipeline_.done().empty() && !pipeline_.wrote_partly();
  }

 private:
  ArenaPipeline::Options WithHooks(ArenaPipeline::Options options) {
    options.on_enqueued = [this] {
      BumpVersions(tree_);
      bumped_ = true;
    };
    options.on_bucket_done = [this](size_t i) { done_.Mark(i); };
    return options;
  }

  const CallPlan& plan_;
  const FlatTree& tree_;
  const BucketPlan& buckets_;
  bool bumped_ = false;
  BucketsDone done_;
  ArenaPipeline pipeline_;
};

class AllReduceOperation : public ReducingOperation {
 public:
  AllReduceOperation(FlatTree tree, const Group& group, const AllReduceOptions& options)
      : ReducingOperation(CollectiveKind::kAllReduce, "all_reduce", {std::move(tree)}, group,
                          options) {}

  size_t num_buckets() const override { return plan_->buckets.buckets.size(); }
  int64_t bucket_bytes(size_t index) const override { return plan_->buckets.buckets[index].bytes; }
  std::vector<std::string> bucket_paths(size_t index) const override {
    std::vector<std::string> paths;
    for (const Slot& slot : plan_->buckets.buckets[index].slots) {
      paths.push_back(plan_->layout.path(static_cast<size_t>(slot.leaf)).ToString());
    }
    return paths;
  }

 protected:
  absl::Status Prepare(CallSpec& spec) override;
  LeafRange Written() const override { return {}; }
  int OwnerOf(size_t /*leaf*/) const override { return -1; }
  std::unique_ptr<DataPhase> StartData(DataContext& context,
                                       const InterruptCheck& interrupt) override;

 private:
  ArenaPlaces places_;  // since Prepare
};

absl::Status AllReduceOperation::Prepare(CallSpec& spec) {
  if (absl::Status status = ReducingOperation::Prepare(spec); !status.ok()) return status;
  // Ranks whose leaves stand in different places find that the soft digests differ, and go the ordinary way.
  // Staged and scaled leaves are copies anyway.
  if (!plan_->is_frame && plan_->sparse.empty() && !restore() && op_.kind != ReduceOpKind::kPremulSum) {
    places_ = FindPlaces(tree_.leaves, cache_);
    spec.soft_digest ^= places_.digest;
  }
  return absl::OkStatus();
}

std::unique_ptr<DataPhase> AllReduceOperation::StartData(DataContext& context,
                                                         const InterruptCheck& interrupt) {
  // Small buckets of other dtypes ride along; who asks for one reduction per leaf gets it.
  const int64_t shared_operation_bytes =
      arguments_.bucketing.mode() == Bucketing::Mode::kAuto ? kSharedOperationBytes : 0;
  if (call().soft_digests_agree() && !places_.arenas.empty()) {
    if (ArenaContext* arenas = AsArenaContext(context)) {
      ArenaPipeline::Options options;
      options.op = op_;
      options.leaf_arenas = places_.arenas;
      options.whole = &places_.whole;
      options.shared_operation_bytes = shared_operation_bytes;
      options.interrupt = interrupt;
      return std::make_unique<ArenaPhase>(*plan_, tree_, call(), *arenas, std::move(options),
                                          stats_, run());
    }
  }
  BucketPipeline::Options options;
  options.op = op_;
  options.order = call().soft_digests_agree() ? PackOrder::kMemory : PackOrder::kLogical;
  options.stage = restore();
  options.leaf_views = engine().backend().PacksForItself();
  options.shared_operation_bytes = shared_operation_bytes;
  options.max_in_flight_bytes = this->options().max_in_flight_bytes;
  options.interrupt = interrupt;
  return std::make_unique<ReducePhase>(*plan_, tree_, cache_->pool(), *sparse_, call(),
                                       context, std::move(options), stats_, run());
}

}  // namespace
}  // namespace internal

absl::Status AllReduce(const FlatTree& tree, const Group& group, const AllReduceOptions& options) {
  internal::AllReduceOperation operation(tree, group, options);
  return internal::RunNow(operation);
}

absl::Status AllReduce(const TensorDict& tree, const Group& group,
                       const AllReduceOptions& options) {
  internal::AllReduceOperation operation(Flatten(tree), group, options);
  return internal::RunNow(operation);
}

absl::StatusOr<TreeWork> AllReduceAsync(const FlatTree& tree, const Group& group,
                                        const AllReduceOptions& options) {
  return internal::RunAsync(std::make_shared<internal::AllReduceOperation>(tree, group, options));
}

absl::StatusOr<TreeWork> AllReduceAsync(const TensorDict& tree, const Group& group,
                                        const AllReduceOptions& options) {
  return internal::RunAsync(
      std::make_shared<internal::AllReduceOperation>(Flatten(tree), group, options));
}

}  // namespace leafpack
