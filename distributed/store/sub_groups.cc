#include "distributed/store/sub_groups.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "xxhash.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine_store.h"
#include "distributed/core/error.h"
#include "distributed/store/c10d_errors.h"

namespace leafpack {
namespace {

// What one rank says in a split. Zero where it says nothing yet.
struct Choice {
  int32_t there = 0;
  int32_t colored = 0;
  int32_t color = 0;
  int32_t key = 0;
};

XXH128_hash_t Hash(std::string_view text) { return XXH3_128bits(text.data(), text.size()); }

absl::StatusOr<Group> Make(const Group& parent, std::string_view suffix, GroupRank rank,
                           std::vector<GlobalRank> ranks, GroupOptions options) {
  const int size = static_cast<int>(ranks.size());
  return store_internal::CatchC10d("making a group", [&] {
    return Group::Create(parent.engine().store()->store,
                         absl::StrCat(parent.engine().prefix(), "/", suffix), rank, size,
                         std::move(ranks), std::move(options));
  });
}

// What would fail on this rank alone, after the others have agreed.
absl::Status CheckOptions(const GroupOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("the timeout of a group must be positive, not ",
                                                   absl::FormatDuration(options.timeout)));
  }
  return MakeBackend(options.backend).status();
}

// How many ranks one frame tells of: a pure function of the size of the group.
int RanksInFrame(int size) {
  int64_t bytes = kMaxFrameBytes;
  if (size > 1) bytes = std::min(bytes, kMaxFrameBytesAllPeers / (size - 1));
  return static_cast<int>(std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(Choice))));
}

// The choices of ranks begin .. end - 1 on all ranks; the number of the call too.
absl::StatusOr<uint64_t> Exchange(const Group& parent, int begin, int end, const Choice& mine,
                                  std::string_view backend, const InterruptCheck& interrupt,
                                  std::vector<Choice>& all) {
  std::vector<Choice> choices(static_cast<size_t>(end - begin));
  const int rank = parent.rank().value();
  if (rank >= begin && rank < end) choices[static_cast<size_t>(rank - begin)] = mine;
  const size_t bytes = choices.size() * sizeof(Choice);
  CallSpec spec;
  spec.kind = CollectiveKind::kSplit;
  spec.name = absl::StrCat("split on rank ", parent.global_rank().value());
  const XXH128_hash_t digest = Hash(absl::StrCat("split ", begin, " ", end, " ", backend));
  spec.digest = absl::MakeUint128(digest.high64, digest.low64);
  spec.bytes = static_cast<int64_t>(bytes);
  spec.describe = [value = std::string(backend)] {
    DescriptionEntry call{"call", "call", "split", true};
    DescriptionEntry entry{"backend", "backend", value, true};
    return std::vector<DescriptionEntry>{call, entry};
  };
  spec.is_frame = true;
  spec.payload.assign(reinterpret_cast<const char*>(choices.data()), bytes);
  spec.reduce = [](absl::Span<const absl::Span<const char>> payloads, absl::Span<char> out) {
    std::fill(out.begin(), out.end(), '\0');
    for (absl::Span<const char> payload : payloads) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(out[i] | payload[i]);
    }
  };
  absl::StatusOr<std::shared_ptr<Call>> call = parent.engine().Post(std::move(spec));
  if (!call.ok()) return call.status();
  if (absl::Status status = (*call)->AwaitDecision(interrupt); !status.ok()) return status;
  const absl::Span<const char> result = (*call)->frame_result();
  if (result.size() != bytes) return absl::InternalError("a split's frame has another size");
  std::memcpy(all.data() + begin, result.data(), bytes);
  return (*call)->number();
}

}  // namespace

absl::StatusOr<Group> NewGroup(const Group& parent, absl::Span<const GlobalRank> ranks,
                               SubGroupOptions options) {
  if (ranks.empty()) return absl::InvalidArgumentError("a group of no ranks");
  std::vector<GlobalRank> members(ranks.begin(), ranks.end());
  std::sort(members.begin(), members.end());
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0 && members[i] == members[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", members[i].value(), " stands twice in the list of a group's ranks"));
    }
    if (absl::StatusOr<GroupRank> known = parent.ToGroup(members[i]); !known.ok()) {
      return absl::InvalidArgumentError(known.status().message());
    }
  }
  const auto me = std::find(members.begin(), members.end(), parent.global_rank());
  if (me == members.end()) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", parent.global_rank().value(),
                                                      " is not a member of the group of ",
                                                      FormatRanks(members)));
  }
  const GroupRank rank(static_cast<int>(me - members.begin()));
  std::string list;
  for (GlobalRank member : members) absl::StrAppend(&list, member.value(), ",");
  const XXH128_hash_t digest = Hash(absl::StrCat(list, "|", options.name));
  const std::string key = absl::StrFormat("sub/%016x%016x", digest.high64, digest.low64);
  absl::StatusOr<Group> group = absl::InternalError("not made");
  const absl::Status made = parent.engine().CountSubGroup(key, [&](int earlier) {
    group = Make(parent, absl::StrCat(key, "/", earlier), rank, std::move(members),
                 options.group.has_value() ? *std::move(options.group) : parent.options());
    return group.status();
  });
  if (!made.ok()) return made;
  return group;
}

absl::StatusOr<std::optional<Group>> SplitGroup(const Group& parent, std::optional<int> color,
                                                int key, SubGroupOptions options) {
  GroupOptions group_options =
      options.group.has_value() ? *std::move(options.group) : parent.options();
  if (absl::Status status = CheckOptions(group_options); !status.ok()) {
    const std::string where = absl::StrCat("split on rank ", parent.global_rank().value());
    return parent.engine().Refuse(CollectiveKind::kSplit, AnnotateStatus(status, where),
                                  absl::Now() + parent.options().timeout);
  }
  const Choice mine{.there = 1,
                    .colored = color.has_value() ? 1 : 0,
                    .color = color.value_or(0),
                    .key = key};
  const int size = parent.size();
  std::vector<Choice> choices(static_cast<size_t>(size));
  uint64_t number = 0;
  const int step = RanksInFrame(size);
  for (int begin = 0; begin < size; begin += step) {
    absl::StatusOr<uint64_t> call =
        Exchange(parent, begin, std::min(begin + step, size), mine, group_options.backend,
                 options.interrupt, choices);
    if (!call.ok()) return call.status();
    number = *call;
  }
  if (!color.has_value()) return std::nullopt;
  std::vector<std::pair<int, int>> order;  // key, rank in the parent
  for (int rank = 0; rank < size; ++rank) {
    const Choice& choice = choices[static_cast<size_t>(rank)];
    if (choice.there != 1) return absl::InternalError("a rank's choice is missing after a split");
    if (choice.colored == 1 && choice.color == *color) order.emplace_back(choice.key, rank);
  }
  std::sort(order.begin(), order.end());
  std::vector<GlobalRank> members;
  int me = -1;
  for (const auto& [unused_key, rank] : order) {
    if (rank == parent.rank().value()) me = static_cast<int>(members.size());
    members.push_back(parent.engine().global_rank(GroupRank(rank)));
  }
  if (me < 0) return absl::InternalError("this rank is not in its own split");
  absl::StatusOr<Group> group = Make(parent, absl::StrCat("split/", number, "/", *color),
                                     GroupRank(me), std::move(members), std::move(group_options));
  if (!group.ok()) return group.status();
  return std::optional<Group>(*std::move(group));
}

}  // namespace leafpack
