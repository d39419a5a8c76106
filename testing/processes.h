// Ranks as forked processes of one test, for tests of what happens when a rank is killed, stopped or
// late: many such cases fit into one test program.
//
//   TEST(Fault, KilledRankIsNamed) {
//     RankProcesses job(3);
//     job.ExpectExit(1, {.signal = SIGKILL});
//     job.Run([](RankContext& rank) {
//       ...
//       if (rank.rank() == 1) KillSelf();          // testing/faults.h
//       EXPECT_THAT(Exchange(), StatusIs(absl::StatusCode::kUnavailable));
//     });
//   }
#ifndef LEAFPACK_TESTING_PROCESSES_H_
#define LEAFPACK_TESTING_PROCESSES_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/time/time.h"

#include "distributed/launch/exit_status.h"
#include "distributed/launch/launcher.h"

namespace leafpack {

namespace internal {
struct SharedBoard;
}

// What a rank knows of itself, and signals between ranks that use no group: a board of counters in
// memory that all ranks share.
class RankContext {
 public:
  int rank() const { return rank_; }
  int size() const { return size_; }
  // A folder of this Run alone, the same on all ranks: for the file of a store.
  const std::string& directory() const { return directory_; }
  // Process of a rank, once it runs; 0 before.
  pid_t PidOf(int rank) const;

  static constexpr int kEvents = 64;
  // Adds one to a counter (0 to kEvents - 1).
  void Signal(int event);
  int Count(int event) const;
  // Waits until a counter has reached `count`; false, and a test failure, after `timeout`.
  bool Await(int event, int count = 1, absl::Duration timeout = absl::Seconds(30));
  // Waits until all ranks have come here; `event` must be used for nothing else.
  bool Barrier(int event) {
    Signal(event);
    return Await(event, size_);
  }

 private:
  friend class RankProcesses;
  int rank_ = 0;
  int size_ = 1;
  std::string directory_;
  internal::SharedBoard* board_ = nullptr;
};

// One run of some ranks. Not for use by threads.
class RankProcesses {
 public:
  explicit RankProcesses(int ranks);
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();

  // A rank that must end so, and not with code 0.
  void ExpectExit(int rank, ExitStatus how) { options_.expected_exits[rank] = how; }
  // After it, the test fails and shows where each rank stood. 60 s unless set.
  void SetTimeout(absl::Duration timeout) { options_.timeout = timeout; }

  // Forks the ranks, runs `body` in each and waits for all. A GoogleTest failure or an exception in a
  // rank is a failure of this test, which names the rank; output of ranks has the prefix "[r] ".
  // The calling process must not have started threads (libtorch's neither). Once only.
  void Run(const std::function<void(RankContext&)>& body);

  // After Run.
  const LaunchResult& result() const { return result_; }

 private:
  LaunchOptions options_;
  RankContext context_;
  LaunchResult result_;
};

}  // namespace leafpack

#endif  // LEAFPACK_TESTING_PROCESSES_H_
