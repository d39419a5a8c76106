// The command line of the launcher.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_ARGUMENTS_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_ARGUMENTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "distributed/launch/launcher.h"

namespace leafpack {

struct LaunchArguments {
  LaunchOptions options;
  std::vector<std::string> command;
  bool help = false;
  bool check_hosts = false;  // only say whether options.hosts hosts can be pretended
};

// What --help prints.
absl::string_view LaunchUsage();

// Reads the arguments that follow the launcher's own name. The first word that is no flag, or what
// follows "--", is the program; all that comes after it is the program's. InvalidArgument says what
// is wrong with which argument.
absl::StatusOr<LaunchArguments> ParseLaunchArguments(const std::vector<std::string>& arguments);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_ARGUMENTS_H_
