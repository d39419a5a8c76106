// Starts the ranks of a job as processes on this host and looks after them until all have ended.
//
//   leafpack::LaunchOptions options;
//   options.ranks = 4;
//   auto result = leafpack::Launch(options, {"./train", "--epochs=3"});
//   if (!result.ok()) ...                  // nothing was started
//   return result->exit_code;              // the first failing rank's
//
// Each rank finds its place in the environment, under torchrun's names: RANK, LOCAL_RANK,
// WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT,
// TORCHELASTIC_MAX_RESTARTS; OMP_NUM_THREADS=1 when there is more than one rank and the caller set
// none. MASTER_PORT is free for rank 0 to listen on (see port.h).
//
// The first rank that ends otherwise than expected ends the job: the others get
// `failure_linger` to say what they saw, then SIGTERM, then `grace` later SIGKILL. Signals go to the
// process group of a rank, so its children get them too; children that are left when all ranks have
// ended are ended the same way. When the launcher itself is killed its ranks and their children die.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_LAUNCHER_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_LAUNCHER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/launch/exit_status.h"

namespace leafpack {

struct LaunchOptions {
  int ranks = 1;                   // 1 to 4096
  std::string working_directory;   // of the ranks; empty: the caller's
  std::vector<std::pair<std::string, std::string>> env;  // for all ranks
  std::map<int, std::vector<std::pair<std::string, std::string>>> rank_env;  // wins over `env`
  // How a rank is expected to end; exit code 0 where nothing is given. Such an end ends nobody else.
  std::map<int, ExitStatus> expected_exits;

  absl::Duration timeout = absl::InfiniteDuration();  // of the whole job
  absl::Duration grace = absl::Seconds(30);           // between SIGTERM and SIGKILL
  absl::Duration failure_linger = absl::Milliseconds(300);

  // Ranks are spread over so many pretended hosts of this machine (hosts.h), in blocks: LOCAL_RANK,
  // LOCAL_WORLD_SIZE, GROUP_RANK (the host) and GROUP_WORLD_SIZE say so, and MASTER_ADDR is host 0's.
  // At most one for each rank. With more than 1, Launch gives Unimplemented where the machine does
  // not permit it.
  int hosts = 1;

  // Of single ranks, from the start of the job: one that is late ends it as `timeout` does.
  std::map<int, absl::Duration> rank_timeouts;

  std::string log_dir;        // made when missing; each rank's output goes to rank_<r>.log there
  std::string run_id;         // TORCHELASTIC_RUN_ID; empty: made up
  bool prefix_output = true;  // "[2] " before each line of rank 2
  bool merge_stderr = false;  // both streams of a rank in the order in which it wrote them, to stdout
  int stdout_fd = 1;          // where lines go
  int stderr_fd = 2;          // where lines of standard error and our own messages go
  int tail_lines = 10;        // kept of each rank, for messages
  std::string name = "launch";  // begins our own messages

  // SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on to all
  // ranks; the first four also start `grace`. Otherwise they are left to the caller's handlers.
  bool pass_signals = true;
};

struct RankOutcome {
  pid_t pid = -1;
  ExitStatus status;
  bool as_expected = true;
  bool ended_by_launcher = false;  // it ended after we had sent it SIGTERM
  bool killed_by_launcher = false;  // SIGTERM was not enough
  std::string log_path;             // empty without log_dir
  std::vector<std::string> tail;    // its last lines
};

struct LaunchResult {
  // 0 when all ranks ended as expected; 124 after a timeout; else ShellCode() of the rank that
  // failed first, or 1 when that is 0 (it should have failed).
  int exit_code = 0;
  bool timed_out = false;
  int first_failed_rank = -1;  // also one whose own timeout it was
  // One sentence that says which rank failed, how, and where its output is. Empty on success. It
  // was also written to stderr_fd.
  std::string summary;
  std::vector<RankOutcome> ranks;
};

// Runs `command` (program and arguments; looked up as execvp does, a relative path from the working
// directory) on every rank and returns when all have ended. An error means that the job did not
// start: options or program no good (nothing runs any more), or another Launch runs in this process.
// Call it from one thread at a time; it forks, waits for its own children only, and takes over
// SIGCHLD, SIGPIPE and the signals named above until it returns.
absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options, std::vector<std::string> command);

// The same with a function in place of a program: each rank is a fork of this process that calls
// `body(rank)` and exits with its result, without atexit handlers. Fork before the process has
// started threads (libtorch's too).
absl::StatusOr<LaunchResult> LaunchFunction(const LaunchOptions& options,
                                            std::function<int(int rank)> body);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_LAUNCHER_H_
