// bazel run //distributed/launch -- -n 4 -- PROGRAM ARGUMENTS
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "distributed/launch/arguments.h"
#include "distributed/launch/hosts.h"
#include "distributed/launch/launcher.h"

int main(int argc, char** argv) {
  absl::StatusOr<leafpack::LaunchArguments> arguments =
      leafpack::ParseLaunchArguments(std::vector<std::string>(argv + 1, argv + argc));
  if (!arguments.ok()) {
    std::fprintf(stderr, "launch: %s (--help shows the flags)\n",
                 std::string(arguments.status().message()).c_str());
    return 2;
  }
  if (arguments->help) {
    std::fputs(std::string(leafpack::LaunchUsage()).c_str(), stdout);
    return 0;
  }
  if (arguments->check_hosts) {
    const absl::StatusOr<leafpack::Hosts> hosts = leafpack::Hosts::Make(arguments->options.hosts);
    if (hosts.ok()) return 0;
    std::fprintf(stderr, "launch: %s\n", std::string(hosts.status().message()).c_str());
    return 69;  // EX_UNAVAILABLE
  }
  // `bazel run` starts us in the runfiles folder; paths that the user typed are meant from theirs.
  if (const char* user_directory = std::getenv("BUILD_WORKING_DIRECTORY")) {
    if (chdir(user_directory) != 0) {
      std::fprintf(stderr, "launch: cannot change to the folder %s\n", user_directory);
      return 2;
    }
  }
  absl::StatusOr<leafpack::LaunchResult> result =
      leafpack::Launch(arguments->options, arguments->command);
  if (!result.ok()) {
    std::fprintf(stderr, "launch: %s\n", std::string(result.status().message()).c_str());
    return result.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 127;
  }
  return result->exit_code;
}
