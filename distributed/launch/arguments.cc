#include "distributed/launch/arguments.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace leafpack {
namespace {

constexpr absl::string_view kUsage =
    R"(launch -n RANKS [FLAGS] -- PROGRAM [ARGUMENTS]
Starts local ranks of PROGRAM with torchrun's environment variables and ends all when one fails.

  -n, --ranks=N           number of ranks (default 1)
  --env=[RANK:]NAME=VALUE environment variable for all ranks, or for one; may be repeated
  --log_dir=FOLDER        keep each rank's output in FOLDER/rank_<r>.log
  --hosts=N               spread the ranks over N pretended hosts of this machine: a network, host name
                          and /dev/shm each. Needs the right to make namespaces
  --check_hosts           run nothing; exit code 0 if --hosts=N works here, else 69, and why
  --timeout=DURATION      end the job after this time (as in 90s, 5m) and show where each rank stood
  --rank_timeout=RANK:DURATION  the same when RANK has not ended after this time; may be repeated
  --grace=DURATION        time between SIGTERM and SIGKILL (default 30s)
  --linger=DURATION       time that other ranks keep after one has failed (default 300ms)
  --expect_exit=RANK:HOW  RANK is expected to end so: an exit code, or a signal as in 1:SIGKILL
  --chdir=FOLDER          working folder of the ranks
  --run_id=ID             TORCHELASTIC_RUN_ID (default: made up)
  --merge_stderr          both output streams of a rank in one, in order
  --no_prefix             no "[RANK] " before each line

Exit code: 0 when all ranks ended as expected, else that of the rank that failed first (128 plus the
signal when it was killed), 124 after the timeout, 2 for bad arguments, 127 when PROGRAM cannot run.
)";

absl::Status Bad(absl::string_view flag, absl::string_view value, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(flag, "=", value, ": ", what));
}

// Splits "RANK:REST"; nullopt when it does not begin so.
std::optional<std::pair<int, absl::string_view>> SplitRank(absl::string_view text) {
  const size_t colon = text.find(':');
  int rank = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(0, colon), &rank)) {
    return std::nullopt;
  }
  return std::make_pair(rank, text.substr(colon + 1));
}

absl::Status ParseDurationFlag(absl::string_view flag, absl::string_view value,
                               absl::Duration& result) {
  if (!absl::ParseDuration(value, &result) || result < absl::ZeroDuration()) {
    return Bad(flag, value, "not a duration such as 90s, 1.5m or 2h");
  }
  return absl::OkStatus();
}

absl::Status ParseEnv(absl::string_view value, LaunchOptions& options) {
  // A name holds no colon, so "1:A=b" is for rank 1 and "A=1:b" for all.
  const size_t equals = value.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return Bad("--env", value, "not [RANK:]NAME=VALUE");
  }
  absl::string_view name = value.substr(0, equals);
  std::string content(value.substr(equals + 1));
  if (absl::StrContains(name, ':')) {
    const auto split = SplitRank(name);
    if (!split || split->second.empty()) return Bad("--env", value, "not [RANK:]NAME=VALUE");
    options.rank_env[split->first].emplace_back(split->second, std::move(content));
  } else {
    options.env.emplace_back(name, std::move(content));
  }
  return absl::OkStatus();
}

absl::Status ParseExpectExit(absl::string_view value, LaunchOptions& options) {
  const auto split = SplitRank(value);
  if (!split) return Bad("--expect_exit", value, "not RANK:CODE or RANK:SIGNAL");
  absl::StatusOr<ExitStatus> exit = ParseExitStatus(split->second);
  if (!exit.ok()) return Bad("--expect_exit", value, exit.status().message());
  if (!options.expected_exits.emplace(split->first, *exit).second) {
    return Bad("--expect_exit", value, "the rank was given before");
  }
  return absl::OkStatus();
}

absl::Status ParseRankTimeout(absl::string_view value, LaunchOptions& options) {
  const auto split = SplitRank(value);
  if (!split) return Bad("--rank_timeout", value, "not RANK:DURATION");
  absl::Duration timeout;
  if (absl::Status s = ParseDurationFlag("--rank_timeout", split->second, timeout); !s.ok()) return s;
  if (!options.rank_timeouts.emplace(split->first, timeout).second) {
    return Bad("--rank_timeout", value, "the rank was given before");
  }
  return absl::OkStatus();
}

absl::Status ParseValueFlag(absl::string_view flag, absl::string_view value,
                            LaunchOptions& options) {
  if (flag == "--ranks" || flag == "-n") {
    if (!absl::SimpleAtoi(value, &options.ranks)) return Bad(flag, value, "not a number");
    return absl::OkStatus();
  }
  if (flag == "--hosts") {
    if (!absl::SimpleAtoi(value, &options.hosts)) return Bad(flag, value, "not a number");
    return absl::OkStatus();
  }
  if (flag == "--rank_timeout") return ParseRankTimeout(value, options);
  if (flag == "--env") return ParseEnv(value, options);
  if (flag == "--expect_exit") return ParseExpectExit(value, options);
  if (flag == "--timeout") return ParseDurationFlag(flag, value, options.timeout);
  if (flag == "--grace") return ParseDurationFlag(flag, value, options.grace);
  if (flag == "--linger") return ParseDurationFlag(flag, value, options.failure_linger);
  if (flag == "--log_dir") {
    options.log_dir = std::string(value);
  } else if (flag == "--chdir") {
    options.working_directory = std::string(value);
  } else if (flag == "--run_id") {
    options.run_id = std::string(value);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("unknown flag ", flag));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view LaunchUsage() { return kUsage; }

absl::StatusOr<LaunchArguments> ParseLaunchArguments(const std::vector<std::string>& arguments) {
  LaunchArguments result;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const absl::string_view word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    if (word == "--help" || word == "-h") {
      result.help = true;
      return result;
    }
    if (word == "--merge_stderr") {
      result.options.merge_stderr = true;
      continue;
    }
    if (word == "--no_prefix") {
      result.options.prefix_output = false;
      continue;
    }
    if (word == "--check_hosts") {
      result.check_hosts = true;
      continue;
    }
    // --flag=value, --flag value, -n value, -nvalue.
    absl::string_view flag = word, value;
    const size_t equals = word.find('=');
    if (absl::StartsWith(word, "-n") && word.size() > 2) {
      flag = "-n";
      value = absl::StripPrefix(word.substr(2), "=");
    } else if (equals != absl::string_view::npos) {
      flag = word.substr(0, equals);
      value = word.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("no value follows ", flag));
    }
    if (absl::Status status = ParseValueFlag(flag, value, result.options); !status.ok()) {
      return status;
    }
  }
  result.command.assign(arguments.begin() + static_cast<ptrdiff_t>(std::min(i, arguments.size())),
                        arguments.end());
  if (result.command.empty() && !result.check_hosts) return absl::InvalidArgumentError("no PROGRAM is given");
  return result;
}

}  // namespace leafpack
