// Checks in forked ranks, where GoogleTest's assertions reach nobody.
#ifndef LEAFPACK_DISTRIBUTED_CORE_TESTING_CHILD_CHECK_H_
#define LEAFPACK_DISTRIBUTED_CORE_TESTING_CHILD_CHECK_H_

#include <cstdio>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "distributed/core/error.h"
#include "distributed/core/rank.h"

// Says what failed and ends the child's body with code 1. The body has a variable `rank`.
#define LEAFPACK_CHILD_CHECK(condition, what)                                        \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, #condition, \
                   absl::StrCat(what).c_str());                                      \
      return 1;                                                                      \
    }                                                                                \
  } while (false)

namespace leafpack::testing {

// Whether the error is about `rank` and no other.
inline bool NamesOnly(const absl::Status& status, int rank) {
  return GetErrorDetails(status).ranks == std::vector<GlobalRank>{GlobalRank(rank)};
}

}  // namespace leafpack::testing

#endif  // LEAFPACK_DISTRIBUTED_CORE_TESTING_CHILD_CHECK_H_
