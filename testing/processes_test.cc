// Forked ranks and the faults that tests use on them.
#include "testing/processes.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

#include "testing/faults.h"

namespace leafpack {
namespace {

TEST(RankProcesses, RanksShareAFolderABoardAndTorchrunsVariables) {
  RankProcesses job(3);
  job.Run([](RankContext& rank) {
    EXPECT_EQ(std::to_string(rank.rank()), std::getenv("RANK"));
    EXPECT_EQ(std::string(std::getenv("WORLD_SIZE")), "3");
    std::ofstream(absl::StrCat(rank.directory(), "/", rank.rank())) << getpid();
    ASSERT_TRUE(rank.Barrier(0));
    EXPECT_EQ(rank.Count(0), 3);
    for (int r = 0; r < 3; ++r) {
      pid_t pid = 0;
      std::ifstream(absl::StrCat(rank.directory(), "/", r)) >> pid;
      EXPECT_EQ(pid, rank.PidOf(r));
    }
    EXPECT_TRUE(rank.Barrier(1));
  });
  EXPECT_EQ(job.result().exit_code, 0);
}

// The failure itself is printed by the rank; this looks at what becomes of it.
TEST(RankProcesses, AFailedExpectationOrAnExceptionInARankEndsItWithCode1) {
  RankProcesses job(3);
  job.ExpectExit(1, {1, 0});
  job.ExpectExit(2, {1, 0});
  job.Run([](RankContext& rank) {
    EXPECT_NE(rank.rank(), 1) << "meant to fail";
    if (rank.rank() == 2) throw std::runtime_error("meant to fail");
  });
  EXPECT_EQ(job.result().exit_code, 0);
}

TEST(RankProcesses, ARankThatEndsBadlyIsAFailureThatNamesIt) {
  EXPECT_NONFATAL_FAILURE(
      {
        RankProcesses job(2);
        job.Run([](RankContext& rank) {
          if (rank.rank() == 1) _exit(3);
        });
      },
      "exited with code 3");
}

TEST(RankProcesses, AHangIsAFailure) {
  EXPECT_NONFATAL_FAILURE(
      {
        RankProcesses job(2);
        job.SetTimeout(absl::Seconds(1));
        job.Run([](RankContext& rank) {
          if (rank.rank() == 1) absl::SleepFor(absl::Hours(1));
        });
      },
      "did not end within 1s; rank 1 was still running");
}

TEST(RankProcesses, ExpectedDeaths) {
  RankProcesses job(3);
  job.ExpectExit(1, {0, SIGKILL});
  job.ExpectExit(2, {0, SIGTERM});
  job.Run([](RankContext& rank) {
    if (rank.rank() == 1) KillSelf();
    if (rank.rank() == 2) {
      signal(SIGTERM, SIG_IGN);
      KillSelf(SIGTERM);
    }
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (rank.PidOf(1) == 0 || IsAlive(rank.PidOf(1)) || IsAlive(rank.PidOf(2))) {
      ASSERT_LT(absl::Now(), until);
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  EXPECT_EQ(job.result().exit_code, 0);
}

TEST(Faults, AStoppedRankGoesOn) {
  RankProcesses job(2);
  job.Run([](RankContext& rank) {
    rank.Barrier(0);
    if (rank.rank() == 1) {
      const absl::Time start = absl::Now();
      StopSelfFor(absl::Milliseconds(500));
      EXPECT_GE(absl::Now() - start, absl::Milliseconds(400));
      rank.Signal(1);
    } else {
      const absl::Time until = absl::Now() + absl::Seconds(30);
      while (!IsStopped(rank.PidOf(1)) && absl::Now() < until) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_LT(absl::Now(), until) << "never stopped";
      EXPECT_TRUE(rank.Await(1));
    }
  });
}

TEST(Faults, Later) {
  RankProcesses job(1);
  job.ExpectExit(0, {0, SIGABRT});
  job.Run([](RankContext&) {
    Later later(absl::Milliseconds(50), [] { KillSelf(SIGABRT); });
    absl::SleepFor(absl::Seconds(30));
  });
}

TEST(Faults, Counts) {
  const int before = CountDescriptors();
  const int fd = dup(1);
  EXPECT_EQ(CountDescriptors(), before + 1);
  close(fd);
  EXPECT_EQ(CountThreads(), 1);
}

}  // namespace
}  // namespace leafpack
