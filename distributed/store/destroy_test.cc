// Groups that end while calls are in flight, over Gloo: they drain up to a deadline, give the rest up,
// and the process lives on with what it had.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

#include "distributed/core/engine.h"
#include "distributed/store/group_testutil.h"
#include "distributed/store/groups.h"
#include "testing/faults.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

CallSpec Spec(bool frame) {
  CallSpec spec;
  spec.name = "pending";
  spec.digest = 7;
  spec.async = true;
  spec.describe = [] { return std::vector<DescriptionEntry>(); };
  spec.deadline = absl::Now() + kPatience;
  if (frame) {
    spec.is_frame = true;
    spec.payload = "x";
    spec.reduce = [](absl::Span<const absl::Span<const char>>, absl::Span<char> out) { out[0] = 'y'; };
  }
  return spec;
}

class DestroyTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Calls, DestroyTest, ::testing::Values(true, false),
                         [](const auto& tested) { return tested.param ? "Frames" : "Data"; });

// Nobody else makes the call: it cannot end. Which rank is left alone does not matter.
TEST_P(DestroyTest, WorkThatNeverEndsIsGivenUpAtTheDeadline) {
  for (int alone : {0, 1}) {
    std::vector<Group> groups = LocalGroups(2).value();
    RunRanksAsThreads(2, [&](int rank) { EXPECT_EQ(FrameSum(groups[rank], 1).value_or(-1), 2); });
    Group group = groups[alone];
    std::shared_ptr<Call> call = group.engine().Post(Spec(GetParam())).value();
    const absl::Time start = absl::Now();
    EXPECT_TRUE(group.Shutdown(absl::Milliseconds(300)).ok());
    EXPECT_GE(absl::Now() - start, absl::Milliseconds(300));  // it had its time
    EXPECT_LT(absl::Now() - start, kPatience / 2);
    const absl::Status ended = call->AwaitDecision();
    EXPECT_TRUE(absl::IsCancelled(ended) || absl::IsUnavailable(ended)) << ended;
    EXPECT_EQ(FrameSum(group, 1).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(group.Shutdown(absl::Seconds(1)).ok());  // again, and nothing happens
  }
}

// All make it: it ends well, though the group is being shut down.
TEST_P(DestroyTest, WorkThatCanEndIsDrained) {
  std::vector<Group> groups = LocalGroups(3).value();
  RunRanksAsThreads(3, [&](int rank) {
    std::vector<std::shared_ptr<Call>> calls;
    for (int i = 0; i < 20; ++i) {
      calls.push_back(groups[rank].engine().Post(Spec(GetParam())).value());
      if (!GetParam()) {
        // The data phase, empty, in the group's worker as an asynchronous call has it.
        groups[rank].engine().RunInWorker([call = calls.back()] {
          absl::Status status = call->AwaitDecision();
          if (status.ok()) status = call->EnterData().status();
          call->LeaveTurnstile();
          call->FinishData(status, {}).IgnoreError();
        });
      }
    }
    if (rank == 2) absl::SleepFor(absl::Milliseconds(200));
    EXPECT_TRUE(groups[rank].Shutdown(kPatience).ok());
    for (const std::shared_ptr<Call>& call : calls) {
      const absl::Status status = call->AwaitDecision();
      EXPECT_TRUE(status.ok()) << status;
    }
  });
}

TEST_P(DestroyTest, TheLastHandleGivesWorkUpByItself) {
  std::vector<Group> groups = LocalGroups(2).value();
  RunRanksAsThreads(2, [&](int rank) { EXPECT_EQ(FrameSum(groups[rank], 1).value_or(-1), 2); });
  std::optional<Group> last = groups[0];
  std::shared_ptr<Call> call = last->engine().Post(Spec(GetParam())).value();
  groups.clear();
  const absl::Time start = absl::Now();
  last.reset();
  EXPECT_LT(absl::Now() - start, kPatience / 2);
  EXPECT_FALSE(call->AwaitDecision().ok());
}

// Groups come and go, with work pending: nothing of them stays.
TEST(DestroyTest, NothingIsLeftBehind) {
  const auto round = [] {
    std::vector<Group> groups = LocalGroups(2).value();
    RunRanksAsThreads(2, [&](int rank) {
      EXPECT_EQ(FrameSum(groups[rank], 1).value_or(-1), 2);
      EXPECT_EQ(DataSum(groups[rank], 1, 20000).value_or(-1), 2);
    });
    std::shared_ptr<Call> call = groups[0].engine().Post(Spec(true)).value();
    EXPECT_TRUE(groups[0].Shutdown(absl::Milliseconds(1)).ok());
    EXPECT_TRUE(groups[1].Shutdown(absl::Seconds(5)).ok());
  };
  round();
  const int descriptors = CountDescriptors();
  for (int i = 0; i < 10; ++i) round();
  EXPECT_LE(CountDescriptors(), descriptors + 2);
  EXPECT_LE(CountThreads(), 20);
}

// Programs that end with work pending exit with their own code, whatever they hold.
TEST_P(DestroyTest, ExitWithWorkPending) {
  for (bool handle_is_static : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      std::vector<Group> groups = LocalGroups(2).value();
      RunRanksAsThreads(2, [&](int rank) { FrameSum(groups[rank], 1).IgnoreError(); });
      static std::shared_ptr<Call> kept;
      static std::optional<Group> held;
      std::shared_ptr<Call> call = groups[0].engine().Post(Spec(GetParam())).value();
      if (handle_is_static) {
        kept = std::move(call);
        held = groups[0];
      }
      exit(17);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 17) << status;
  }
}

TEST(DestroyTest, TheDefaultDeadlineIsFiveMinutesAndACallsOwnComesFirst) {
  std::vector<Group> groups = LocalGroups(2).value();
  EXPECT_EQ(groups[0].options().timeout, absl::Minutes(5));
  CallSpec spec = Spec(true);
  spec.deadline = absl::InfiniteFuture();
  const absl::Time before = absl::Now();
  std::shared_ptr<Call> by_group = groups[0].engine().Post(std::move(spec)).value();
  EXPECT_GE(by_group->deadline(), before + absl::Minutes(5));
  EXPECT_LE(by_group->deadline(), absl::Now() + absl::Minutes(5));
  CallSpec own = Spec(true);
  own.deadline = absl::Now() + absl::Milliseconds(200);
  std::shared_ptr<Call> by_call = groups[0].engine().Post(std::move(own)).value();
  const absl::Status status = by_call->AwaitDecision();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(groups[0].Shutdown(absl::Milliseconds(1)).ok());
}

}  // namespace
}  // namespace leafpack
