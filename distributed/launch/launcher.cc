#include "distributed/launch/launcher.h"

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/launch/child.h"
#include "distributed/launch/hosts.h"
#include "distributed/launch/job.h"
#include "distributed/launch/port.h"
#include "distributed/launch/signals.h"

namespace leafpack {
namespace {

absl::Status Validate(const LaunchOptions& options) {
  if (options.ranks < 1 || options.ranks > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of ranks is ", options.ranks, "; it must be between 1 and 4096"));
  }
  if (options.hosts < 1 || options.hosts > options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("the number of hosts is ", options.hosts,
                                                   "; it must be between 1 and the number of ranks, ",
                                                   options.ranks));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the timeout is not positive");
  }
  if (options.grace < absl::ZeroDuration() || options.failure_linger < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("grace or failure_linger is negative");
  }
  const auto check_rank = [&](int rank, const char* what) -> absl::Status {
    if (rank >= 0 && rank < options.ranks) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(what, " is given for rank ", rank,
                                                   ", but the ranks are 0 to ",
                                                   options.ranks - 1));
  };
  for (const auto& entry : options.rank_env) {
    if (absl::Status s = check_rank(entry.first, "an environment variable"); !s.ok()) return s;
  }
  for (const auto& [rank, timeout] : options.rank_timeouts) {
    if (absl::Status s = check_rank(rank, "a timeout"); !s.ok()) return s;
    if (timeout <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(absl::StrCat("the timeout of rank ", rank, " is not positive"));
    }
  }
  for (const auto& entry : options.expected_exits) {
    if (absl::Status s = check_rank(entry.first, "an expected exit"); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the folder ", part));
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

// Ranks stand on hosts in blocks, as equal as can be: the first of a host, and the host of a rank.
int FirstRank(const LaunchOptions& options, int host) {
  return (host * options.ranks + options.hosts - 1) / options.hosts;
}
int HostOf(const LaunchOptions& options, int rank) { return rank * options.hosts / options.ranks; }

Environment RankEnvironment(const LaunchOptions& options, int rank, int port,
                            const std::string& run_id) {
  const std::string r = absl::StrCat(rank), n = absl::StrCat(options.ranks);
  const int host = HostOf(options, rank), first = FirstRank(options, host);
  Environment env = {
      {"RANK", r},
      {"LOCAL_RANK", absl::StrCat(rank - first)},
      {"WORLD_SIZE", n},
      {"LOCAL_WORLD_SIZE", absl::StrCat(FirstRank(options, host + 1) - first)},
      {"GROUP_RANK", absl::StrCat(host)},
      {"GROUP_WORLD_SIZE", absl::StrCat(options.hosts)},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", r},
      {"ROLE_WORLD_SIZE", n},
      {"MASTER_ADDR", options.hosts == 1 ? "127.0.0.1" : Hosts::Address(0)},
      {"MASTER_PORT", absl::StrCat(port)},
      {"TORCHELASTIC_RUN_ID", run_id},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
  };
  if (options.ranks > 1 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    env.emplace_back("OMP_NUM_THREADS", "1");
  }
  env.insert(env.end(), options.env.begin(), options.env.end());
  const auto own = options.rank_env.find(rank);
  if (own != options.rank_env.end()) {
    env.insert(env.end(), own->second.begin(), own->second.end());
  }
  return env;
}

absl::StatusOr<LaunchResult> Run(LaunchOptions options, std::vector<std::string> command,
                                 const std::function<int(int)>& body) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  std::string program;
  if (!command.empty()) {
    absl::StatusOr<std::string> found = FindProgram(command[0], options.working_directory);
    if (!found.ok()) return found.status();
    program = *std::move(found);
  }
  if (!options.log_dir.empty()) {
    if (absl::Status status = MakeDirectories(options.log_dir); !status.ok()) return status;
  }
  absl::StatusOr<std::unique_ptr<SignalPipe>> signals = SignalPipe::Make(options.pass_signals);
  if (!signals.ok()) return signals.status();
  std::optional<Hosts> hosts;
  std::optional<PortReservation> reservation;
  if (options.hosts > 1) {
    absl::StatusOr<Hosts> made = Hosts::Make(options.hosts);
    if (!made.ok()) return made.status();
    hosts.emplace(*std::move(made));
  } else {
    absl::StatusOr<PortReservation> made = PortReservation::Make();
    if (!made.ok()) return made.status();
    reservation.emplace(*std::move(made));
  }
  const int port = hosts ? hosts->port() : reservation->port();
  absl::StatusOr<Keeper> keeper = Keeper::Start();
  if (!keeper.ok()) return keeper.status();
  const std::string run_id =
      !options.run_id.empty()
          ? options.run_id
          : absl::StrCat("local-", getpid(), "-",
                         std::chrono::system_clock::now().time_since_epoch().count());

  Job job(options, **signals);
  if (absl::Status status = job.OpenLogs(); !status.ok()) return status;
  for (int rank = 0; rank < options.ranks; ++rank) {
    ChildSpec spec;
    spec.program = program;
    spec.arguments = command;
    if (program.empty()) spec.body = [&body, rank] { return body(rank); };
    spec.directory = options.working_directory;
    spec.set = RankEnvironment(options, rank, port, run_id);
    // Left over from an outer torchrun, these would lead a rank to the outer job's store.
    spec.unset = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"};
    spec.merge_stderr = options.merge_stderr;
    spec.restore = (*signals)->former();
    spec.close_in_child = {(*signals)->fd(), (*signals)->write_fd(), keeper->fd()};
    if (hosts) {
      spec.hosts = &*hosts;
      spec.host = HostOf(options, rank);
      for (int fd : hosts->fds()) spec.close_in_child.push_back(fd);
    } else {
      spec.close_in_child.push_back(reservation->fd());
    }
    absl::StatusOr<Child> child = StartChild(spec);
    if (!child.ok()) {
      job.KillAll();
      return absl::Status(child.status().code(),
                          absl::StrCat("rank ", rank, ": ", child.status().message()));
    }
    keeper->Add(child->pid);
    job.Add(*child);
  }
  LaunchResult result = job.Run();
  keeper->Done();
  return result;
}

}  // namespace

absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options,
                                    std::vector<std::string> command) {
  if (command.empty()) return absl::InvalidArgumentError("no program is given");
  return Run(options, std::move(command), nullptr);
}

absl::StatusOr<LaunchResult> LaunchFunction(const LaunchOptions& options,
                                            std::function<int(int rank)> body) {
  return Run(options, {}, body);
}

}  // namespace leafpack
