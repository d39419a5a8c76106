// Groups from a URL that says where the ranks of a job meet.
#ifndef LEAFPACK_DISTRIBUTED_STORE_URL_H_
#define LEAFPACK_DISTRIBUTED_STORE_URL_H_

#include <string_view>

#include "absl/status/statusor.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"

namespace leafpack {

// The group of `size` ranks that meet at `url`:
//
//   env://            the launcher's variables, as GroupFromEnvironment. `rank` and `size` may be left
//                     out (-1); where they are given they must be those of the environment
//   tcp://HOST:PORT   rank 0 serves a store there, until its process ends. IPv6 hosts in brackets
//   file://PATH       a file that all ranks see, as GroupFromFile. file:///tmp/x is the file /tmp/x
//
// May be called again with the same URL for further groups: all ranks in the same order.
// InvalidArgument for a URL, a rank or a size that is no good; the text has it. Cancelled when `interrupt`
// says so while env:// or tcp:// waits for the store. Further errors as of the functions above. Thread-safe.
// (A group over a store that the caller has: GroupFromStore.)
absl::StatusOr<Group> GroupFromUrl(std::string_view url, int rank = -1, int size = -1,
                                   GroupOptions options = {},
                                   const InterruptCheck& interrupt = nullptr);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_URL_H_
