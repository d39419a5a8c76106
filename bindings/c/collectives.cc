// The collectives that move trees, and barrier.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bindings/c/call.h"
#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "distributed/tree/barrier.h"
#include "distributed/tree/collectives.h"

namespace leafpack::c {
namespace {

struct Joined {
  TreeArg tree;
  Joining joining;
  std::optional<TreeArg> into;
};

Joined ReadJoined(const leafpack_tree* tree, int32_t joining, const leafpack_tree* into) {
  if (joining != LEAFPACK_STACK && joining != LEAFPACK_CONCAT) {
    FailArgument("joining", absl::StrCat("is ", joining,
                                         ", neither LEAFPACK_STACK nor LEAFPACK_CONCAT"));
  }
  return {ReadTree(tree, "tree"), joining == LEAFPACK_STACK ? Joining::kStack : Joining::kConcat,
          ReadTreeOrNone(into, "into")};
}

struct Scattered {
  std::optional<TreeArg> tree;
  std::vector<TreeArg> trees;
};

Scattered ReadScattered(const leafpack_tree* tree, const leafpack_tree* const* trees,
                        size_t num_trees) {
  return {ReadTreeOrNone(tree, "tree"), ReadTrees(trees, num_trees)};
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::CollectiveKind;

leafpack_error* leafpack_broadcast(const leafpack_tree* tree, int32_t root,
                                   const leafpack_group* group,
                                   const leafpack_call_options* options,
                                   leafpack_result** result) {
  return Move(
      group, CollectiveKind::kBroadcast, options, tree, result,
      [&] { return ReadTreeOrNone(tree, "tree"); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::Broadcast(given, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_broadcast_async(const leafpack_tree* tree, int32_t root,
                                         const leafpack_group* group,
                                         const leafpack_call_options* options,
                                         leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kBroadcast, options, work,
      [&] { return ReadTreeOrNone(tree, "tree"); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::BroadcastAsync(given, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_all_gather(const leafpack_tree* tree, const leafpack_group* group,
                                    const leafpack_call_options* options,
                                    leafpack_result** result) {
  return Move(
      group, CollectiveKind::kAllGather, options, nullptr, result,
      [&] { return ReadTree(tree, "tree"); },
      [](const auto& given, const auto& in, const auto& how) {
        return leafpack::AllGather(given, in, how);
      });
}

leafpack_error* leafpack_all_gather_async(const leafpack_tree* tree, const leafpack_group* group,
                                          const leafpack_call_options* options,
                                          leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kAllGather, options, work, [&] { return ReadTree(tree, "tree"); },
      [](const auto& given, const auto& in, const auto& how) {
        return leafpack::AllGatherAsync(given, in, how);
      });
}

leafpack_error* leafpack_all_gather_joined(const leafpack_tree* tree, int32_t joining,
                                           const leafpack_tree* into, const leafpack_group* group,
                                           const leafpack_call_options* options,
                                           leafpack_result** result) {
  return Move(
      group, CollectiveKind::kAllGather, options, into, result,
      [&] { return ReadJoined(tree, joining, into); },
      [](const auto& given, const auto& in, const auto& how) {
        return leafpack::AllGatherJoined(given.tree, given.joining, given.into, in, how);
      });
}

leafpack_error* leafpack_all_gather_joined_async(const leafpack_tree* tree, int32_t joining,
                                                 const leafpack_tree* into,
                                                 const leafpack_group* group,
                                                 const leafpack_call_options* options,
                                                 leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kAllGather, options, work,
      [&] { return ReadJoined(tree, joining, into); },
      [](const auto& given, const auto& in, const auto& how) {
        return leafpack::AllGatherJoinedAsync(given.tree, given.joining, given.into, in, how);
      });
}

leafpack_error* leafpack_gather(const leafpack_tree* tree, int32_t root,
                                const leafpack_group* group, const leafpack_call_options* options,
                                leafpack_result** result) {
  return Move(
      group, CollectiveKind::kGather, options, nullptr, result,
      [&] { return ReadTree(tree, "tree"); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::Gather(given, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_gather_async(const leafpack_tree* tree, int32_t root,
                                      const leafpack_group* group,
                                      const leafpack_call_options* options, leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kGather, options, work, [&] { return ReadTree(tree, "tree"); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::GatherAsync(given, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_gather_and_stack(const leafpack_tree* tree, int32_t root,
                                          const leafpack_group* group,
                                          const leafpack_call_options* options,
                                          leafpack_result** result) {
  return Move(
      group, CollectiveKind::kGather, options, nullptr, result,
      [&] { return ReadTree(tree, "tree"); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::GatherAndStack(given, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_gather_and_stack_async(const leafpack_tree* tree, int32_t root,
                                                const leafpack_group* group,
                                                const leafpack_call_options* options,
                                                leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kGather, options, work, [&] { return ReadTree(tree, "tree"); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::GatherAndStackAsync(given, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_scatter(const leafpack_tree* tree, const leafpack_tree* const* trees,
                                 size_t num_trees, int32_t root, const leafpack_group* group,
                                 const leafpack_call_options* options, leafpack_result** result) {
  return Move(
      group, CollectiveKind::kScatter, options, tree, result,
      [&] { return ReadScattered(tree, trees, num_trees); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::Scatter(given.tree, given.trees, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_scatter_async(const leafpack_tree* tree,
                                       const leafpack_tree* const* trees, size_t num_trees,
                                       int32_t root, const leafpack_group* group,
                                       const leafpack_call_options* options,
                                       leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kScatter, options, work,
      [&] { return ReadScattered(tree, trees, num_trees); },
      [&](const auto& given, const auto& in, const auto& how) {
        return leafpack::ScatterAsync(given.tree, given.trees, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_all_to_all(const leafpack_tree* const* trees, size_t num_trees,
                                    const leafpack_group* group,
                                    const leafpack_call_options* options,
                                    leafpack_result** result) {
  return Move(
      group, CollectiveKind::kAllToAll, options, nullptr, result,
      [&] { return ReadTrees(trees, num_trees); },
      [](const auto& given, const auto& in, const auto& how) {
        return leafpack::AllToAll(given, in, how);
      });
}

leafpack_error* leafpack_all_to_all_async(const leafpack_tree* const* trees, size_t num_trees,
                                          const leafpack_group* group,
                                          const leafpack_call_options* options,
                                          leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kAllToAll, options, work, [&] { return ReadTrees(trees, num_trees); },
      [](const auto& given, const auto& in, const auto& how) {
        return leafpack::AllToAllAsync(given, in, how);
      });
}

leafpack_error* leafpack_barrier(const leafpack_group* group,
                                 const leafpack_call_options* options) {
  return Guard([&] {
    const auto held = Need(group, "group");
    MoveCall call = Prepare(held->group, CollectiveKind::kBarrier, options,
                            [&] { return ReadCallOptions(options); });
    CheckOk(leafpack::Barrier(held->group, call.ForCall()));
    call.FillStats();
  });
}
