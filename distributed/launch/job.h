// The ranks of one launch while they run: output, signals, failures, deadlines, the end.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_JOB_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_JOB_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "distributed/launch/child.h"
#include "distributed/launch/launcher.h"
#include "distributed/launch/output.h"
#include "distributed/launch/signals.h"

namespace leafpack {

class Job {
 public:
  Job(const LaunchOptions& options, SignalPipe& signals);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  absl::Status OpenLogs();
  void Add(const Child& child);
  // Before Run: kills what was added.
  void KillAll();
  LaunchResult Run();

 private:
  using Clock = std::chrono::steady_clock;

  // A job only moves forward through these.
  enum class Phase {
    kRunning,
    kLingering,  // a rank failed: the others may still say what they saw
    kTerm,       // SIGTERM was sent
    kKill,       // SIGKILL was sent
  };
  struct Stream {
    int fd = -1;      // read end; -1 after its end
    int out_fd = -1;  // where its lines go
    LineSplitter lines;
  };
  struct Rank {
    Child child;
    Stream streams[2];
    bool ended = false;
    int log_fd = -1;
    Tail tail;
    std::string prefix;
    RankOutcome outcome;
    Clock::time_point timeout_at = Clock::time_point::max();  // its own
    explicit Rank(int tail_lines) : tail(static_cast<size_t>(tail_lines)) {}
  };

  OutputQueue& QueueOf(int fd);
  void Say(absl::string_view message);
  void EmitLine(Rank& rank, int fd, absl::string_view line);
  bool ReadStream(Rank& rank, Stream& stream);
  void ReadAll();
  void HandleSignals();
  void PassOn(int signal);
  void Reap();
  void Fail(int rank);
  void HandleTimers();
  void TimeOut(std::string what);
  void EnterTerm();
  void EnterKill();
  void SignalLiving(int signal);
  void ReportStanding();
  void Poll();
  void EndLeftovers();
  void Finish(LaunchResult& result);
  bool AllEnded() const;
  Clock::time_point After(absl::Duration duration) const;

  const LaunchOptions options_;
  SignalPipe& signals_;
  std::vector<Rank> ranks_;
  OutputQueue queues_[2];
  bool one_queue_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point next_phase_ = Clock::time_point::max();
  Clock::time_point timeout_at_ = Clock::time_point::max();
  bool timed_out_ = false;
  bool output_lost_ = false;
  int passed_signal_ = 0;
  int first_failed_ = -1;
  std::string summary_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_JOB_H_
