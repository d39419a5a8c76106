// Ranks that are killed, stopped, late or interrupted around transfers, as real processes: who is told
// what, and that what comes afterwards works.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/p2p/transfer.h"
#include "distributed/tree/fault_testutil.h"
#include "testing/faults.h"
#include "testing/matchers.h"
#include "testing/processes.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr absl::Duration kTimeout = absl::Seconds(40);
constexpr absl::Duration kShort = absl::Milliseconds(300);
constexpr absl::Duration kSoon = absl::Seconds(15);
constexpr int64_t kLarge = int64_t{4} << 20;  // elements: 16 MiB

void SetUpConnections(const Group& group) {
  const int rank = group.rank().value();
  std::vector<BatchItem> items;
  for (int r = 0; r < group.size(); ++r) {
    if (r == rank) continue;
    items.push_back(SendItem{MakeTestTree(rank, 10), GroupRank(r), {.tag = 1000}});
    items.push_back(RecvItem{MakeTestTree(rank, 10), GroupRank(r), {.tag = 1000}});
  }
  absl::StatusOr<std::vector<TransferWork>> works = PostBatch(items, group);
  ASSERT_THAT(works.status(), IsOk());
  ASSERT_THAT(WaitAll(*works), IsOk());
}

TEST(TransferFaults, ProcessesMoveLargeTreesAndCollectivesGoOn) {
  for (const int ranks : {2, 4}) {
    RankProcesses job(ranks);
    job.Run([&](RankContext& context) {
      const Group group = MakeTestGroup(context, kTimeout);
      const int rank = context.rank();
      const int next = (rank + 1) % ranks;
      const int before = (rank + ranks - 1) % ranks;
      for (int round = 0; round < 3; ++round) {
        const TensorDict in = MakeTestTree(99, kLarge);
        absl::StatusOr<TransferWork> receive = Irecv(in, GroupRank(before), group);
        ASSERT_THAT(receive.status(), IsOk());
        ExpectUsable(group);  // a collective between the two halves
        ASSERT_THAT(Send(MakeTestTree(rank, kLarge), GroupRank(next), group), IsOk());
        ASSERT_THAT(receive->Wait(), IsOk());
        ExpectFilled(in, before);
      }
    });
  }
}

TEST(TransferFaults, ASenderThatDiesIsNamed) {
  RankProcesses job(3);
  job.ExpectExit(0, {.signal = SIGKILL});
  job.Run([](RankContext& context) {
    const Group group = MakeTestGroup(context, kTimeout);
    SetUpConnections(group);
    ASSERT_TRUE(context.Barrier(0));
    if (context.rank() == 0) {
      ASSERT_TRUE(context.Await(1));
      absl::SleepFor(absl::Milliseconds(100));
      KillSelf();
    }
    if (context.rank() == 1) {
      const TensorDict tree = MakeTestTree(1, 100);
      const Snapshot unchanged(tree);
      context.Signal(1);
      const absl::Time start = absl::Now();
      const absl::Status status = Recv(tree, GroupRank(0), group).status();
      EXPECT_LT(absl::Now() - start, kSoon);
      ExpectFault(status, Code::kUnavailable, ErrorKind::kPeerLost, {0});
      EXPECT_TRUE(GetErrorDetails(status).tree_unchanged);
      unchanged.ExpectUnchanged();
      ExpectFault(Send(tree, GroupRank(0), group), Code::kUnavailable, ErrorKind::kPeerLost, {0});
    }
    // The two that live go on.
    const TensorDict tree = MakeTestTree(context.rank(), 100);
    if (context.rank() == 1) {
      EXPECT_THAT(Send(tree, GroupRank(2), group), IsOk());
    } else {
      EXPECT_THAT(Recv(tree, GroupRank(1), group), IsOk());
      ExpectFilled(tree, 1);
    }
  });
}

// It never made a connection to the others: only the control channel knows.
TEST(TransferFaults, ARankThatDiesBeforeItConnectsIsNamedSoon) {
  for (const int dead : {0, 2}) {
    RankProcesses job(3);
    job.ExpectExit(dead, {.signal = SIGKILL});
    job.Run([&](RankContext& context) {
      const Group group = MakeTestGroup(context, kTimeout);
      ExpectUsable(group);
      ASSERT_TRUE(context.Barrier(0));
      const int rank = context.rank();
      if (rank == dead) {
        ASSERT_TRUE(context.Await(1, 2));
        absl::SleepFor(absl::Milliseconds(100));
        KillSelf();
      }
      const TensorDict tree = MakeTestTree(rank, 100);
      const absl::Time start = absl::Now();
      absl::StatusOr<TransferWork> receive = Irecv(tree, GroupRank(dead), group);
      ASSERT_THAT(receive.status(), IsOk());
      absl::StatusOr<TransferWork> send = Isend(MakeTestTree(rank, 100), GroupRank(dead), group);
      ASSERT_THAT(send.status(), IsOk());
      context.Signal(1);
      ExpectFault(receive->Wait(), Code::kUnavailable, ErrorKind::kPeerLost, {dead});
      ExpectFault(send->Wait(), Code::kUnavailable, ErrorKind::kPeerLost, {dead});
      EXPECT_LT(absl::Now() - start, kSoon);
      // Those that live reach each other.
      const int other = 3 - dead - rank;
      if (rank < other) {
        EXPECT_THAT(Send(tree, GroupRank(other), group), IsOk());
      } else {
        EXPECT_THAT(Recv(tree, GroupRank(other), group), IsOk());
        ExpectFilled(tree, other);
      }
    });
  }
}

TEST(TransferFaults, ARankThatDiesDuringTheData) {
  for (const bool sender_dies : {true, false}) {
    RankProcesses job(2);
    job.ExpectExit(sender_dies ? 0 : 1, {.signal = SIGKILL});
    job.Run([&](RankContext& context) {
      const Group group = MakeTestGroup(context, kTimeout);
      SetUpConnections(group);
      const bool sends = context.rank() == 0;
      const bool dies = sends == sender_dies;
      // 256 MiB: the other one dies long before all is there.
      const TensorDict tree = MakeTestTree(context.rank(), int64_t{64} << 20);
      ASSERT_TRUE(context.Barrier(0));
      absl::StatusOr<TransferWork> work =
          sends ? Isend(tree, GroupRank(1), group) : Irecv(tree, GroupRank(0), group);
      ASSERT_THAT(work.status(), IsOk());
      if (dies) {
        (void)work->Wait(absl::Milliseconds(20));
        KillSelf();
      }
      const absl::Time start = absl::Now();
      const absl::Status status = work->Wait();
      EXPECT_LT(absl::Now() - start, kSoon);
      ExpectFault(status, Code::kUnavailable, ErrorKind::kPeerLost, {sender_dies ? 0 : 1});
    });
  }
}

TEST(TransferFaults, AStoppedRankIsNamedAndServesWhenItGoesOn) {
  RankProcesses job(2);
  job.Run([](RankContext& context) {
    const Group group = MakeTestGroup(context, kTimeout);
    SetUpConnections(group);
    ASSERT_TRUE(context.Barrier(0));
    const TensorDict tree = MakeTestTree(context.rank(), kLarge);
    if (context.rank() == 1) {
      StopSelfFor(absl::Seconds(2));
      ASSERT_TRUE(context.Await(1));
      // What was given up meanwhile is told, what came after it arrives.
      const absl::Status told = Recv(tree, GroupRank(0), group).status();
      ExpectFault(told, Code::kCancelled, ErrorKind::kDeadline, {0});
      EXPECT_THAT(std::string(told.message()), HasSubstr("gave up this send"));
      EXPECT_THAT(Recv(tree, GroupRank(0), group), IsOk());
      ExpectFilled(tree, 0);
      return;
    }
    absl::SleepFor(absl::Milliseconds(500));
    ExpectFault(Send(tree, GroupRank(1), group, {.timeout = kShort}), Code::kDeadlineExceeded,
                ErrorKind::kDeadline, {1});
    context.Signal(1);
    EXPECT_THAT(Send(tree, GroupRank(1), group), IsOk());
  });
}

TEST(TransferFaults, ARankThatNeverReceivesOrSends) {
  RankProcesses job(2);
  job.Run([](RankContext& context) {
    const Group group = MakeTestGroup(context, kTimeout);
    if (context.rank() == 1) {
      ASSERT_TRUE(context.Await(0));
      return;
    }
    const TensorDict tree = MakeTestTree(0, 100);
    const absl::Time start = absl::Now();
    ExpectFault(Send(tree, GroupRank(1), group, {.timeout = kShort}), Code::kDeadlineExceeded,
                ErrorKind::kDeadline, {1});
    ExpectFault(Recv(tree, GroupRank(1), group, {.timeout = kShort}).status(),
                Code::kDeadlineExceeded, ErrorKind::kDeadline, {1});
    EXPECT_THAT(RecvNew(std::nullopt, group, {.timeout = kShort}).status(),
                StatusIs(Code::kDeadlineExceeded, HasSubstr("no rank has sent anything with tag 0")));
    EXPECT_GE(absl::Now() - start, 3 * kShort * 0.9);
    EXPECT_LT(absl::Now() - start, kSoon);
    context.Signal(0);
  });
}

TEST(TransferFaults, AnInterruptEndsTheWait) {
  RankProcesses job(2);
  job.Run([](RankContext& context) {
    const Group group = MakeTestGroup(context, kTimeout);
    SetUpConnections(group);
    const TensorDict tree = MakeTestTree(context.rank(), kLarge);
    if (context.rank() == 0) {
      const absl::Time start = absl::Now();
      const auto soon = [&] { return absl::Now() - start > absl::Milliseconds(200); };
      const absl::Status status = Send(tree, GroupRank(1), group, {.interrupt = soon});
      EXPECT_THAT(status, StatusIs(Code::kCancelled, HasSubstr("interrupted")));
      EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kInterrupted);
      EXPECT_LT(absl::Now() - start, kSoon);
      context.Signal(0);
      EXPECT_THAT(Send(tree, GroupRank(1), group), IsOk());
    } else {
      ASSERT_TRUE(context.Await(0));
      EXPECT_THAT(Recv(tree, GroupRank(0), group).status(),
                  StatusIs(Code::kCancelled, HasSubstr("rank 0 gave up this send: it was interrupted")));
      EXPECT_THAT(Recv(tree, GroupRank(0), group), IsOk());
      ExpectFilled(tree, 0);
    }
  });
}

// exit() without a word: what was sent arrives, and the others learn that the rank has left.
TEST(TransferFaults, ExitWithSendsInFlight) {
  RankProcesses job(2);
  job.Run([](RankContext& context) {
    const Group group = MakeTestGroup(context, kTimeout);
    SetUpConnections(group);
    if (context.rank() == 0) {
      ASSERT_THAT(Isend(MakeTestTree(0, kLarge), GroupRank(1), group).status(), IsOk());
      return;
    }
    absl::SleepFor(absl::Milliseconds(200));
    const TensorDict tree = MakeTestTree(1, kLarge);
    EXPECT_THAT(Recv(tree, GroupRank(0), group), IsOk());
    ExpectFilled(tree, 0);
    const absl::Status left = Recv(tree, GroupRank(0), group).status();
    ExpectFault(left, Code::kUnavailable, ErrorKind::kPeerLost, {0});
    EXPECT_THAT(std::string(left.message()), HasSubstr("has left the group"));
  });
}

TEST(TransferFaults, AForkedChildIsKeptAway) {
  RankProcesses job(2);
  job.Run([](RankContext& context) {
    const Group group = MakeTestGroup(context, kTimeout);
    SetUpConnections(group);
    const TensorDict tree = MakeTestTree(context.rank(), 100);
    absl::StatusOr<TransferWork> work = absl::InternalError("");
    if (context.rank() == 0) {
      work = Irecv(tree, GroupRank(1), group);
      ASSERT_THAT(work.status(), IsOk());
    }
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      const absl::Status status = Send(tree, GroupRank(1 - context.rank()), group);
      bool good = status.code() == Code::kFailedPrecondition;
      if (work.ok()) {
        good = good && work->Wait().code() == Code::kFailedPrecondition && work->IsDone();
        work->Cancel();
        work = absl::InternalError("");  // its last handle goes
      }
      _exit(good ? 0 : 1);
    }
    int how = 0;
    ASSERT_EQ(waitpid(child, &how, 0), child);
    EXPECT_EQ(how, 0);
    if (context.rank() == 0) {
      EXPECT_THAT(work->Wait(), IsOk());
      ExpectFilled(tree, 1);
    } else {
      EXPECT_THAT(Send(tree, GroupRank(0), group), IsOk());
    }
  });
}

}  // namespace
}  // namespace leafpack
