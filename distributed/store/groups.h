// Groups over stores that the caller has: a store of any kind, a file, or the memory of one process.
//
//   // Ranks as threads of one process:
//   ASSIGN_OR_RETURN(std::vector<leafpack::Group> groups, leafpack::LocalGroups(4));
//
// Making a group talks to nobody; the first collective connects, within its deadline. All functions
// are thread-safe.
#ifndef LEAFPACK_DISTRIBUTED_STORE_GROUPS_H_
#define LEAFPACK_DISTRIBUTED_STORE_GROUPS_H_

#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "absl/status/statusor.h"

#include "distributed/core/group.h"
#include "distributed/core/rank.h"

namespace c10d {
class Store;
}

namespace leafpack {

// A group over any c10d store. `prefix` keeps it apart from other users of the store: equal on all
// members, never used twice on one store. `global_ranks` as in Group::Create. Errors as there;
// Unavailable when the store itself fails.
absl::StatusOr<Group> GroupFromStore(c10::intrusive_ptr<c10d::Store> store, std::string_view prefix,
                                     int rank, int size, std::vector<GlobalRank> global_ranks = {},
                                     GroupOptions options = {});

// A group whose ranks meet in a file on a file system that all of them see and that has locks. A file
// of a dead run is replaced, whatever it died of, and never waited on; the last rank that goes removes
// the file and the one beside it, PATH.TOKEN. May be called again with the same path, for further
// groups: all ranks in one order. InvalidArgument, with the path, when its folder does not exist or
// cannot be written, or when it names a file of another kind; FailedPrecondition when a run there is
// alive that has this rank already, or another size.
absl::StatusOr<Group> GroupFromFile(const std::string& path, int rank, int size,
                                    GroupOptions options = {});

// The groups of ranks 0 .. size - 1 as threads of this process: element r belongs to rank r. For
// tests, and for programs that run replicas as threads.
absl::StatusOr<std::vector<Group>> LocalGroups(int size, GroupOptions options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_GROUPS_H_
