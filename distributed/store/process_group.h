// Groups around c10d process groups that somebody else made, in C++ or in Python.
//
// Such a group has a channel and a data path of its own, over the process group's store under a
// prefix: nothing of it passes through the process group, so the owner's collectives are never
// disturbed, whatever their order.
#ifndef LEAFPACK_DISTRIBUTED_STORE_PROCESS_GROUP_H_
#define LEAFPACK_DISTRIBUTED_STORE_PROCESS_GROUP_H_

#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "absl/status/statusor.h"

#include "distributed/core/group.h"
#include "distributed/core/rank.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace leafpack {

struct WrapOptions {
  std::string backend = "gloo";  // as in GroupOptions
  std::string interface_name = {};  // as in GroupOptions
  // Job-wide rank of each member; empty: what the process group knows, else equal to its own ranks.
  std::vector<GlobalRank> global_ranks = {};
};

// The group around `process_group`, with its ranks and its timeout. Made once: further calls with the
// same process group give the same Group (and leave `options` unread). Neither keeps the other alive:
// when the process group is gone its group is shut down by the next call of this function, and the
// store stays until then. Every member calls it before its first collective; that talks to nobody.
// InvalidArgument for null; FailedPrecondition for a process group without a store. Thread-safe.
absl::StatusOr<Group> GroupFromProcessGroup(
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group, WrapOptions options = {});

// The same around a single backend, which does not know its store: `store` must be one that all its
// members share, and `prefix` as in GroupFromStore.
absl::StatusOr<Group> GroupFromBackend(const c10::intrusive_ptr<c10d::Backend>& backend,
                                       c10::intrusive_ptr<c10d::Store> store,
                                       std::string_view prefix, WrapOptions options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_PROCESS_GROUP_H_
