#include "distributed/tree/reduce.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "distributed/core/error.h"
#include "distributed/tree/exchange_reduce.h"
#include "distributed/tree/reduce_rounds.h"
#include "distributed/tree/reducing_operation.h"

namespace leafpack {
namespace internal {
namespace {

class ExchangingOperation : public ReducingOperation {
 protected:
  ExchangingOperation(CollectiveKind kind, std::string_view kind_name, std::vector<FlatTree> trees,
                      const Group& group, const AllReduceOptions& options)
      : ReducingOperation(kind, kind_name, std::move(trees), group, options) {
    // It decides in which order the ranks start their exchanges, which must be the same.
    arguments_.max_in_flight_bytes = options.max_in_flight_bytes;
  }

  virtual std::vector<ReduceRound> Rounds(const BucketPlan& buckets) const = 0;

  std::unique_ptr<DataPhase> StartData(DataContext& context,
                                       const InterruptCheck& interrupt) override {
    const bool strides_agree = call().soft_digests_agree();
    const BucketPlan& buckets = plan_->buckets_for(strides_agree);
    ExchangeReduce::Options options;
    options.op = op_;
    options.order = strides_agree ? PackOrder::kMemory : PackOrder::kLogical;
    options.stage = restore();
    options.max_in_flight_bytes = arguments_.max_in_flight_bytes;
    options.interrupt = interrupt;
    options.written = Written();
    options.rank = rank();
    options.ranks = size();
    options.root = arguments_.root;
    return std::make_unique<ExchangeReduce>(*plan_, buckets, Rounds(buckets), tree_, *sparse_,
                                            cache_->pool(), call(), context, std::move(options),
                                            stats_);
  }
};

class ReduceOperation : public ExchangingOperation {
 public:
  ReduceOperation(FlatTree tree, Root root, const Group& group, const ReduceOptions& options)
      : ExchangingOperation(CollectiveKind::kReduce, "reduce", {std::move(tree)}, group, options),
        root_(root) {}

 protected:
  absl::Status Prepare(CallSpec& spec) override {
    const absl::StatusOr<GroupRank> root = root_.In(group());
    if (!root.ok()) return root.status();
    arguments_.root = root->value();
    return ReducingOperation::Prepare(spec);
  }
  LeafRange Written() const override {
    return {.begin = 0, .end = rank() == arguments_.root ? tree_.size() : 0};
  }
  int OwnerOf(size_t /*leaf*/) const override { return arguments_.root; }
  std::vector<ReduceRound> Rounds(const BucketPlan& buckets) const override {
    return PlanReduceRounds(buckets, size(), arguments_.root);
  }

 private:
  const Root root_;
};

class ReduceScatterOperation : public ExchangingOperation {
 public:
  ReduceScatterOperation(std::vector<FlatTree> trees, const Group& group,
                         const ReduceOptions& options)
      : ExchangingOperation(CollectiveKind::kReduceScatter, "reduce_scatter", std::move(trees), group,
                            options) {}

 protected:
  absl::Status Prepare(CallSpec& spec) override {
    if (trees_.size() != static_cast<size_t>(size())) {
      return absl::InvalidArgumentError(absl::StrCat("takes one tree for each of the ", size(),
                                                     " ranks, got ", trees_.size()));
    }
    if (absl::Status status = ReducingOperation::Prepare(spec); !status.ok()) return status;
    for (size_t i = 0; i < plan_->layout.size(); ++i) {
      const int64_t first = plan_->layout.leaf(i).alias_of;
      if (first < 0 || TreeOf(static_cast<size_t>(first)) == TreeOf(i)) continue;
      ErrorDetails details;
      details.path = plan_->layout.path(i).ToString();
      return WithErrorDetails(
          absl::InvalidArgumentError(absl::StrCat(
              "leaf ", details.path, ": is the memory of ",
              plan_->layout.path(static_cast<size_t>(first)).ToString(),
              "; trees that go to different ranks must not share memory")),
          details);
    }
    return absl::OkStatus();
  }
  LeafRange Written() const override {
    const auto own = static_cast<size_t>(rank());
    return {.begin = plan_->tree_begin[own], .end = plan_->tree_begin[own + 1]};
  }
  int OwnerOf(size_t leaf) const override { return TreeOf(leaf); }
  std::vector<ReduceRound> Rounds(const BucketPlan& buckets) const override {
    std::vector<int> owners;
    for (const Bucket& bucket : buckets.buckets) {
      owners.push_back(TreeOf(static_cast<size_t>(bucket.slots[0].leaf)));
    }
    return PlanReduceScatterRounds(buckets, owners, size());
  }

 private:
  int TreeOf(size_t leaf) const {
    const std::vector<size_t>& begin = plan_->tree_begin;
    return static_cast<int>(std::upper_bound(begin.begin(), begin.end(), leaf) - begin.begin()) - 1;
  }
};

std::vector<FlatTree> FlattenAll(absl::Span<const TensorDict> trees) {
  std::vector<FlatTree> flat;
  flat.reserve(trees.size());
  for (const TensorDict& tree : trees) flat.push_back(Flatten(tree));
  return flat;
}

}  // namespace
}  // namespace internal

absl::Status Reduce(const FlatTree& tree, Root root, const Group& group,
                    const ReduceOptions& options) {
  internal::ReduceOperation operation(tree, root, group, options);
  return internal::RunNow(operation);
}

absl::Status Reduce(const TensorDict& tree, Root root, const Group& group,
                    const ReduceOptions& options) {
  return Reduce(Flatten(tree), root, group, options);
}

absl::StatusOr<TreeWork> ReduceAsync(const FlatTree& tree, Root root, const Group& group,
                                     const ReduceOptions& options) {
  return internal::RunAsync(
      std::make_shared<internal::ReduceOperation>(tree, root, group, options));
}

absl::StatusOr<TreeWork> ReduceAsync(const TensorDict& tree, Root root, const Group& group,
                                     const ReduceOptions& options) {
  return ReduceAsync(Flatten(tree), root, group, options);
}

absl::Status ReduceScatter(absl::Span<const FlatTree> trees, const Group& group,
                           const ReduceOptions& options) {
  internal::ReduceScatterOperation operation({trees.begin(), trees.end()}, group, options);
  return internal::RunNow(operation);
}

absl::Status ReduceScatter(absl::Span<const TensorDict> trees, const Group& group,
                           const ReduceOptions& options) {
  return ReduceScatter(internal::FlattenAll(trees), group, options);
}

absl::StatusOr<TreeWork> ReduceScatterAsync(absl::Span<const FlatTree> trees, const Group& group,
                                            const ReduceOptions& options) {
  return internal::RunAsync(std::make_shared<internal::ReduceScatterOperation>(
      std::vector<FlatTree>(trees.begin(), trees.end()), group, options));
}

absl::StatusOr<TreeWork> ReduceScatterAsync(absl::Span<const TensorDict> trees, const Group& group,
                                            const ReduceOptions& options) {
  return ReduceScatterAsync(internal::FlattenAll(trees), group, options);
}

}  // namespace leafpack
