#include "distributed/store/environment.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/store/c10d_errors.h"
#include "distributed/store/groups.h"

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

// Stores live as long as the process: rank 0's serves the others.
struct OpenStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
  int groups = 0;  // made over it so far
};

struct OpenStores {
  absl::Mutex mutex;
  std::map<std::string, OpenStore> by_key ABSL_GUARDED_BY(mutex);
};

OpenStores& TheOpenStores() {
  static absl::NoDestructor<OpenStores> stores;
  return *stores;
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

absl::StatusOr<Group> GroupFromEnvironment(GroupOptions options) {
  absl::StatusOr<LaunchEnvironment> environment = ReadLaunchEnvironment();
  if (!environment.ok()) return environment.status();
  const std::string address =
      absl::StrCat(environment->master_addr, ":", environment->master_port);
  const std::string key = absl::StrCat(address, " ", environment->rank, "/", environment->size, " ",
                                       environment->restart_count);
  OpenStores& stores = TheOpenStores();
  absl::MutexLock lock(&stores.mutex);
  OpenStore& open = stores.by_key[key];
  if (open.store == nullptr) {
    c10d::TCPStoreOptions store_options;
    store_options.port = environment->master_port;
    store_options.isServer = environment->rank == 0 && !environment->agent_store;
    store_options.waitWorkers = false;
    store_options.multiTenant = true;
    store_options.timeout = std::chrono::milliseconds(absl::ToInt64Milliseconds(
        std::clamp(options.timeout, absl::Milliseconds(1), absl::Hours(24))));
    absl::Status status = store_internal::CatchC10d(
        absl::StrCat("the store at MASTER_ADDR:MASTER_PORT ", address), [&]() -> absl::Status {
          open.store =
              c10::make_intrusive<c10d::TCPStore>(environment->master_addr, store_options);
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
  }
  const std::string prefix =
      absl::StrCat("leafpack/env/", environment->restart_count, "/", open.groups);
  absl::StatusOr<Group> group = GroupFromStore(open.store, prefix, environment->rank,
                                               environment->size, {}, std::move(options));
  if (group.ok()) ++open.groups;
  return group;
}

}  // namespace leafpack
