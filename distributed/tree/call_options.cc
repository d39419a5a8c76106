#include "distributed/tree/call_options.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace leafpack {

absl::StatusOr<GroupRank> Root::In(const Group& group) const {
  if (const auto* rank = std::get_if<GroupRank>(&rank_)) {
    if (rank->value() >= 0 && rank->value() < group.size()) return *rank;
    return absl::InvalidArgumentError(absl::StrCat("there is no group rank ", rank->value(),
                                                   " in a group of ", group.size()));
  }
  const auto rank = std::get<GlobalRank>(rank_);
  absl::StatusOr<GroupRank> found = group.ToGroup(rank);
  if (found.ok()) return found;
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank.value(), " is not a member of this group of ", group.size()));
}

absl::Status RefuseCall(const Group& group, CollectiveKind kind, absl::Status reason) {
  return group.engine().Refuse(kind, std::move(reason), absl::Now() + group.options().timeout);
}

}  // namespace leafpack
