// The transport between processes: agreements in a row, ranks that are late, killed or stopped. This
// process itself stays without threads, so that its children may start theirs.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/channel/channel_testutil.h"
#include "distributed/core/channel/star_testutil.h"

namespace leafpack {
namespace {

using ::testing::Each;

constexpr size_t kRecordBytes = 56;

ConnectorOptions Options(int rank, int size, bool tcp) {
  ConnectorOptions options;
  options.rank = rank;
  options.size = size;
  options.library_version = "1";
  options.loopback_only = true;
  options.use_unix = !tcp;
  return options;
}

absl::Time Patience() { return absl::Now() + kTestPatience; }

class ProcessesTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  bool tcp() const { return std::get<1>(GetParam()); }
  std::unique_ptr<Star> MakeStar(int rank, size_t record_bytes = kRecordBytes) const {
    return std::make_unique<Star>(NewDirectoryStore(folder_), Options(rank, size(), tcp()), record_bytes);
  }
  const std::string folder_ = NewTestFolder();
};

TEST_P(ProcessesTest, ManyAgreements) {
  EXPECT_THAT(RunRanks(size(),
                       [&](int rank) {
                         std::unique_ptr<Star> star = MakeStar(rank);
                         std::mt19937 random(static_cast<unsigned>(rank));
                         for (int round = 0; round < 1000; ++round) {
                           ASSERT_EQ(star->Agree(Patience()), absl::OkStatus()) << round;
                           if (random() % 50 == 0) absl::SleepFor(absl::Microseconds(random() % 3000));
                         }
                         if (rank == 0) {
                           EXPECT_EQ(star->connector().all_local(), !tcp());
                         }
                       }),
              Each(0));
}

TEST_P(ProcessesTest, LargeRecords) {
  EXPECT_THAT(RunRanks(size(),
                       [&](int rank) {
                         std::unique_ptr<Star> star = MakeStar(rank, size_t{3} << 20);
                         for (int round = 0; round < 5; ++round) {
                           ASSERT_EQ(star->Agree(Patience()), absl::OkStatus()) << round;
                         }
                       }),
              Each(0));
}

// The first or the last rank comes more than a second after the others.
TEST_P(ProcessesTest, LateRank) {
  for (int late : {0, size() - 1}) {
    const std::string folder = NewTestFolder();
    EXPECT_THAT(RunRanks(size(),
                         [&](int rank) {
                           if (rank == late) absl::SleepFor(absl::Milliseconds(1200));
                           Star star(NewDirectoryStore(folder), Options(rank, size(), tcp()), kRecordBytes);
                           EXPECT_EQ(star.Agree(Patience()), absl::OkStatus());
                           EXPECT_EQ(star.Agree(Patience()), absl::OkStatus());
                         }),
                Each(0));
  }
}

// A rank that is killed in a stream of agreements is seen by its peer as a hang-up, soon.
TEST_P(ProcessesTest, KilledRankIsSeen) {
  for (int victim : {0, size() - 1}) {
    const std::string folder = NewTestFolder();
    const std::vector<int> statuses = RunRanks(size(), [&](int rank) {
      Star star(NewDirectoryStore(folder), Options(rank, size(), tcp()), kRecordBytes);
      for (int round = 0; round < 50; ++round) ASSERT_EQ(star.Agree(Patience()), absl::OkStatus()) << round;
      if (rank == victim) raise(SIGKILL);
      if (rank != 0 && victim != 0) return;  // rank 0 alone hears of it at this level
      const absl::Time start = absl::Now();
      absl::Status status = star.Agree(Patience());
      // Ranks that left on their own, or the victim: whose end comes first.
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_LT(absl::Now() - start, absl::Seconds(30));
    });
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(statuses[static_cast<size_t>(rank)]));
      } else {
        EXPECT_EQ(statuses[static_cast<size_t>(rank)], 0) << rank;
      }
    }
  }
}

// A stopped rank delays, and nothing else, also while the group is being connected.
TEST_P(ProcessesTest, StoppedRanksGoOn) {
  for (int victim : {0, size() - 1}) {
    const std::string folder = NewTestFolder();
    EXPECT_THAT(RunRanks(size(),
                         [&](int rank) {
                           pid_t waker = 0;
                           if (rank == victim) {
                             const pid_t self = getpid();
                             waker = fork();
                             if (waker == 0) {
                               for (int i = 0; i < 5; ++i) {
                                 kill(self, SIGSTOP);
                                 usleep(200000);
                                 kill(self, SIGCONT);
                                 usleep(20000);
                               }
                               _exit(0);
                             }
                           }
                           Star star(NewDirectoryStore(folder), Options(rank, size(), tcp()), kRecordBytes);
                           for (int round = 0; round < 300; ++round) {
                             ASSERT_EQ(star.Agree(Patience()), absl::OkStatus()) << round;
                             absl::SleepFor(absl::Milliseconds(2));
                           }
                           if (waker != 0) waitpid(waker, nullptr, 0);
                         }),
                Each(0));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProcessesTest,
                         testing::Combine(testing::Values(2, 3, 4), testing::Bool()),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), "_ranks_",
                                               std::get<1>(test.param) ? "tcp" : "unix");
                         });

}  // namespace
}  // namespace leafpack
