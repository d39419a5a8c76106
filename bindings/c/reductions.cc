// The collectives that reduce.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "bindings/c/call.h"
#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/reduce.h"

namespace leafpack::c {
namespace {

// `read` gives the call's trees; `run` and `start` call the C++ function with them.
template <typename Read, typename Run>
leafpack_error* Reduction(const leafpack_group* group, CollectiveKind kind,
                          const leafpack_reduce_options* options, Read&& read, Run&& run) noexcept {
  return Guard([&] {
    const auto held = Need(group, "group");
    auto arguments = Prepare(held->group, kind, options, [&] {
      auto trees = read();
      return std::make_pair(std::move(trees), ReadReduceOptions(options));
    });
    CheckOk(run(arguments.first, held->group, arguments.second.ForCall()));
    arguments.second.FillStats();
  });
}

template <typename Read, typename Start>
leafpack_error* StartReduction(const leafpack_group* group, CollectiveKind kind,
                               const leafpack_reduce_options* options, leafpack_work** work,
                               Read&& read, Start&& start) noexcept {
  return Guard([&] {
    const auto held = Need(group, "group");
    auto arguments = Prepare(held->group, kind, options, [&] {
      NeedPointer(work, "work");
      auto trees = read();
      return std::make_pair(std::move(trees), ReadReduceOptions(options));
    });
    GiveWork(ValueOf(start(arguments.first, held->group, arguments.second.ForStart())), work);
  });
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::CollectiveKind;

leafpack_error* leafpack_all_reduce(const leafpack_tree* tree, const leafpack_group* group,
                                    const leafpack_reduce_options* options) {
  return Reduction(
      group, CollectiveKind::kAllReduce, options, [&] { return Need(tree, "tree")->tree; },
      [](const auto& dict, const auto& in, const auto& how) {
        return leafpack::AllReduce(dict, in, how);
      });
}

leafpack_error* leafpack_all_reduce_async(const leafpack_tree* tree, const leafpack_group* group,
                                          const leafpack_reduce_options* options,
                                          leafpack_work** work) {
  return StartReduction(
      group, CollectiveKind::kAllReduce, options, work, [&] { return Need(tree, "tree")->tree; },
      [](const auto& dict, const auto& in, const auto& how) {
        return leafpack::AllReduceAsync(dict, in, how);
      });
}

leafpack_error* leafpack_reduce(const leafpack_tree* tree, int32_t root,
                                const leafpack_group* group,
                                const leafpack_reduce_options* options) {
  return Reduction(
      group, CollectiveKind::kReduce, options, [&] { return Need(tree, "tree")->tree; },
      [&](const auto& dict, const auto& in, const auto& how) {
        return leafpack::Reduce(dict, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_reduce_async(const leafpack_tree* tree, int32_t root,
                                      const leafpack_group* group,
                                      const leafpack_reduce_options* options,
                                      leafpack_work** work) {
  return StartReduction(
      group, CollectiveKind::kReduce, options, work, [&] { return Need(tree, "tree")->tree; },
      [&](const auto& dict, const auto& in, const auto& how) {
        return leafpack::ReduceAsync(dict, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_reduce_scatter(const leafpack_tree* const* trees, size_t num_trees,
                                        const leafpack_group* group,
                                        const leafpack_reduce_options* options) {
  return Reduction(
      group, CollectiveKind::kReduceScatter, options, [&] { return ReadDicts(trees, num_trees); },
      [](const auto& dicts, const auto& in, const auto& how) {
        return leafpack::ReduceScatter(dicts, in, how);
      });
}

leafpack_error* leafpack_reduce_scatter_async(const leafpack_tree* const* trees, size_t num_trees,
                                              const leafpack_group* group,
                                              const leafpack_reduce_options* options,
                                              leafpack_work** work) {
  return StartReduction(
      group, CollectiveKind::kReduceScatter, options, work,
      [&] { return ReadDicts(trees, num_trees); },
      [](const auto& dicts, const auto& in, const auto& how) {
        return leafpack::ReduceScatterAsync(dicts, in, how);
      });
}
