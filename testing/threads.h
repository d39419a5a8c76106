// Ranks as threads of one process, for fast unit tests of what needs no process per rank.
//
//   RunRanksAsThreads(4, [&](int rank) {
//     EXPECT_OK(Exchange(rank));       // failures are reported with their rank
//   });
#ifndef LEAFPACK_TESTING_THREADS_H_
#define LEAFPACK_TESTING_THREADS_H_

#include <functional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace leafpack {

struct RankThreadsOptions {
  // For all ranks together.
  absl::Duration deadline = absl::Seconds(60);
  // What the others get after one rank has failed: they may wait for it in vain.
  absl::Duration after_failure = absl::Seconds(10);
};

namespace internal {
void RunRankThreads(int ranks, const std::function<absl::Status(int)>& body,
                    const RankThreadsOptions& options);
}

// Calls `body(rank)` for rank 0 to ranks - 1, each in a thread, and returns when all have returned.
// `body` returns void or absl::Status. GoogleTest failures in it carry a trace "rank r"; a status
// that is not OK and an exception are failures of the test. A thread cannot be ended from outside:
// when one has not returned by the deadline the process says which ranks are missing and aborts.
template <typename Body>
void RunRanksAsThreads(int ranks, Body body, const RankThreadsOptions& options = {}) {
  if constexpr (std::is_void_v<std::invoke_result_t<Body&, int>>) {
    internal::RunRankThreads(
        ranks,
        [&body](int rank) {
          body(rank);
          return absl::OkStatus();
        },
        options);
  } else {
    internal::RunRankThreads(ranks, [&body](int rank) -> absl::Status { return body(rank); },
                             options);
  }
}

}  // namespace leafpack

#endif  // LEAFPACK_TESTING_THREADS_H_
