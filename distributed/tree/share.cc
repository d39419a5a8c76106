#include "distributed/tree/share.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "distributed/core/arena.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/engine.h"
#include "distributed/core/error.h"
#include "distributed/tree/arena_leaves.h"
#include "distributed/tree/call_arguments.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/data_wait.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/operation.h"

namespace leafpack {
namespace internal {
namespace {

// Where the leaves of a layout stand in an arena: those of one dtype together, in canonical order. A pure
// function of what the layout's digest covers.
struct Placement {
  std::vector<int64_t> offsets;  // bytes, by leaf; -1: not there
  int64_t bytes = 0;
};

Placement Place(const Layout& layout) {
  Placement placement;
  placement.offsets.assign(layout.size(), -1);
  std::vector<at::ScalarType> dtypes;
  for (const LeafInfo& leaf : layout.leaves()) {
    if (std::ranges::find(dtypes, leaf.dtype) == dtypes.end()) dtypes.push_back(leaf.dtype);
  }
  for (const at::ScalarType dtype : dtypes) {
    for (size_t i = 0; i < layout.size(); ++i) {
      const LeafInfo& leaf = layout.leaf(i);
      if (leaf.dtype != dtype || leaf.bytes == 0 || leaf.alias_of >= 0) continue;
      placement.offsets[i] = placement.bytes;
      placement.bytes += (leaf.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    }
  }
  return placement;
}

// Strides without gaps in the order of `strides`, the innermost first.
std::vector<int64_t> DenseStrides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<size_t> order(sizes.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = order.size() - 1 - d;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  std::vector<int64_t> dense(sizes.size());
  int64_t next = 1;
  for (const size_t d : order) {
    dense[d] = next;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return dense;
}

// The strides that an alias has once the leaf that it stands for has others; empty if it is no
// permutation of that leaf's dimensions.
std::vector<int64_t> StridesOfAlias(const LeafInfo& alias, const LeafInfo& leaf,
                                    at::IntArrayRef strides) {
  std::vector<int64_t> result(alias.sizes.size(), 1);
  std::vector<bool> used(leaf.sizes.size(), false);
  for (size_t d = 0; d < alias.sizes.size(); ++d) {
    if (alias.sizes[d] == 1) continue;
    size_t at = 0;
    while (at < leaf.sizes.size() &&
           (used[at] || leaf.sizes[at] != alias.sizes[d] || leaf.strides[at] != alias.strides[d])) {
      ++at;
    }
    if (at == leaf.sizes.size()) return {};
    used[at] = true;
    result[d] = strides[at];
  }
  return result;
}

class ShareOperation : public Operation {
 public:
  ShareOperation(TreeArg tree, const Group& group, const CallOptions& options)
      : Operation(group, kShareCollective, "share", options),
        tree_(std::move(tree)),
        cache_(PlanCache::Of(group.engine())) {}

  // What all ranks found that were granted the call.
  const absl::Status& verdict() const { return verdict_; }

 protected:
  absl::Status Prepare(CallSpec& spec) override {
    absl::StatusOr<std::shared_ptr<const TreePlan>> plan = cache_->trees().Get(tree_, engine());
    if (!plan.ok()) return plan.status();
    plan_ = *std::move(plan);
    if (absl::Status status = CheckAutograd(tree_.flat()); !status.ok()) return status;
    if (absl::Status status = CheckAliases(); !status.ok()) return status;
    placement_ = Place(layout());
    stats_.leaves = static_cast<int64_t>(layout().size() - layout().num_non_tensors());
    stats_.bytes = layout().total_bytes();
    std::vector<CallArgument> arguments = {{"collective", "share"},
                                           {"name", options().name},
                                           {"backend", std::string(engine().backend().name())}};
    spec.digest = DigestOfArguments(arguments, layout().digest().ToString());
    spec.describe = [arguments = std::move(arguments), plan = plan_] {
      std::vector<DescriptionEntry> entries = DescribeArguments(arguments);
      AppendLayout(plan->layout(), entries);
      return entries;
    };
    spec.is_frame = size() == 1 || placement_.bytes == 0;
    spec.restore = !spec.is_frame;  // all ranks get their leaves, or none does
    spec.reduce = [](absl::Span<const absl::Span<const char>>, absl::Span<char>) {};
    return absl::OkStatus();
  }

  absl::Status FinishFrame(absl::Span<const char>) override {
    return Move(nullptr);
  }

  std::unique_ptr<DataPhase> StartData(DataContext& context,
                                       const InterruptCheck& interrupt) override {
    return std::make_unique<Phase>(*this, context, interrupt);
  }

 private:
  class Phase : public DataPhase {
   public:
    Phase(ShareOperation& operation, DataContext& context, const InterruptCheck& interrupt)
        : operation_(operation),
          context_(context),
          waiter_(operation.call(), interrupt, operation.stats_.communicate) {}

    absl::Status Run() override {
      operation_.call().LeaveTurnstile();  // nothing goes through the context
      absl::StatusOr<std::shared_ptr<const Arena>> arena = Open();
      if (arena.ok()) {
        arena_ = std::make_shared<const GroupArena>(
            GroupArena{*std::move(arena), operation_.cache_, operation_.call().number()});
        return absl::OkStatus();
      }
      if (!absl::IsUnimplemented(arena.status()) && !absl::IsResourceExhausted(arena.status())) {
        return arena.status();
      }
      operation_.verdict_ = AnnotateStatus(arena.status(), operation_.where());
      return absl::OkStatus();
    }
    absl::Status Commit() override {
      return arena_ == nullptr ? absl::OkStatus() : operation_.Move(arena_);
    }
    void Close(bool, bool) override {}
    bool TreeUnchanged() const override { return true; }

   private:
    absl::StatusOr<std::shared_ptr<const Arena>> Open() {
      ArenaContext* arenas = AsArenaContext(context_);
      if (arenas == nullptr) {
        return absl::UnimplementedError(
            absl::StrCat("the backend ", operation_.engine().backend().name(),
                         " does not share memory between ranks"));
      }
      const std::unique_ptr<KeyValueStore> store = operation_.engine().OpenStore(
          absl::StrCat("arena/", operation_.call().number()));
      return arenas->Share(operation_.placement_.bytes, *store, [&] { return waiter_.Poll(); },
                           operation_.call().deadline());
    }

    ShareOperation& operation_;
    DataContext& context_;
    DataWaiter waiter_;
    std::shared_ptr<const GroupArena> arena_;
  };

  const Layout& layout() const { return plan_->layout(); }

  at::IntArrayRef NewStrides(size_t i, std::vector<int64_t>& memory) const {
    const LeafInfo& leaf = layout().leaf(i);
    if (leaf.dense_in_memory) return leaf.strides;
    memory = DenseStrides(leaf.sizes, leaf.strides);
    return memory;
  }

  absl::Status CheckAliases() const {
    for (size_t i = 0; i < layout().size(); ++i) {
      const LeafInfo& alias = layout().leaf(i);
      if (alias.alias_of < 0 || alias.kind != LeafKind::kDense) continue;
      const LeafInfo& leaf = layout().leaf(static_cast<size_t>(alias.alias_of));
      if (leaf.dense_in_memory || alias.sizes.empty()) continue;
      if (StridesOfAlias(alias, leaf, leaf.strides).empty()) {
        ErrorDetails details;
        details.kind = ErrorKind::kUnsupported;
        details.path = layout().path(i).ToString();
        return WithErrorDetails(
            absl::UnimplementedError(absl::StrCat(
                "leaf ", details.path, ": has the elements of ",
                layout().path(static_cast<size_t>(alias.alias_of)).ToString(),
                " in another shape, and gaps between them; it cannot be shared as its alias")),
            details);
      }
    }
    return absl::OkStatus();
  }

  // Makes the new leaves; in ordinary memory without an arena. Internal for what libtorch throws.
  absl::Status Move(const std::shared_ptr<const GroupArena>& arena) {
    try {
      MoveAll(arena);
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat(where(), ": ", error.what()));
    }
    return absl::OkStatus();
  }

  void MoveAll(const std::shared_ptr<const GroupArena>& arena) {
    const at::NoGradGuard no_grad;
    const FlatTree& from = tree_.flat();
    FlatTree to(from.paths, from.leaves, from.non_tensors);
    std::vector<int64_t> memory;
    for (size_t i = 0; i < layout().size(); ++i) {
      const LeafInfo& leaf = layout().leaf(i);
      const at::Tensor& old = from.leaves[i];
      if (leaf.kind != LeafKind::kDense || !old.defined()) continue;
      if (leaf.alias_of >= 0 && leaf.bytes > 0) {
        to.leaves[i] = MoveAlias(i, to);
        continue;
      }
      const at::IntArrayRef strides = NewStrides(i, memory);
      const int64_t offset = placement_.offsets[i];
      at::Tensor moved =
          arena == nullptr || offset < 0
              ? at::empty_strided(leaf.sizes, strides, at::TensorOptions().dtype(leaf.dtype))
              : MakeArenaLeaf(arena, offset, leaf.bytes, leaf.sizes, strides, leaf.dtype);
      moved.copy_(old);
      moved.set_requires_grad(old.requires_grad() && old.is_leaf());
      to.leaves[i] = std::move(moved);
    }
    result_.trees.push_back({std::move(to), plan_->spec});
  }

  at::Tensor MoveAlias(size_t i, const FlatTree& to) const {
    const LeafInfo& alias = layout().leaf(i);
    const auto first = static_cast<size_t>(alias.alias_of);
    const LeafInfo& leaf = layout().leaf(first);
    const at::Tensor& old = tree_.flat().leaves[i];
    if (old.is_same(tree_.flat().leaves[first])) return to.leaves[first];
    const at::Tensor& moved = to.leaves[first];
    const std::vector<int64_t> strides =
        leaf.dense_in_memory
            ? std::vector<int64_t>(alias.strides.begin(), alias.strides.end())
            : StridesOfAlias(alias, leaf, moved.strides());
    at::Tensor view = at::empty({0}, moved.options()).set_(moved.storage(), 0, alias.sizes, strides);
    view.set_requires_grad(old.requires_grad() && old.is_leaf());
    return view;
  }

  const TreeArg tree_;
  const std::shared_ptr<PlanCache> cache_;
  std::shared_ptr<const TreePlan> plan_;
  Placement placement_;
  absl::Status verdict_;
};

}  // namespace
}  // namespace internal

absl::StatusOr<TreeResult> ShareTree(TreeArg tree, const Group& group,
                                     const CallOptions& options) {
  internal::ShareOperation operation(std::move(tree), group, options);
  if (absl::Status status = internal::RunNow(operation); !status.ok()) return status;
  if (!operation.verdict().ok()) return operation.verdict();
  return operation.TakeResult();
}

absl::StatusOr<TensorDict> Share(const TensorDict& tree, const Group& group,
                                 const CallOptions& options) {
  absl::StatusOr<TreeResult> result = ShareTree(tree, group, options);
  if (!result.ok()) return result.status();
  return result->Dict();
}

}  // namespace leafpack
