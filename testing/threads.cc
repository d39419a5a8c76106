#include "testing/threads.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace leafpack::internal {
namespace {

// What the ranks have come to.
struct Progress {
  absl::Mutex mu;
  std::vector<bool> returned ABSL_GUARDED_BY(mu);
  int missing ABSL_GUARDED_BY(mu) = 0;
  int first_failed ABSL_GUARDED_BY(mu) = -1;
};

// Runs one rank; true when it did not fail. The test's own flag tells of GoogleTest failures in
// this or, at the same time, in another rank: then either may be called the first.
bool RunOne(int rank, const std::function<absl::Status(int)>& body) {
  SCOPED_TRACE(absl::StrCat("rank ", rank));
  try {
    const absl::Status status = body(rank);
    if (!status.ok()) ADD_FAILURE() << "rank " << rank << ": " << status;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "rank " << rank << " threw: " << e.what();
  }
  return !::testing::Test::HasFailure();
}

}  // namespace

void RunRankThreads(int ranks, const std::function<absl::Status(int)>& body,
                    const RankThreadsOptions& options) {
  Progress progress;
  {
    absl::MutexLock lock(&progress.mu);
    progress.returned.resize(static_cast<size_t>(ranks), false);
    progress.missing = ranks;
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const bool ok = RunOne(rank, body);
      absl::MutexLock lock(&progress.mu);
      progress.returned[static_cast<size_t>(rank)] = true;
      --progress.missing;
      if (!ok && progress.first_failed < 0) progress.first_failed = rank;
    });
  }
  {
    absl::MutexLock lock(&progress.mu);
    const absl::Time deadline = absl::Now() + options.deadline;
    const auto settled = [&progress]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(progress.mu) {
      return progress.missing == 0 || progress.first_failed >= 0;
    };
    const auto all_returned = [&progress]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(progress.mu) {
      return progress.missing == 0;
    };
    progress.mu.AwaitWithDeadline(absl::Condition(&settled), deadline);
    if (progress.first_failed >= 0) {
      progress.mu.AwaitWithDeadline(absl::Condition(&all_returned),
                                    std::min(deadline, absl::Now() + options.after_failure));
    }
    if (progress.missing > 0) {
      std::string missing;
      for (int rank = 0; rank < ranks; ++rank) {
        if (!progress.returned[static_cast<size_t>(rank)]) absl::StrAppend(&missing, " ", rank);
      }
      std::fprintf(stderr, "RunRanksAsThreads: these ranks have not returned:%s", missing.c_str());
      if (progress.first_failed >= 0) {
        std::fprintf(stderr, "; rank %d had failed before", progress.first_failed);
      }
      std::fprintf(stderr, "\n");
      std::fflush(nullptr);
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace leafpack::internal
