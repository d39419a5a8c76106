#include "distributed/launch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "distributed/launch/proc.h"

namespace leafpack {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestPoll(500);   // a look at everything at least so often
constexpr milliseconds kLeftoverPoll(20);
constexpr milliseconds kUnkillable(5000);  // a process stuck in a device is left to the kernel
constexpr milliseconds kDrainOutput(5000);  // for a reader that has stopped reading

void WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

Job::Job(const LaunchOptions& options, SignalPipe& signals)
    : options_(options),
      signals_(signals),
      one_queue_(SameFile(options.stdout_fd, options.stderr_fd)) {
  ranks_.reserve(static_cast<size_t>(options.ranks));
  for (int r = 0; r < options.ranks; ++r) {
    Rank& rank = ranks_.emplace_back(options.tail_lines);
    if (options.prefix_output) rank.prefix = absl::StrCat("[", r, "] ");
  }
}

Job::~Job() {
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      if (stream.fd >= 0) close(stream.fd);
    }
    if (rank.log_fd >= 0) close(rank.log_fd);
  }
}

absl::Status Job::OpenLogs() {
  if (options_.log_dir.empty()) return absl::OkStatus();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const std::string path = absl::StrCat(options_.log_dir, "/rank_", r, ".log");
    ranks_[r].log_fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (ranks_[r].log_fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    ranks_[r].outcome.log_path = path;
  }
  return absl::OkStatus();
}

void Job::Add(const Child& child) {
  for (Rank& rank : ranks_) {
    if (rank.child.pid >= 0) continue;
    rank.child = child;
    rank.outcome.pid = child.pid;
    rank.streams[0].fd = child.out;
    rank.streams[0].out_fd = options_.stdout_fd;
    rank.streams[1].fd = child.err;
    rank.streams[1].out_fd = options_.stderr_fd;
    return;
  }
}

void Job::KillAll() {
  for (Rank& rank : ranks_) {
    if (rank.child.pid < 0) continue;
    kill(-rank.child.pid, SIGKILL);
    waitpid(rank.child.pid, nullptr, 0);
  }
}

OutputQueue& Job::QueueOf(int fd) {
  return queues_[!one_queue_ && fd == options_.stderr_fd ? 1 : 0];
}

void Job::Say(absl::string_view message) {
  QueueOf(options_.stderr_fd).Line(options_.stderr_fd, absl::StrCat(options_.name, ": "), message);
}

void Job::EmitLine(Rank& rank, int fd, absl::string_view line) {
  QueueOf(fd).Line(fd, rank.prefix, line);
  rank.tail.Add(line);
  if (rank.log_fd >= 0) WriteAll(rank.log_fd, absl::StrCat(line, "\n"));
}

// Reads what is there. False at the end of the stream.
bool Job::ReadStream(Rank& rank, Stream& stream) {
  const auto emit = [&](absl::string_view line) { EmitLine(rank, stream.out_fd, line); };
  char buffer[16 << 10];
  for (int i = 0; i < 16; ++i) {
    const ssize_t n = read(stream.fd, buffer, sizeof(buffer));
    if (n > 0) {
      stream.lines.Add(absl::string_view(buffer, static_cast<size_t>(n)), emit);
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return true;
    } else {
      stream.lines.Finish(emit);
      close(stream.fd);
      stream.fd = -1;
      return false;
    }
    if (QueueOf(stream.out_fd).full()) return true;
  }
  return true;
}

void Job::ReadAll() {
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      if (stream.fd >= 0 && !QueueOf(stream.out_fd).full()) ReadStream(rank, stream);
    }
  }
}

bool Job::AllEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
}

Job::Clock::time_point Job::After(absl::Duration duration) const {
  if (duration >= absl::Hours(24 * 365)) return Clock::time_point::max();
  return Clock::now() + absl::ToChronoNanoseconds(duration);
}

void Job::SignalLiving(int signal) {
  for (Rank& rank : ranks_) {
    // The group is signalled for as long as its leader is not reaped: it cannot be another's.
    kill(-rank.child.pid, signal);
    if (!rank.ended && (signal == SIGTERM || signal == SIGKILL) && phase_ >= Phase::kTerm) {
      rank.outcome.ended_by_launcher = true;
      if (signal == SIGKILL) rank.outcome.killed_by_launcher = true;
    }
  }
}

void Job::PassOn(int signal) {
  switch (signal) {
    case SIGTSTP:
      SignalLiving(SIGTSTP);
      raise(SIGSTOP);  // until the shell continues us
      SignalLiving(SIGCONT);
      return;
    case SIGCONT:
    case SIGUSR1:
    case SIGUSR2:
      SignalLiving(signal);
      return;
    default:
      break;
  }
  // A terminal's Ctrl-C reaches us alone: ranks are in process groups of their own.
  Say(absl::StrCat("passing ", SignalName(signal), " on to ",
                   ranks_.size() == 1 ? "the rank" : "all ranks"));
  SignalLiving(signal);
  SignalLiving(SIGCONT);  // a stopped rank takes its signal only then
  if (passed_signal_ == 0) passed_signal_ = signal;
  if (phase_ < Phase::kTerm) {
    phase_ = Phase::kTerm;
    next_phase_ = After(options_.grace);
  }
}

void Job::HandleSignals() {
  for (int signal : signals_.Take()) {
    if (signal != SIGCHLD) PassOn(signal);
  }
  Reap();
}

// Looks at who has ended, but leaves the zombie: while it is there, its number stays taken and its
// process group can be signalled safely.
void Job::Reap() {
  std::vector<int> failed;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (rank.ended) continue;
    siginfo_t info;
    info.si_pid = 0;
    if (waitid(P_PID, static_cast<id_t>(rank.child.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    rank.ended = true;
    rank.outcome.status = info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0}
                                                     : ExitStatus{0, info.si_status};
    const auto expected = options_.expected_exits.find(static_cast<int>(r));
    rank.outcome.as_expected =
        rank.outcome.status ==
        (expected == options_.expected_exits.end() ? ExitStatus{} : expected->second);
    if (!rank.outcome.as_expected) failed.push_back(static_cast<int>(r));
  }
  if (failed.empty() || first_failed_ >= 0) return;
  // Seen at one look: a rank that was killed is rather the cause than one that gave up by itself.
  const auto killed = std::find_if(failed.begin(), failed.end(), [&](int r) {
    return ranks_[static_cast<size_t>(r)].outcome.status.signal != 0;
  });
  Fail(killed != failed.end() ? *killed : failed.front());
}

void Job::Fail(int r) {
  first_failed_ = r;
  if (timed_out_ || output_lost_) return;  // said already
  const Rank& rank = ranks_[static_cast<size_t>(r)];
  summary_ = absl::StrCat("rank ", r, " (pid ", rank.child.pid, ") ",
                          rank.outcome.status.ToString());
  const auto expected = options_.expected_exits.find(r);
  if (expected != options_.expected_exits.end()) {
    absl::StrAppend(&summary_, ", but it was expected that it ",
                    expected->second.ToString());
  }
  if (passed_signal_ != 0) {
    absl::StrAppend(&summary_, " after ", SignalName(passed_signal_), " was passed on");
  } else if (ranks_.size() > 1) {
    absl::StrAppend(&summary_, "; the other ranks are ended");
  }
  if (!rank.outcome.log_path.empty()) {
    absl::StrAppend(&summary_, "; its log is ", rank.outcome.log_path);
  } else if (options_.prefix_output) {
    absl::StrAppend(&summary_, "; its output has the prefix ", absl::StrCat("[", r, "]"));
  }
  if (phase_ == Phase::kRunning && !AllEnded()) {
    phase_ = Phase::kLingering;
    next_phase_ = After(options_.failure_linger);
  }
}

void Job::EnterTerm() {
  phase_ = Phase::kTerm;
  next_phase_ = After(options_.grace);
  SignalLiving(SIGTERM);
  SignalLiving(SIGCONT);
}

void Job::EnterKill() {
  phase_ = Phase::kKill;
  next_phase_ = Clock::time_point::max();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].ended) {
      Say(absl::StrCat("rank ", r, " did not end within ", absl::FormatDuration(options_.grace),
                       " and is killed"));
    }
  }
  SignalLiving(SIGKILL);
}

void Job::HandleTimers() {
  const Clock::time_point now = Clock::now();
  if (now >= timeout_at_) {
    TimeOut(absl::StrCat("the job did not end within ", absl::FormatDuration(options_.timeout)));
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].ended || now < ranks_[r].timeout_at || phase_ != Phase::kRunning) continue;
    const int rank = static_cast<int>(r);
    first_failed_ = rank;
    TimeOut(absl::StrCat("rank ", r, " did not end within ",
                         absl::FormatDuration(options_.rank_timeouts.at(rank))));
  }
  if (now < next_phase_) return;
  if (phase_ == Phase::kLingering) {
    EnterTerm();
  } else if (phase_ == Phase::kTerm) {
    EnterKill();
  }
}

void Job::TimeOut(std::string what) {
  if (timed_out_ || phase_ != Phase::kRunning) return;
  timed_out_ = true;
  summary_ = std::move(what);
  ReportStanding();
  EnterTerm();
}

void Job::ReportStanding() {
  ReadAll();
  std::vector<int> living;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].ended) living.push_back(static_cast<int>(r));
  }
  std::string who;
  for (int r : living) absl::StrAppend(&who, who.empty() ? "" : ", ", r);
  absl::StrAppend(&summary_, living.size() == 1 ? "; rank " : "; ranks ", who,
                  living.size() == 1 ? " was" : " were", " still running");
  Say(absl::StrCat(summary_, ". Where each rank stood:"));
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (rank.ended) {
      Say(absl::StrCat("rank ", r, " (pid ", rank.child.pid, ") ",
                       rank.outcome.status.ToString()));
      continue;
    }
    Say(absl::StrCat("rank ", r, " (pid ", rank.child.pid, ") was running"));
    for (const std::string& line : DescribeThreads(rank.child.pid)) Say(absl::StrCat("  ", line));
    for (pid_t member : LivingMembers(rank.child.pid)) {
      if (member == rank.child.pid) continue;
      Say(absl::StrCat("  its child process ", member, ":"));
      for (const std::string& line : DescribeThreads(member)) Say(absl::StrCat("    ", line));
    }
    if (rank.tail.lines().empty()) {
      Say("  it has printed nothing");
    } else {
      Say("  its last lines:");
      for (const std::string& line : rank.tail.lines()) Say(absl::StrCat("  | ", line));
    }
  }
}

void Job::Poll() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const OutputQueue& queue : queues_) {
    if (!queue.empty()) fds.push_back({queue.fd(), POLLOUT, 0});
  }
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      if (stream.fd >= 0 && !QueueOf(stream.out_fd).full()) fds.push_back({stream.fd, POLLIN, 0});
    }
  }
  Clock::duration wait = kLongestPoll;
  std::vector<Clock::time_point> timers = {next_phase_};
  if (!timed_out_) {
    timers.push_back(timeout_at_);
    for (const Rank& rank : ranks_) {
      if (!rank.ended) timers.push_back(rank.timeout_at);
    }
  }
  for (Clock::time_point at : timers) {
    if (at != Clock::time_point::max()) wait = std::min(wait, at - Clock::now());
  }
  const auto ms = std::chrono::ceil<milliseconds>(wait).count();
  poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(ms, 0)));
}

LaunchResult Job::Run() {
  timeout_at_ = After(options_.timeout);
  for (const auto& [rank, timeout] : options_.rank_timeouts) {
    ranks_[static_cast<size_t>(rank)].timeout_at = After(timeout);
  }
  while (!AllEnded()) {
    Poll();
    ReadAll();
    HandleSignals();
    HandleTimers();
    for (OutputQueue& queue : queues_) queue.Write();
    if ((queues_[0].broken() || queues_[1].broken()) && !output_lost_) {
      output_lost_ = true;  // as `launch ... | head` ends any other program
      if (summary_.empty()) summary_ = "nobody reads the output any more; the ranks are ended";
      if (phase_ == Phase::kRunning) EnterTerm();
    }
  }
  EndLeftovers();
  LaunchResult result;
  Finish(result);
  return result;
}

// Children of ranks that outlived them.
void Job::EndLeftovers() {
  const auto anyone_left = [&] {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return !LivingMembers(rank.child.pid).empty();
    });
  };
  ReadAll();
  if (anyone_left()) {
    SignalLiving(SIGTERM);
    SignalLiving(SIGCONT);
    const Clock::time_point kill_at = phase_ == Phase::kKill ? Clock::now() : After(options_.grace);
    while (anyone_left()) {
      if (Clock::now() >= kill_at) SignalLiving(SIGKILL);
      if (kill_at != Clock::time_point::max() && Clock::now() >= kill_at + kUnkillable) break;
      poll(nullptr, 0, static_cast<int>(kLeftoverPoll.count()));
      ReadAll();
      for (OutputQueue& queue : queues_) queue.Write();
    }
  }
  // What is still in the pipes belongs to the ranks; a process that left its group may hold them
  // open, so their end is not waited for.
  const Clock::time_point drained_by = Clock::now() + kDrainOutput;
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      while (stream.fd >= 0 && Clock::now() < drained_by) {
        pollfd readable = {stream.fd, POLLIN, 0};
        if (poll(&readable, 1, 0) <= 0) break;
        ReadStream(rank, stream);
        while (QueueOf(stream.out_fd).full() && Clock::now() < drained_by) {
          QueueOf(stream.out_fd).Write();
          poll(nullptr, 0, 1);
        }
      }
      stream.lines.Finish([&](absl::string_view line) { EmitLine(rank, stream.out_fd, line); });
    }
  }
  for (Rank& rank : ranks_) waitpid(rank.child.pid, nullptr, 0);
}

void Job::Finish(LaunchResult& result) {
  result.timed_out = timed_out_;
  result.first_failed_rank = first_failed_;
  if (timed_out_) {
    result.exit_code = 124;
  } else if (output_lost_) {
    result.exit_code = 128 + SIGPIPE;
  } else if (first_failed_ >= 0) {
    const int code = ranks_[static_cast<size_t>(first_failed_)].outcome.status.ShellCode();
    result.exit_code = code != 0 ? code : 1;
  }
  if (!summary_.empty()) Say(summary_);
  const Clock::time_point until = Clock::now() + kDrainOutput;
  while ((!queues_[0].empty() || !queues_[1].empty()) && Clock::now() < until) {
    for (OutputQueue& queue : queues_) queue.Write();
    if (!queues_[0].empty() || !queues_[1].empty()) poll(nullptr, 0, 5);
  }
  result.summary = summary_;
  for (Rank& rank : ranks_) {
    rank.outcome.tail.assign(rank.tail.lines().begin(), rank.tail.lines().end());
    result.ranks.push_back(std::move(rank.outcome));
  }
}

}  // namespace leafpack
