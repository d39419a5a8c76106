#include "distributed/tree/call_plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "distributed/tree/call_arguments.h"
#include "distributed/tree/leaf_rules.h"

namespace leafpack::internal {
namespace {

// Plans and filter choices that are kept. A training loop uses a handful.
constexpr size_t kMaxPlans = 16;
constexpr size_t kMaxSelections = 16;
constexpr size_t kMaxJoined = 4;

// Largest packed bucket of the automatic plan: small enough that several are under way within the
// default limit of packed bytes in flight.
constexpr int64_t kMaxPackedBucketBytes = int64_t{16} << 20;

// What a byte of a frame takes on the control channel, for each peer, and what a data phase takes beyond its
// messages: measured with 2 ranks, where 64 KiB ride for 40 us and go through shared memory in 17.
constexpr double kFrameSecondsPerByte = 0.6e-9;
constexpr double kDataPhaseSeconds = 8e-6;

// Whether a tree goes with its digest: a pure function of what all ranks know. A backend as fast as shared
// memory moves trees of more than some 16 KiB sooner than the control channel does.
bool RidesInFrame(int64_t bytes, int ranks, const BackendCost& cost) {
  if (!FitsInFrame(bytes, ranks)) return false;
  const auto size = static_cast<double>(bytes);
  const double frame = size * kFrameSecondsPerByte * (ranks - 1);
  return frame <= kDataPhaseSeconds + cost.per_message * (ranks - 1) + size * cost.per_byte;
}

absl::uint128 ToUint128(const Digest128& digest) {
  return absl::MakeUint128(digest.hi, digest.lo);
}

std::string_view FilterName(LeafFilter::Kind kind) {
  switch (kind) {
    case LeafFilter::Kind::kAll: return "all";
    case LeafFilter::Kind::kFloating: return "floating";
    case LeafFilter::Kind::kPredicate: return "predicate";
  }
  return "?";
}

std::string_view OnFailureName(OnFailure on_failure) {
  return on_failure == OnFailure::kRestore ? "restore" : "report";
}

std::vector<CallArgument> ListArguments(const CallArguments& arguments, std::string_view backend) {
  std::vector<CallArgument> list = {
      {"collective", std::string(CollectiveName(arguments.collective))},
      {"name", arguments.name},
      {"op", std::string(ReduceOpName(arguments.op))},
      {"bucketing", arguments.bucketing.ToString()},
      {"leaves", std::string(FilterName(arguments.leaves))},
      {"on_failure", std::string(OnFailureName(arguments.on_failure))},
      {"backend", std::string(backend)},
  };
  if (arguments.root >= 0) list.push_back({"root (group rank)", absl::StrCat(arguments.root)});
  if (arguments.max_in_flight_bytes > 0) {
    list.push_back({"max_in_flight_bytes", absl::StrCat(arguments.max_in_flight_bytes)});
  }
  return list;
}

AutoCosts ToAutoCosts(const BackendCost& cost) {
  AutoCosts costs;
  costs.message_ns = std::llround(cost.per_message * 1e9);
  costs.wire_ps_per_byte = std::llround(cost.per_byte * 1e12);
  costs.pack_ps_per_byte = std::llround(cost.pack_per_byte * 1e12);
  return costs;
}

// Only these ride in frames: to read a leaf of another device the host would have to wait for the device.
bool IsOnHost(const Layout& layout) {
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (leaf.kind == LeafKind::kDense && leaf.device.type() != c10::DeviceType::CPU) return false;
  }
  return true;
}

void PlanFrame(CallPlan& plan) {
  for (size_t i = 0; i < plan.layout.size(); ++i) {
    const LeafInfo& leaf = plan.layout.leaf(i);
    if (leaf.alias_of >= 0 || leaf.numel == 0 || leaf.kind != LeafKind::kDense) continue;
    plan.frame_leaves.push_back(static_cast<int64_t>(i));
    if (!plan.frame.empty() && plan.frame.back().dtype == leaf.dtype) {
      plan.frame.back().numel += leaf.numel;
    } else {
      plan.frame.push_back({leaf.dtype, leaf.numel});
    }
  }
}

absl::Status PlanBuckets(CallPlan& plan, const Engine& engine) {
  PlanParams params;
  params.max_packed_bucket_bytes = kMaxPackedBucketBytes;
  params.costs = ToAutoCosts(engine.backend().Cost(engine.size()));
  for (const bool memory_agreed : {false, true}) {
    params.memory_agreed = memory_agreed;
    BucketPlan& all = memory_agreed ? plan.memory_buckets : plan.buckets;
    const size_t trees = plan.tree_begin.empty() ? 1 : plan.tree_begin.size() - 1;
    std::vector<uint8_t> included;
    for (size_t tree = 0; tree < trees; ++tree) {
      if (!plan.tree_begin.empty()) {
        included.assign(plan.layout.size(), 0);
        std::fill(included.begin() + static_cast<std::ptrdiff_t>(plan.tree_begin[tree]),
                  included.begin() + static_cast<std::ptrdiff_t>(plan.tree_begin[tree + 1]), 1);
        params.included = included;
      }
      absl::StatusOr<BucketPlan> buckets =
          MakeBucketPlan(plan.layout, plan.arguments.bucketing, params);
      if (!buckets.ok()) return buckets.status();
      all.payload_bytes += buckets->payload_bytes;
      std::move(buckets->buckets.begin(), buckets->buckets.end(), std::back_inserter(all.buckets));
      all.sparse.insert(all.sparse.end(), buckets->sparse.begin(), buckets->sparse.end());
    }
  }
  plan.bucket_of.resize(plan.layout.size());
  for (size_t i = 0; i < plan.buckets.buckets.size(); ++i) {
    for (const Slot& slot : plan.buckets.buckets[i].slots) {
      plan.bucket_of[static_cast<size_t>(slot.leaf)] = i;
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<DescriptionEntry> CallPlan::Describe(std::string_view backend) const {
  std::vector<DescriptionEntry> entries = DescribeArguments(ListArguments(arguments, backend));
  AppendLayout(layout, entries);
  return entries;
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

PlanCache::PlanCache() : pool_(std::make_shared<BufferPool>()) {}

std::shared_ptr<PlanCache> PlanCache::Of(Engine& engine) {
  return std::static_pointer_cast<PlanCache>(
      engine.Attachment([] { return std::make_shared<PlanCache>(); }));
}

FlatTree PlanCache::Select(FlatTree tree, const LeafFilter& filter) {
  if (filter.kind() == LeafFilter::Kind::kAll) return tree;
  std::vector<size_t> chosen;
  std::vector<at::Tensor> leaves;
  auto non_tensor = tree.non_tensors.begin();
  for (size_t i = 0; i < tree.size(); ++i) {  // a predicate is user code: no lock is held
    if (non_tensor != tree.non_tensors.end() && non_tensor->leaf == i) {
      ++non_tensor;
      continue;
    }
    if (!filter.Takes((*tree.paths)[i], tree.leaves[i])) continue;
    chosen.push_back(i);
    leaves.push_back(tree.leaves[i]);
  }
  if (chosen.size() == tree.size()) return tree;
  {
    absl::MutexLock lock(&mutex_);
    for (const Selection& selection : selections_) {
      if (selection.source == tree.paths && selection.chosen == chosen) {
        return FlatTree(selection.paths, std::move(leaves));
      }
    }
  }
  std::vector<NestedKey> keys;
  keys.reserve(chosen.size());
  for (const size_t i : chosen) keys.push_back((*tree.paths)[i]);
  auto paths = std::make_shared<const PathList>(std::move(keys));
  absl::MutexLock lock(&mutex_);
  selections_.insert(selections_.begin(), {tree.paths, std::move(chosen), paths});
  if (selections_.size() > kMaxSelections) selections_.pop_back();
  return FlatTree(std::move(paths), std::move(leaves));
}

FlatTree PlanCache::Join(const std::vector<FlatTree>& trees) {
  std::vector<std::shared_ptr<const PathList>> sources;
  FlatTree joined;
  for (const FlatTree& tree : trees) {
    sources.push_back(tree.paths);
    for (NonTensorLeaf value : tree.non_tensors) {
      value.leaf += joined.leaves.size();
      joined.non_tensors.push_back(std::move(value));
    }
    joined.leaves.insert(joined.leaves.end(), tree.leaves.begin(), tree.leaves.end());
  }
  {
    absl::MutexLock lock(&mutex_);
    for (const Joined& known : joined_) {
      if (known.sources != sources) continue;
      joined.paths = known.paths;
      return joined;
    }
  }
  std::vector<NestedKey> keys;
  keys.reserve(joined.leaves.size());
  for (size_t i = 0; i < trees.size(); ++i) {
    const NestedKey position = {KeyComponent(i)};
    for (const NestedKey& path : trees[i].paths->paths()) keys.push_back(position.Join(path));
  }
  joined.paths = std::make_shared<const PathList>(std::move(keys));
  absl::MutexLock lock(&mutex_);
  joined_.insert(joined_.begin(), {std::move(sources), joined.paths});
  if (joined_.size() > kMaxJoined) joined_.pop_back();
  return joined;
}

absl::StatusOr<std::shared_ptr<const CallPlan>> PlanCache::Get(const FlatTree& tree,
                                                               const CallArguments& arguments,
                                                               const Engine& engine,
                                                               std::vector<size_t> tree_begin) {
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = plans_.begin(); it != plans_.end(); ++it) {
      if ((*it)->layout.paths() != tree.paths || !((*it)->arguments == arguments)) continue;
      if ((*it)->tree_begin != tree_begin) continue;
      if (!(*it)->layout.Matches(tree)) continue;
      std::rotate(plans_.begin(), it, it + 1);
      return plans_.front();
    }
  }
  absl::StatusOr<Layout> layout = Layout::Of(tree);
  if (!layout.ok()) return layout.status();
  if (absl::Status status = CheckLeafKinds(*layout, arguments.op, arguments.collective,
                                           engine.backend());
      !status.ok()) {
    return status;
  }
  auto plan = std::make_shared<CallPlan>();
  plan->arguments = arguments;
  plan->tree_begin = std::move(tree_begin);
  plan->layout = *std::move(layout);
  plan->digest = DigestOfArguments(ListArguments(arguments, engine.backend().name()),
                                   plan->layout.digest().ToString());
  plan->soft_digest = ToUint128(plan->layout.stride_digest());
  for (size_t i = 0; i < plan->layout.size(); ++i) {
    const LeafInfo& leaf = plan->layout.leaf(i);
    if (leaf.kind == LeafKind::kSparse && leaf.alias_of < 0) {
      plan->sparse.push_back(static_cast<int64_t>(i));
    }
  }
  // A group of one has nobody to send to: its calls are frames without content. How many bytes sparse
  // leaves have is known to their own rank only.
  plan->is_frame =
      engine.size() == 1 ||
      (plan->sparse.empty() && IsOnHost(plan->layout) && RidesInFrame(plan->layout.total_bytes(), engine.size(),
                                            engine.backend().Cost(engine.size())));
  if (plan->is_frame) {
    PlanFrame(*plan);
    // Checked here as well, so that a wrong cap is refused whatever the size of the tree is.
    if (absl::StatusOr<BucketPlan> checked = MakeBucketPlan(Layout(), arguments.bucketing);
        !checked.ok()) {
      return checked.status();
    }
  } else if (absl::Status status = PlanBuckets(*plan, engine); !status.ok()) {
    return status;
  }
  absl::MutexLock lock(&mutex_);
  // A plan of the same call whose leaves have moved will not be asked for again.
  std::erase_if(plans_, [&](const std::shared_ptr<const CallPlan>& old) {
    return old->digest == plan->digest && old->layout.paths() == plan->layout.paths();
  });
  plans_.insert(plans_.begin(), plan);
  if (plans_.size() > kMaxPlans) plans_.pop_back();
  return plan;
}

}  // namespace leafpack::internal
