#include "distributed/tree/collectives.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "distributed/tree/joined_tree.h"
#include "distributed/tree/tree_exchange.h"

namespace leafpack {
namespace {

using internal::ExchangePart;
using internal::FrameRouting;
using internal::JoinedTree;
using internal::MakeJoinedTree;
using internal::TreeExchange;

// A collective that is not yet posted.
using Pending = std::shared_ptr<TreeExchange>;

std::vector<bool> Only(const Group& group, int rank) {
  std::vector<bool> flags(static_cast<size_t>(group.size()), false);
  flags[static_cast<size_t>(rank)] = true;
  return flags;
}

std::vector<bool> All(const Group& group) {
  return std::vector<bool>(static_cast<size_t>(group.size()), true);
}

std::vector<bool> None(const Group& group) {
  return std::vector<bool>(static_cast<size_t>(group.size()), false);
}

// `root` as an argument that all ranks must agree on.
absl::StatusOr<int> TakeRoot(const Root& root, const Group& group, ExchangePart& part) {
  absl::StatusOr<GroupRank> rank = root.In(group);
  if (!rank.ok()) return rank.status();
  part.arguments.push_back({"root", absl::StrCat("group rank ", rank->value())});
  return rank->value();
}

absl::StatusOr<ExchangePart> BroadcastPart(std::optional<TreeArg> tree, const Root& root,
                                           const Group& group) {
  ExchangePart part;
  absl::StatusOr<int> from = TakeRoot(root, group, part);
  if (!from.ok()) return from.status();
  part.match = ExchangePart::Match::kLayouts;
  part.root = *from;
  part.sends_to = part.gets_from = None(group);
  if (group.rank().value() != *from) {
    part.gets_from = Only(group, *from);
    part.in_place = std::move(tree);
    return part;
  }
  if (!tree.has_value()) {
    return absl::InvalidArgumentError("the root of a broadcast must give a tree");
  }
  part.sends_to = All(group);
  part.given.push_back(*std::move(tree));
  part.returns_given = true;
  return part;
}

ExchangePart AllGatherPart(TreeArg tree, const Group& group) {
  ExchangePart part;
  part.sends_to = part.gets_from = All(group);
  part.given.push_back(std::move(tree));
  return part;
}

absl::StatusOr<ExchangePart> GatherPart(TreeArg tree, const Root& root, const Group& group) {
  ExchangePart part;
  absl::StatusOr<int> to = TakeRoot(root, group, part);
  if (!to.ok()) return to.status();
  part.sends_to = Only(group, *to);
  part.gets_from = group.rank().value() == *to ? All(group) : None(group);
  part.given.push_back(std::move(tree));
  return part;
}

absl::Status JoinInto(ExchangePart& part, Joining joining, const std::optional<TreeArg>& out,
                      const Group& group) {
  absl::StatusOr<JoinedTree> joined =
      MakeJoinedTree(part.given[0], joining, out, group.rank().value(), group.size());
  if (!joined.ok()) return joined.status();
  part.into = std::move(joined->parts);
  part.joined = std::move(joined->tree);
  part.writes_joined = out.has_value();
  return absl::OkStatus();
}

absl::StatusOr<ExchangePart> AllGatherJoinedPart(TreeArg tree, Joining joining,
                                                 const std::optional<TreeArg>& out,
                                                 const Group& group) {
  ExchangePart part = AllGatherPart(std::move(tree), group);
  part.match = ExchangePart::Match::kAllLayouts;
  part.arguments.push_back({"joining", joining == Joining::kStack ? "stack" : "concat"});
  if (absl::Status status = JoinInto(part, joining, out, group); !status.ok()) return status;
  return part;
}

absl::StatusOr<ExchangePart> GatherAndStackPart(TreeArg tree, const Root& root,
                                                const Group& group) {
  absl::StatusOr<ExchangePart> part = GatherPart(std::move(tree), root, group);
  if (!part.ok()) return part.status();
  part->match = ExchangePart::Match::kAllLayouts;
  if (!part->gets_from[0]) return part;
  if (absl::Status status = JoinInto(*part, Joining::kStack, std::nullopt, group); !status.ok()) {
    return status;
  }
  return part;
}

absl::Status CheckOnePerRank(size_t count, std::string_view what, const Group& group) {
  if (count == static_cast<size_t>(group.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", group.global_rank().value(),
                                                 " must give one ", what, " for each of ",
                                                 group.size(), " ranks, got ", count));
}

// `what` one of `trees` is, for messages.
absl::StatusOr<ExchangePart> ScatterPart(std::optional<TreeArg> tree, std::vector<TreeArg> trees,
                                         const Root& root, const Group& group,
                                         std::string_view what = "tree") {
  ExchangePart part;
  absl::StatusOr<int> from = TakeRoot(root, group, part);
  if (!from.ok()) return from.status();
  part.match = ExchangePart::Match::kLayouts;
  part.routing = FrameRouting::kByRank;
  part.root = *from;
  part.sends_to = None(group);
  part.gets_from = Only(group, *from);
  part.in_place = std::move(tree);
  if (group.rank().value() == *from) {
    if (absl::Status status = CheckOnePerRank(trees.size(), what, group); !status.ok()) {
      return status;
    }
    part.sends_to = All(group);
    part.given = std::move(trees);
  } else if (!trees.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("only the root of a scatter gives trees, rank ", group.global_rank().value(),
                     " gave ", trees.size()));
  }
  return part;
}

absl::StatusOr<ExchangePart> AllToAllPart(std::vector<TreeArg> trees, const Group& group) {
  if (absl::Status status = CheckOnePerRank(trees.size(), "tree", group); !status.ok()) {
    return status;
  }
  ExchangePart part;
  part.routing = FrameRouting::kByRank;
  part.sends_to = part.gets_from = All(group);
  part.given = std::move(trees);
  return part;
}

Pending Make(const Group& group, CollectiveKind kind, std::string_view name,
             absl::StatusOr<ExchangePart> part, const CallOptions& options) {
  return std::make_shared<TreeExchange>(group, kind, name, std::move(part), options);
}

absl::StatusOr<TreeResult> Run(const Pending& operation) {
  if (absl::Status status = internal::RunNow(*operation); !status.ok()) return status;
  return operation->TakeResult();
}

// ---- Bytes: a tree that is one leaf ----

bool IsHere(const Root& root, const Group& group) {
  const absl::StatusOr<GroupRank> at = root.In(group);
  return at.ok() && *at == group.rank();
}

TreeArg ToTree(std::string_view data) {
  // A copy, since a backend that was aborted may let go of a leaf only after the call has ended.
  auto bytes = std::make_shared<std::string>(data);
  at::Tensor leaf = at::from_blob(
      bytes->data(), {static_cast<int64_t>(bytes->size())}, [bytes](void*) {}, at::kByte);
  static const auto* const kRoot = new std::shared_ptr<const PathList>(
      std::make_shared<const PathList>(std::vector<NestedKey>{NestedKey()}));
  return TreeArg(FlatTree(*kRoot, {std::move(leaf)}));
}

// Says that every tree of `part` is one that ToTree made.
absl::StatusOr<ExchangePart> OfBytes(absl::StatusOr<ExchangePart> part) {
  if (part.ok()) part->bytes = true;
  return part;
}

Pending MakeBroadcastBytes(std::string_view data, const Root& root, const Group& group,
                           const CallOptions& options) {
  std::optional<TreeArg> tree;
  if (IsHere(root, group)) tree = ToTree(data);
  return Make(group, CollectiveKind::kBroadcast, "broadcast_bytes",
              OfBytes(BroadcastPart(std::move(tree), root, group)), options);
}

Pending MakeAllGatherBytes(std::string_view data, const Group& group, const CallOptions& options) {
  return Make(group, CollectiveKind::kAllGather, "all_gather_bytes",
              OfBytes(AllGatherPart(ToTree(data), group)), options);
}

Pending MakeGatherBytes(std::string_view data, const Root& root, const Group& group,
                        const CallOptions& options) {
  return Make(group, CollectiveKind::kGather, "gather_bytes",
              OfBytes(GatherPart(ToTree(data), root, group)), options);
}

Pending MakeScatterBytes(const std::vector<std::string>& data, const Root& root,
                         const Group& group, const CallOptions& options) {
  std::vector<TreeArg> trees;
  if (IsHere(root, group)) {
    for (const std::string& each : data) trees.push_back(ToTree(each));
  }
  return Make(group, CollectiveKind::kScatter, "scatter_bytes",
              OfBytes(ScatterPart(std::nullopt, std::move(trees), root, group, "element of data")),
              options);
}

}  // namespace

absl::StatusOr<TreeResult> Broadcast(std::optional<TreeArg> tree, Root root, const Group& group,
                                     const CallOptions& options) {
  return Run(Make(group, CollectiveKind::kBroadcast, "broadcast",
                  BroadcastPart(std::move(tree), root, group), options));
}

absl::StatusOr<TreeWork> BroadcastAsync(std::optional<TreeArg> tree, Root root, const Group& group,
                                        const CallOptions& options) {
  return internal::RunAsync(Make(group, CollectiveKind::kBroadcast, "broadcast",
                                 BroadcastPart(std::move(tree), root, group), options));
}

absl::StatusOr<TreeResult> AllGather(TreeArg tree, const Group& group, const CallOptions& options) {
  return Run(Make(group, CollectiveKind::kAllGather, "all_gather",
                  AllGatherPart(std::move(tree), group), options));
}

absl::StatusOr<TreeWork> AllGatherAsync(TreeArg tree, const Group& group,
                                        const CallOptions& options) {
  return internal::RunAsync(Make(group, CollectiveKind::kAllGather, "all_gather",
                                 AllGatherPart(std::move(tree), group), options));
}

absl::StatusOr<TreeResult> AllGatherJoined(TreeArg tree, Joining joining,
                                           std::optional<TreeArg> out, const Group& group,
                                           const CallOptions& options) {
  return Run(Make(group, CollectiveKind::kAllGather, "all_gather",
                  AllGatherJoinedPart(std::move(tree), joining, out, group), options));
}

absl::StatusOr<TreeWork> AllGatherJoinedAsync(TreeArg tree, Joining joining,
                                              std::optional<TreeArg> out, const Group& group,
                                              const CallOptions& options) {
  return internal::RunAsync(
      Make(group, CollectiveKind::kAllGather, "all_gather",
           AllGatherJoinedPart(std::move(tree), joining, out, group), options));
}

absl::StatusOr<TreeResult> Gather(TreeArg tree, Root root, const Group& group,
                                  const CallOptions& options) {
  return Run(Make(group, CollectiveKind::kGather, "gather",
                  GatherPart(std::move(tree), root, group), options));
}

absl::StatusOr<TreeWork> GatherAsync(TreeArg tree, Root root, const Group& group,
                                     const CallOptions& options) {
  return internal::RunAsync(Make(group, CollectiveKind::kGather, "gather",
                                 GatherPart(std::move(tree), root, group), options));
}

absl::StatusOr<TreeResult> GatherAndStack(TreeArg tree, Root root, const Group& group,
                                          const CallOptions& options) {
  return Run(Make(group, CollectiveKind::kGather, "gather_and_stack",
                  GatherAndStackPart(std::move(tree), root, group), options));
}

absl::StatusOr<TreeWork> GatherAndStackAsync(TreeArg tree, Root root, const Group& group,
                                             const CallOptions& options) {
  return internal::RunAsync(Make(group, CollectiveKind::kGather, "gather_and_stack",
                                 GatherAndStackPart(std::move(tree), root, group), options));
}

absl::StatusOr<TreeResult> Scatter(std::optional<TreeArg> tree, std::vector<TreeArg> trees,
                                   Root root, const Group& group, const CallOptions& options) {
  return Run(Make(group, CollectiveKind::kScatter, "scatter",
                  ScatterPart(std::move(tree), std::move(trees), root, group), options));
}

absl::StatusOr<TreeWork> ScatterAsync(std::optional<TreeArg> tree, std::vector<TreeArg> trees,
                                      Root root, const Group& group, const CallOptions& options) {
  return internal::RunAsync(
      Make(group, CollectiveKind::kScatter, "scatter",
           ScatterPart(std::move(tree), std::move(trees), root, group), options));
}

absl::StatusOr<TreeResult> AllToAll(std::vector<TreeArg> trees, const Group& group,
                                    const CallOptions& options) {
  return Run(Make(group, CollectiveKind::kAllToAll, "all_to_all",
                  AllToAllPart(std::move(trees), group), options));
}

absl::StatusOr<TreeWork> AllToAllAsync(std::vector<TreeArg> trees, const Group& group,
                                       const CallOptions& options) {
  return internal::RunAsync(Make(group, CollectiveKind::kAllToAll, "all_to_all",
                                 AllToAllPart(std::move(trees), group), options));
}

absl::StatusOr<TreeResult> BroadcastBytes(std::string_view data, Root root, const Group& group,
                                          const CallOptions& options) {
  return Run(MakeBroadcastBytes(data, root, group, options));
}

absl::StatusOr<TreeWork> BroadcastBytesAsync(std::string_view data, Root root, const Group& group,
                                             const CallOptions& options) {
  return internal::RunAsync(MakeBroadcastBytes(data, root, group, options));
}

absl::StatusOr<TreeResult> AllGatherBytes(std::string_view data, const Group& group,
                                          const CallOptions& options) {
  return Run(MakeAllGatherBytes(data, group, options));
}

absl::StatusOr<TreeWork> AllGatherBytesAsync(std::string_view data, const Group& group,
                                             const CallOptions& options) {
  return internal::RunAsync(MakeAllGatherBytes(data, group, options));
}

absl::StatusOr<TreeResult> GatherBytes(std::string_view data, Root root, const Group& group,
                                       const CallOptions& options) {
  return Run(MakeGatherBytes(data, root, group, options));
}

absl::StatusOr<TreeWork> GatherBytesAsync(std::string_view data, Root root, const Group& group,
                                          const CallOptions& options) {
  return internal::RunAsync(MakeGatherBytes(data, root, group, options));
}

absl::StatusOr<TreeResult> ScatterBytes(const std::vector<std::string>& data, Root root,
                                        const Group& group, const CallOptions& options) {
  return Run(MakeScatterBytes(data, root, group, options));
}

absl::StatusOr<TreeWork> ScatterBytesAsync(const std::vector<std::string>& data, Root root,
                                           const Group& group, const CallOptions& options) {
  return internal::RunAsync(MakeScatterBytes(data, root, group, options));
}

}  // namespace leafpack
