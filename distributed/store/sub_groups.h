// Groups that are made of a part of another group's ranks: by a list, or by colour and key.
//
//   // On ranks 0 and 2, or on all ranks:
//   ASSIGN_OR_RETURN(leafpack::Group pair,
//                    leafpack::NewGroup(world, {leafpack::GlobalRank(0), leafpack::GlobalRank(2)}));
//   // On all ranks:
//   ASSIGN_OR_RETURN(std::optional<leafpack::Group> row, leafpack::SplitGroup(world, rank / 4));
//
// A new group meets over its parent's store, has a channel and a data path of its own, and outlives its
// parent. Any number of groups over the same ranks may exist at once.
#ifndef LEAFPACK_DISTRIBUTED_STORE_SUB_GROUPS_H_
#define LEAFPACK_DISTRIBUTED_STORE_SUB_GROUPS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/core/rank.h"

namespace leafpack {

struct SubGroupOptions {
  // Of NewGroup: keeps groups over equal lists apart whose order of making may differ between ranks.
  std::string name = {};
  // Backend, timeout and interface of the new group; empty: the parent's. Equal on all members.
  std::optional<GroupOptions> group = std::nullopt;
  // Of SplitGroup: as in collectives.
  InterruptCheck interrupt = nullptr;
};

// The group of `ranks`, which are among the parent's, in rising order whatever their order in the list:
// group rank i is the i-th smallest. Talks to nobody, so it may be called by the members alone or by all
// ranks of the parent. Its keys in the store are derived from the parent's, a digest of the list and
// `name`, and how often this rank has made a group of this list and name before: so the members make
// groups of equal lists and names in one order; groups of other lists may come between, in any order.
//
// FailedPrecondition on a rank that is no member. InvalidArgument for an empty list, a rank that stands
// twice or is none of the parent's, or bad options (NotFound for a backend): nothing is counted then.
absl::StatusOr<Group> NewGroup(const Group& parent, absl::Span<const GlobalRank> ranks,
                               SubGroupOptions options = {});

// A collective over the parent: ranks that give the same colour get one group, ordered by key and then
// by their rank in the parent. Without a colour a rank takes part and gets no group (nullopt). Ends by
// the parent's timeout, with the errors of a collective. Backends that differ between the ranks are a
// layout mismatch.
absl::StatusOr<std::optional<Group>> SplitGroup(const Group& parent, std::optional<int> color,
                                                int key = 0, SubGroupOptions options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_SUB_GROUPS_H_
