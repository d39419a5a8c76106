#include "distributed/store/environment.h"

#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "distributed/store/tcp_stores.h"

namespace leafpack {
namespace {

absl::StatusOr<std::string> ReadString(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return absl::FailedPreconditionError(absl::StrCat(
        "environment variable ", name, value == nullptr ? " is not set" : " is empty",
        ": start the program with a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"));
  }
  return std::string(value);
}

absl::StatusOr<int> ReadInt(const char* name, int least, int most, std::string_view want) {
  absl::StatusOr<std::string> text = ReadString(name);
  if (!text.ok()) return text.status();
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < least || value > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", name, " is '", *text, "': want ", want));
  }
  return value;
}

}  // namespace

absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment() {
  constexpr int kMax = std::numeric_limits<int>::max();
  LaunchEnvironment environment;
  absl::StatusOr<int> size = ReadInt("WORLD_SIZE", 1, kMax, "a number of ranks, at least 1");
  if (!size.ok()) return size.status();
  absl::StatusOr<int> rank = ReadInt(
      "RANK", 0, *size - 1, absl::StrCat("a rank below WORLD_SIZE, which is ", *size));
  if (!rank.ok()) return rank.status();
  absl::StatusOr<std::string> address = ReadString("MASTER_ADDR");
  if (!address.ok()) return address.status();
  absl::StatusOr<int> port = ReadInt("MASTER_PORT", 1, 65535, "a port, 1 to 65535");
  if (!port.ok()) return port.status();
  environment.size = *size;
  environment.rank = *rank;
  environment.master_addr = *std::move(address);
  environment.master_port = static_cast<uint16_t>(*port);
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  environment.agent_store = agent != nullptr && std::string_view(agent) == "True";
  if (environment.agent_store && std::getenv("TORCHELASTIC_RESTART_COUNT") != nullptr) {
    absl::StatusOr<int> restarts =
        ReadInt("TORCHELASTIC_RESTART_COUNT", 0, kMax, "a number of restarts");
    if (!restarts.ok()) return restarts.status();
    environment.restart_count = *restarts;
  }
  return environment;
}

absl::StatusOr<Group> GroupFromEnvironment(GroupOptions options,
                                           const InterruptCheck& interrupt) {
  absl::StatusOr<LaunchEnvironment> environment = ReadLaunchEnvironment();
  if (!environment.ok()) return environment.status();
  store_internal::TcpMeeting meeting;
  meeting.host = environment->master_addr;
  meeting.port = environment->master_port;
  meeting.serves = environment->rank == 0 && !environment->agent_store;
  meeting.what = absl::StrCat("the store at MASTER_ADDR:MASTER_PORT ", meeting.host, ":",
                              meeting.port);
  meeting.prefix = absl::StrCat("leafpack/env/", environment->restart_count);
  meeting.rank = environment->rank;
  meeting.size = environment->size;
  return store_internal::GroupOverTcp(meeting, std::move(options), interrupt);
}

}  // namespace leafpack
