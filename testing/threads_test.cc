// Ranks as threads: who runs, what is reported, and that nothing hangs.
#include "testing/threads.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

TEST(RunRanksAsThreads, EachRankRunsOnceAndAtTheSameTime) {
  std::atomic<int> bits{0}, arrived{0};
  RunRanksAsThreads(4, [&](int rank) {
    bits.fetch_xor(1 << rank);
    arrived.fetch_add(1);
    const absl::Time until = absl::Now() + absl::Seconds(50);
    while (arrived.load() < 4 && absl::Now() < until) std::this_thread::yield();
    EXPECT_EQ(arrived.load(), 4);
  });
  EXPECT_EQ(bits.load(), 15);
}

TEST(RunRanksAsThreads, NoRanks) {
  RunRanksAsThreads(0, [](int) { ADD_FAILURE(); });
}

TEST(RunRanksAsThreads, AStatusIsAFailureThatNamesTheRank) {
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      RunRanksAsThreads(3,
                        [](int rank) {
                          return rank == 1 ? absl::NotFoundError("no such leaf") : absl::OkStatus();
                        }),
      "rank 1: NOT_FOUND: no such leaf");
}

TEST(RunRanksAsThreads, AnExceptionIsAFailureThatNamesTheRank) {
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(RunRanksAsThreads(2,
                                                           [](int rank) {
                                                             if (rank == 1) {
                                                               throw std::runtime_error("bad");
                                                             }
                                                           }),
                                         "rank 1 threw: bad");
}

TEST(RunRanksAsThreadsDeathTest, ADeadlineNamesTheMissingRanks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RankThreadsOptions options;
  options.deadline = absl::Milliseconds(200);
  EXPECT_DEATH(RunRanksAsThreads(
                   4, [](int rank) { if (rank % 2 == 1) absl::SleepFor(absl::Hours(1)); }, options),
               "have not returned: 1 3");
}

TEST(RunRanksAsThreadsDeathTest, AFailureDoesNotWaitForTheDeadline) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RankThreadsOptions options;
  options.deadline = absl::Hours(1);
  options.after_failure = absl::Milliseconds(100);
  EXPECT_DEATH(RunRanksAsThreads(
                   2,
                   [](int rank) {
                     if (rank == 0) absl::SleepFor(absl::Hours(1));
                     EXPECT_EQ(rank, 0);
                   },
                   options),
               "have not returned: 0; rank 1 had failed before");
}

}  // namespace
}  // namespace leafpack
