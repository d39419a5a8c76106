// Groups over the backend "shm" whose ranks are processes: deaths at any moment leave nothing behind,
// survivors name the dead, ranks that do not share memory use Gloo. This process has no threads, so
// that it may fork.
#include <dirent.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/engine.h"
#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/ranks.h"

// A check in a child: says what failed and ends the child's body with code 1.
#define CHILD_CHECK(condition, what)                                              \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, #condition, \
                   absl::StrCat(what).c_str());                                   \
      return 1;                                                                   \
    }                                                                             \
  } while (false)

namespace leafpack {
namespace {

using testing::CallArgs;
using testing::Eventually;
using testing::MakeSpec;
using testing::Shared;
using testing::SumData;
using testing::TempDir;

Group MakeGroup(const TempDir& dir, int rank, int size) {
  return testing::MakeFileGroup(dir.path() + "/store", rank, size, testing::kPatience, "shm");
}

// Files that shared memory could leave behind, by all processes of this user.
std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> names;
  DIR* folder = opendir("/dev/shm");
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder)) names.insert(entry->d_name);
  closedir(folder);
  return names;
}

// Abstract Unix names of the library that are open in this network namespace.
int OpenNames() {
  std::ifstream file("/proc/net/unix");
  std::string line;
  int count = 0;
  while (std::getline(file, line)) count += absl::StrContains(line, "@leafpack-") ? 1 : 0;
  return count;
}

class ShmGroupTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmGroupTest, ::testing::Values(2, 4, 8),
                         [](const auto& tested) { return absl::StrCat(tested.param); });

// Also more ranks than cores: nobody may starve.
TEST_P(ShmGroupTest, SumsOfManySizes) {
  const int ranks = GetParam();
  TempDir dir;
  const std::vector<int> codes = testing::OnProcesses(ranks, [&](int rank) {
    Group group = MakeGroup(dir, rank, ranks);
    for (int round = 0; round < 3; ++round) {
      for (const size_t count : {1, 1000, 100'000, 2'000'000}) {
        std::vector<float> values(count, static_cast<float>(rank + 1));
        const absl::Status status = SumData(group, values);
        CHILD_CHECK(status.ok(), status.ToString());
        const float sum = static_cast<float>(ranks * (ranks + 1)) / 2;
        CHILD_CHECK(values == std::vector<float>(count, sum), count);
      }
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(ranks), 0));
}

TEST(ShmGroupDeathTest, KillsAtAnyMomentLeaveNothingAndAreNamed) {
  constexpr int kRounds = 50;
  constexpr int kRanks = 3;
  const std::set<std::string> files = SharedMemoryFiles();
  const int names = OpenNames();
  std::random_device seeds;
  const unsigned seed = seeds();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  int opening = 0;  // kills that came before the first call was through
  for (int round = 0; round < kRounds; ++round) {
    TempDir dir;
    const int victim = static_cast<int>(random() % kRanks);
    // From the opening of the shared memory to the midst of calls.
    const unsigned delay_us = random() % 25'000;
    struct Flags {
      std::atomic<int> ready, through, calls;
    };
    auto& flags = Shared<Flags>();
    std::vector<pid_t> pids;
    for (int rank = 0; rank < kRanks; ++rank) {
      pids.push_back(testing::Fork([&, rank] {
        Group group = MakeGroup(dir, rank, kRanks);
        // Connected to each other; from here on a death is seen by hang-up, also while the first call
        // opens the shared memory.
        std::vector<float> frame = {1.0f};
        absl::Status status = testing::SumFrame(group, frame);
        CHILD_CHECK(status.ok(), status.ToString());
        ++flags.ready;
        for (int call = 0; status.ok(); ++call) {
          std::vector<float> values(call % 2 == 0 ? 3000 : 700'000, 1.0f);
          status = SumData(group, values);
          if (status.ok()) flags.calls = call + 1;
        }
        CHILD_CHECK(absl::IsUnavailable(status), status.ToString());
        CHILD_CHECK(
            GetErrorDetails(status).ranks == std::vector<GlobalRank>{GlobalRank(victim)},
            status.ToString());
        // Not before the other one has seen it too: it must name the victim, not this rank.
        ++flags.through;
        Eventually([&] { return flags.through >= kRanks - 1; });
        return 0;
      }));
    }
    ASSERT_TRUE(Eventually([&] { return flags.ready == kRanks; }));
    usleep(delay_us);
    kill(pids[static_cast<size_t>(victim)], SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(testing::Wait(pids[static_cast<size_t>(rank)]),
                rank == victim ? 128 + SIGKILL : 0)
          << "round " << round << " rank " << rank << " victim " << victim << " after "
          << delay_us << " us";
    }
    opening += flags.calls == 0 ? 1 : 0;
    if (HasFailure()) break;
  }
  std::printf("%d of %d kills came while the shared memory was opened\n", opening, kRounds);
  EXPECT_EQ(SharedMemoryFiles(), files);
  EXPECT_TRUE(Eventually([&] { return OpenNames() <= names; }));
}

TEST(ShmGroupDeathTest, AStoppedRankIsNamedAtTheDeadline) {
  constexpr int kRanks = 3;
  TempDir dir;
  struct Flags {
    std::atomic<int> pid, through;
  };
  auto& flags = Shared<Flags>();
  const std::vector<int> codes = testing::OnProcesses(kRanks, [&](int rank) {
    Group group = MakeGroup(dir, rank, kRanks);
    std::vector<float> values(100'000, 1.0f);
    absl::Status status = SumData(group, values);
    CHILD_CHECK(status.ok(), status.ToString());
    if (rank == 1) {
      auto call = group.engine().Post(MakeSpec({}));
      CHILD_CHECK(call.ok() && (*call)->AwaitDecision().ok() && (*call)->EnterData().ok(), "");
      flags.pid = getpid();
      kill(getpid(), SIGSTOP);
      return 0;
    }
    status = SumData(group, values, {.timeout = absl::Milliseconds(400)});
    CHILD_CHECK(absl::IsDeadlineExceeded(status), status.ToString());
    CHILD_CHECK(GetErrorDetails(status).ranks == std::vector<GlobalRank>{GlobalRank(1)},
                status.ToString());
    if (++flags.through == kRanks - 1) kill(flags.pid, SIGCONT);
    CHILD_CHECK(Eventually([&] { return flags.through == kRanks - 1; }), "");
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(kRanks, 0));
}

TEST(ShmGroupTest, InterruptedDataPhasesLeaveNothingBehind) {
  constexpr int kRanks = 3;
  constexpr int kRounds = 30;
  constexpr int kSettled = 8;  // dead contexts that come and go
  TempDir dir;
  const std::vector<int> codes = testing::OnProcesses(kRanks, [&](int rank) {
    Group group = MakeGroup(dir, rank, kRanks);
    int descriptors = 0, threads = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values(300'000, 1.0f);
      absl::Status status;
      if (rank == 1) {
        // Comes into the data phase and never sends.
        auto call = group.engine().Post(MakeSpec({}));
        CHILD_CHECK(call.ok(), call.status().ToString());
        CHILD_CHECK((*call)->AwaitDecision().ok(), "");
        CHILD_CHECK((*call)->EnterData().ok(), "");
        usleep(5'000);
        status = (*call)->FinishData(absl::CancelledError("interrupted"), {});
      } else {
        status = SumData(group, values);
      }
      CHILD_CHECK(status.code() == absl::StatusCode::kCancelled, status.ToString());
      values.assign(300'000, 1.0f);
      status = SumData(group, values);
      CHILD_CHECK(status.ok(), status.ToString());
      CHILD_CHECK(values.back() == kRanks, values.back());
      if (round == kSettled) {
        descriptors = testing::CountDescriptors();
        threads = testing::CountThreads();
      }
    }
    CHILD_CHECK(Eventually([&] { return testing::CountThreads() <= threads + 2; }),
                testing::CountThreads());
    // Contexts are freed when the next one opens: up to four stay, with a socket for each peer.
    CHILD_CHECK(testing::CountDescriptors() <= descriptors + 4 * kRanks,
                absl::StrCat(testing::CountDescriptors(), " descriptors, ", descriptors, " before"));
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(kRanks, 0));
}

}  // namespace
}  // namespace leafpack
