// leafpack_group.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "bindings/c/call.h"
#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "distributed/distributed.h"

namespace leafpack::c {
namespace {

template <typename Make>
leafpack_error* MakeGroup(const leafpack_group_options* options, leafpack_group** group,
                          Make&& make) noexcept {
  return Guard([&] {
    NeedPointer(group, "group");
    *group = MakeHandle(leafpack_group{ValueOf(make(ReadGroupOptions(options)))});
  });
}

// Frees the handles that were made, should one of them fail.
class Handles {
 public:
  ~Handles() {
    for (leafpack_group* handle : made_) FreeHandle(handle);
  }
  void Add(Group group) {
    made_.reserve(made_.size() + 1);
    made_.push_back(MakeHandle(leafpack_group{std::move(group)}));
  }
  std::vector<leafpack_group*> Release() { return std::exchange(made_, {}); }

 private:
  std::vector<leafpack_group*> made_;
};

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::GlobalRank;
using leafpack::GroupRank;

leafpack_error* leafpack_group_from_environment(const leafpack_group_options* options,
                                                leafpack_group** group) {
  return MakeGroup(options, group, [](GroupCall read) {
    return leafpack::GroupFromEnvironment(std::move(read.options), read.interrupt);
  });
}

leafpack_error* leafpack_group_from_file(const char* path, int32_t rank, int32_t size,
                                         const leafpack_group_options* options,
                                         leafpack_group** group) {
  return MakeGroup(options, group, [&](GroupCall read) {
    return leafpack::GroupFromFile(NeedPointer(path, "path"), rank, size, std::move(read.options));
  });
}

leafpack_error* leafpack_group_from_url(const char* url, int32_t rank, int32_t size,
                                        const leafpack_group_options* options,
                                        leafpack_group** group) {
  return MakeGroup(options, group, [&](GroupCall read) {
    return leafpack::GroupFromUrl(NeedPointer(url, "url"), rank, size, std::move(read.options),
                                  read.interrupt);
  });
}

leafpack_error* leafpack_group_from_store(const leafpack_store* store, const char* prefix,
                                          int32_t rank, int32_t size, const int32_t* global_ranks,
                                          const leafpack_group_options* options,
                                          leafpack_group** group) {
  return MakeGroup(options, group, [&](GroupCall read) {
    const auto held = Need(store, "store");
    NeedPointer(prefix, "prefix");
    std::vector<GlobalRank> ranks;
    if (global_ranks != nullptr) {
      // Before the array is read: that it has `size` elements is the caller's word.
      if (size < 1 || rank < 0 || rank >= size) {
        FailArgument("rank", absl::StrCat("is ", rank, " in a group of ", size));
      }
      for (int32_t i = 0; i < size; ++i) ranks.emplace_back(global_ranks[i]);
    }
    return leafpack::GroupFromStore(held->store, prefix, rank, size, std::move(ranks),
                                    std::move(read.options));
  });
}

leafpack_error* leafpack_groups_in_process(int32_t size, const leafpack_group_options* options,
                                           leafpack_group** groups) {
  return Guard([&] {
    NeedPointer(groups, "groups");
    Handles handles;
    for (leafpack::Group& group :
         ValueOf(leafpack::LocalGroups(size, ReadGroupOptions(options).options))) {
      handles.Add(std::move(group));
    }
    for (leafpack_group* handle : handles.Release()) *groups++ = handle;
  });
}

leafpack_error* leafpack_group_of_ranks(const leafpack_group* parent, const int32_t* ranks,
                                        size_t num_ranks, const char* name,
                                        const leafpack_group_options* options,
                                        leafpack_group** group) {
  return Guard([&] {
    NeedPointer(group, "group");
    const auto object = Need(parent, "parent");
    if (num_ranks > static_cast<size_t>(object->group.size())) {
      FailArgument("num_ranks", absl::StrCat("is ", num_ranks, " in a group of ",
                                             object->group.size()));
    }
    NeedArray(ranks, num_ranks, "ranks");
    std::vector<GlobalRank> members;
    for (size_t i = 0; i < num_ranks; ++i) members.emplace_back(ranks[i]);
    leafpack::SubGroupOptions read;
    read.name = name == nullptr ? "" : name;
    read.group = ReadGroupOptions(options, object->group.options()).options;
    *group = MakeHandle(
        leafpack_group{ValueOf(leafpack::NewGroup(object->group, members, std::move(read)))});
  });
}

leafpack_error* leafpack_group_split(const leafpack_group* parent, int32_t color, int32_t key,
                                     const leafpack_group_options* options,
                                     leafpack_group** group) {
  return Guard([&] {
    const auto object = Need(parent, "parent");
    const leafpack::SubGroupOptions read =
        Prepare(object->group, leafpack::CollectiveKind::kSplit, options, [&] {
          NeedPointer(group, "group");
          leafpack::SubGroupOptions result;
          GroupCall call = ReadGroupOptions(options, object->group.options());
          result.group = std::move(call.options);
          result.interrupt = std::move(call.interrupt);
          return result;
        });
    std::optional<leafpack::Group> made = ValueOf(leafpack::SplitGroup(
        object->group, color == LEAFPACK_NO_COLOR ? std::nullopt : std::optional<int>(color), key,
        read));
    *group = made.has_value() ? MakeHandle(leafpack_group{*std::move(made)}) : nullptr;
  });
}

leafpack_error* leafpack_group_rank(const leafpack_group* group, int32_t* rank) {
  return Guard([&] {
    NeedPointer(rank, "rank");
    *rank = Need(group, "group")->group.rank().value();
  });
}

leafpack_error* leafpack_group_size(const leafpack_group* group, int32_t* size) {
  return Guard([&] {
    NeedPointer(size, "size");
    *size = Need(group, "group")->group.size();
  });
}

leafpack_error* leafpack_group_global_rank(const leafpack_group* group, int32_t* rank) {
  return Guard([&] {
    NeedPointer(rank, "rank");
    *rank = Need(group, "group")->group.global_rank().value();
  });
}

leafpack_error* leafpack_group_to_global(const leafpack_group* group, int32_t group_rank,
                                         int32_t* global_rank) {
  return Guard([&] {
    NeedPointer(global_rank, "global_rank");
    *global_rank = ValueOf(Need(group, "group")->group.ToGlobal(GroupRank(group_rank))).value();
  });
}

leafpack_error* leafpack_group_to_group(const leafpack_group* group, int32_t global_rank,
                                        int32_t* group_rank) {
  return Guard([&] {
    NeedPointer(group_rank, "group_rank");
    *group_rank = ValueOf(Need(group, "group")->group.ToGroup(GlobalRank(global_rank))).value();
  });
}

leafpack_error* leafpack_group_shutdown(leafpack_group* group, int64_t timeout_ms) {
  return Guard([&] {
    const auto object = Need(group, "group");
    if (timeout_ms <= 0) {
      FailArgument("timeout_ms", absl::StrCat("is ", timeout_ms, "; it must be more than 0"));
    }
    leafpack::Group held = object->group;
    CheckOk(held.Shutdown(absl::Milliseconds(timeout_ms)));
  });
}

void leafpack_group_free(leafpack_group* group) { FreeHandle(group); }
