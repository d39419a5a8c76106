// How a collective is called: arguments are read first, and what is wrong with them is told to the other
// ranks, so that nobody waits for this one.
#ifndef LEAFPACK_BINDINGS_C_CALL_H_
#define LEAFPACK_BINDINGS_C_CALL_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "distributed/core/engine.h"
#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/core/rank.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/trees.h"

namespace leafpack::c {

// "send on rank 3", as the library begins the text of its errors.
inline std::string Where(std::string_view call, const Group& group) {
  return absl::StrCat(call, " on rank ", group.global_rank().value());
}

// What `read`, which reads arguments, returns. If it throws, or `options` have a refusal, the call is refused
// in its place in the order of the group, and the error goes on.
template <typename Options, typename Read>
auto Prepare(const Group& group, CollectiveKind kind, const Options* options, Read&& read) {
  std::string call(CollectiveName(kind));
  absl::Status status;
  try {
    const Options given = CopyStruct(options, "options");
    if constexpr (!std::is_same_v<Options, leafpack_group_options>) {
      const std::string_view name(given.name == nullptr ? "" : given.name);
      if (!name.empty()) absl::StrAppend(&call, " '", name.substr(0, 256), "'");
    }
    if (given.refusal != nullptr) Fail(absl::InvalidArgumentError(given.refusal));
    return std::forward<Read>(read)();
  } catch (...) {
    status = StatusOfException();
  }
  Fail(RefuseCall(group, kind, AnnotateStatus(status, Where(call, group))));
}

inline TreeArg ReadTree(const leafpack_tree* tree, const char* argument) {
  return TreeArg(Need(tree, argument)->tree);
}

// Null is no tree.
inline std::optional<TreeArg> ReadTreeOrNone(const leafpack_tree* tree, const char* argument) {
  if (tree == nullptr) return std::nullopt;
  return ReadTree(tree, argument);
}

inline std::vector<TensorDict> ReadDicts(const leafpack_tree* const* trees, size_t num_trees) {
  NeedArray(trees, num_trees, "trees");
  std::vector<TensorDict> result;
  for (size_t i = 0; i < num_trees; ++i) result.push_back(Need(trees[i], "trees")->tree);
  return result;
}

inline std::vector<TreeArg> ReadTrees(const leafpack_tree* const* trees, size_t num_trees) {
  std::vector<TreeArg> result;
  for (const TensorDict& tree : ReadDicts(trees, num_trees)) result.emplace_back(tree);
  return result;
}

// Null where there are none.
inline std::string_view ReadBytes(const void* data, size_t size) {
  if (size == 0) return {};
  NeedPossible(size, "data");
  return {static_cast<const char*>(NeedPointer(data, "data")), size};
}

inline Root ReadRoot(int32_t rank) { return Root(GlobalRank(rank)); }

// Gives the caller the result, if it is asked for.
inline void GiveResult(TreeResult result, leafpack_result** given) {
  if (given != nullptr) *given = MakeHandle(leafpack_result{std::move(result)});
}

inline void GiveWork(TreeWork work, leafpack_work** given) {
  *given = MakeHandle(leafpack_work{std::move(work)});
}

// Makes a call that moves trees or bytes: `read` gives them, `run` calls the C++ function with them.
// A result must be asked for unless `into` gives trees that are there a place.
template <typename Read, typename Run>
leafpack_error* Move(const leafpack_group* group, CollectiveKind kind,
                     const leafpack_call_options* options, const leafpack_tree* into,
                     leafpack_result** result, Read&& read, Run&& run) noexcept {
  return Guard([&] {
    const auto held = Need(group, "group");
    auto arguments = Prepare(held->group, kind, options, [&] {
      if (into == nullptr) NeedPointer(result, "result");
      auto trees = read();
      return std::make_pair(std::move(trees), ReadCallOptions(options));
    });
    GiveResult(ValueOf(run(arguments.first, held->group, arguments.second.ForCall())), result);
    arguments.second.FillStats();
  });
}

// Starts one.
template <typename Read, typename Start>
leafpack_error* StartMove(const leafpack_group* group, CollectiveKind kind,
                          const leafpack_call_options* options, leafpack_work** work, Read&& read,
                          Start&& start) noexcept {
  return Guard([&] {
    const auto held = Need(group, "group");
    auto arguments = Prepare(held->group, kind, options, [&] {
      NeedPointer(work, "work");
      auto trees = read();
      return std::make_pair(std::move(trees), ReadCallOptions(options));
    });
    GiveWork(ValueOf(start(arguments.first, held->group, arguments.second.ForStart())), work);
  });
}

}  // namespace leafpack::c

#endif  // LEAFPACK_BINDINGS_C_CALL_H_
