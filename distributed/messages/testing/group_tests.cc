// Groups of processes on the real data path: ends right after the last call, deaths and interrupts in
// the middle of data. This process has no threads, so that it may fork.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/child_check.h"
#include "distributed/core/testing/ranks.h"
#include "distributed/messages/testing/tested_backend.h"

namespace leafpack {
namespace {

using testing::CallArgs;
using testing::Eventually;
using testing::MakeSpec;
using testing::Shared;
using testing::SumData;
using testing::TempDir;

constexpr int kRanks = 3;
constexpr size_t kElements = size_t{1} << 20;  // 4 MiB

Group MakeGroup(const TempDir& dir, int rank) {
  return testing::MakeFileGroup(dir.path() + "/store", rank, kRanks, testing::kPatience,
                                std::string(testing::TestedBackend()->name()));
}

std::vector<float> Ones() { return std::vector<float>(kElements, 1); }

enum class End { kUnderscoreExit, kDestructor };

class MessageEndTest : public ::testing::TestWithParam<End> {};
INSTANTIATE_TEST_SUITE_P(Ends, MessageEndTest,
                         ::testing::Values(End::kUnderscoreExit, End::kDestructor));

TEST_P(MessageEndTest, RightAfterTheLastCallLosesNothing) {
  for (int round = 0; round < 8; ++round) {
    TempDir dir;
    const std::vector<int> codes = testing::OnProcesses(kRanks, [&](int rank) {
      auto* group = new Group(MakeGroup(dir, rank));
      std::vector<float> values = Ones();
      const absl::Status status = SumData(*group, values, {.restore = round % 2 == 1});
      LEAFPACK_CHILD_CHECK(status.ok(), status.ToString());
      LEAFPACK_CHILD_CHECK(values == std::vector<float>(kElements, kRanks), "values");
      if (GetParam() == End::kDestructor) delete group;
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(kRanks, 0)) << "round " << round;
  }
}

TEST(MessageGroupTest, ARankThatIsKilledInDataIsNamedSoon) {
  for (int victim = 0; victim < kRanks; ++victim) {
    TempDir dir;
    struct Flags {
      std::atomic<int> through;
    };
    auto& flags = Shared<Flags>();
    const std::vector<int> codes = testing::OnProcesses(kRanks, [&](int rank) {
      Group group = MakeGroup(dir, rank);
      std::vector<float> values = Ones();
      absl::Status status = SumData(group, values);
      LEAFPACK_CHILD_CHECK(status.ok(), status.ToString());
      if (rank == victim) {
        auto call = group.engine().Post(MakeSpec({}));
        LEAFPACK_CHILD_CHECK(call.ok(), call.status().ToString());
        LEAFPACK_CHILD_CHECK((*call)->AwaitDecision().ok() && (*call)->EnterData().ok(), "");
        usleep(50'000);
        kill(getpid(), SIGKILL);
      }
      const absl::Time start = absl::Now();
      status = SumData(group, values);
      LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kUnavailable, status.ToString());
      LEAFPACK_CHILD_CHECK(testing::NamesOnly(status, victim), status.ToString());
      LEAFPACK_CHILD_CHECK(absl::Now() - start < testing::kPatience / 2, "");
      ++flags.through;
      LEAFPACK_CHILD_CHECK(Eventually([&] { return flags.through == kRanks - 1; }), "");
      return 0;
    });
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_EQ(codes[static_cast<size_t>(r)], r == victim ? 128 + SIGKILL : 0) << "rank " << r;
    }
  }
}

TEST(MessageGroupTest, InterruptedDataPhasesLeaveNothingBehind) {
  constexpr int kRounds = 40;
  constexpr int kSettled = 6;  // dead contexts and threads that come and go
  TempDir dir;
  const std::vector<int> codes = testing::OnProcesses(kRanks, [&](int rank) {
    Group group = MakeGroup(dir, rank);
    int threads = 0, descriptors = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values = Ones();
      absl::Status status;
      if (rank == 1) {
        // Comes into the data phase and never sends.
        auto call = group.engine().Post(MakeSpec({}));
        LEAFPACK_CHILD_CHECK(call.ok(), call.status().ToString());
        LEAFPACK_CHILD_CHECK((*call)->AwaitDecision().ok(), "");
        LEAFPACK_CHILD_CHECK((*call)->EnterData().ok(), "");
        usleep(20'000);
        status = (*call)->FinishData(absl::CancelledError("interrupted"), {});
      } else {
        status = SumData(group, values);
      }
      LEAFPACK_CHILD_CHECK(status.code() == absl::StatusCode::kCancelled, status.ToString());
      values = Ones();
      status = SumData(group, values);
      LEAFPACK_CHILD_CHECK(status.ok(), status.ToString());
      LEAFPACK_CHILD_CHECK(values[kElements - 1] == kRanks, values[kElements - 1]);
      if (round == kSettled) {
        threads = testing::CountThreads();
        descriptors = testing::CountDescriptors();
      }
    }
    // Contexts are freed when the next one opens: up to four stay, each with its threads and sockets.
    LEAFPACK_CHILD_CHECK(Eventually([&] { return testing::CountThreads() <= threads + 2; }),
                         absl::StrCat(testing::CountThreads(), " threads, ", threads, " before"));
    LEAFPACK_CHILD_CHECK(testing::CountDescriptors() <= descriptors + 4,
                         absl::StrCat(testing::CountDescriptors(), " descriptors, ", descriptors,
                                      " before"));
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(kRanks, 0));
}

}  // namespace
}  // namespace leafpack
