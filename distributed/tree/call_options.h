// Arguments that collectives on trees share: the options of a call, and the rank at its root.
#ifndef LEAFPACK_DISTRIBUTED_TREE_CALL_OPTIONS_H_
#define LEAFPACK_DISTRIBUTED_TREE_CALL_OPTIONS_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/core/rank.h"
#include "distributed/tree/filter.h"
#include "distributed/tree/tree_work.h"

namespace leafpack {

struct CallOptions {
  // Of the whole call, from now; InfiniteDuration means the group's. Must be > 0.
  absl::Duration timeout = absl::InfiniteDuration();
  // Part of the agreement: a mix-up of two calls that look alike becomes an error. At most 256 bytes.
  std::string name{};
  // kFirst and kOff matter to backends that enqueue on devices; host backends agree on every call.
  CheckMode check = CheckMode::kAlways;
  // Packed bytes in flight on this rank stay under this (a message larger than it goes alone).
  int64_t max_in_flight_bytes = int64_t{64} << 20;
  // Asked about every 50 ms by the waits of a synchronous call; true gives the call up.
  InterruptCheck interrupt{};
  // What a failure after data began to move leaves in leaves that are written in place (see filter.h).
  // Part of the agreement.
  OnFailure on_failure = OnFailure::kReport;
  // If not null, filled by a synchronous call with where its time went.
  CollectiveStats* stats = nullptr;
};

// The rank that a collective turns around: by its place in the group or in the job.
class Root {
 public:
  Root(GroupRank rank) : rank_(rank) {}   // NOLINT(runtime/explicit)
  Root(GlobalRank rank) : rank_(rank) {}  // NOLINT(runtime/explicit)

  // Its place in `group`. InvalidArgument names the rank and the group's size when it is no member.
  absl::StatusOr<GroupRank> In(const Group& group) const;

 private:
  std::variant<GroupRank, GlobalRank> rank_;
};

// Posts a refusal in place of a call, for a caller (a binding) that could not read its arguments: the
// other ranks get FailedPrecondition with this reason, nobody waits for a deadline. Returns `reason`.
absl::Status RefuseCall(const Group& group, CollectiveKind kind, absl::Status reason);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_CALL_OPTIONS_H_
