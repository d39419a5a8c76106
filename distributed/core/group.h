// A set of ranks that issue collectives together, in one order.
//
// A Group is a handle: copies share one state. Every group owns a control channel (agreement,
// refusals, loss of peers; see docs/protocol.md) and a data path of its own, both made lazily by the
// first collective, so making a group talks to nobody. All ranks issue calls on one group in one
// order; threads that call independently use groups of their own.
#ifndef LEAFPACK_DISTRIBUTED_CORE_GROUP_H_
#define LEAFPACK_DISTRIBUTED_CORE_GROUP_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"
#include "distributed/core/rank.h"

namespace c10d {
class Store;
}

namespace leafpack {

class Engine;  // distributed/core/engine.h: the calls of one group

struct GroupOptions {
  std::string backend = "gloo";                    // a name from BackendNames()
  absl::Duration timeout = absl::Minutes(5);       // of calls that give none; > 0
  std::string interface_name{};                    // network interface; empty: chosen
};

class Group {
 public:
  // A group over `store`. `prefix` separates groups that share a store: equal on all members, never
  // used twice on one store. `global_ranks[i]` is the job-wide rank of group rank i (distinct);
  // empty means that they are equal. InvalidArgument when rank, size, ranks or timeout are no good,
  // NotFound for an unknown backend. The store is cloned, never used by two threads at once.
  static absl::StatusOr<Group> Create(c10::intrusive_ptr<c10d::Store> store, std::string_view prefix,
                                      GroupRank rank, int size, std::vector<GlobalRank> global_ranks,
                                      GroupOptions options);

  GroupRank rank() const;
  int size() const;
  GlobalRank global_rank() const;
  const GroupOptions& options() const;
  Backend& backend() const;

  // Translation; OutOfRange / NotFound names the rank and the group's size or members.
  absl::StatusOr<GlobalRank> ToGlobal(GroupRank rank) const;
  absl::StatusOr<GroupRank> ToGroup(GlobalRank rank) const;

  // Drains calls in flight up to `timeout`, withdraws the rest, says BYE and closes the channel.
  // Further calls are FailedPrecondition. The last handle that goes does the same with 5 s at most.
  absl::Status Shutdown(absl::Duration timeout);

  Engine& engine() const;  // for collectives (distributed/tree), not for users

 private:
  explicit Group(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  std::shared_ptr<Engine> engine_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_GROUP_H_
