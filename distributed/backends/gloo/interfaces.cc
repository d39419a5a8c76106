#include "distributed/backends/gloo/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace leafpack::gloo_internal {
namespace {

template <typename Visit>
void VisitInterfaces(Visit visit) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_name == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) visit(*entry);
  }
  freeifaddrs(list);
}

absl::StatusOr<std::string> Existing(std::string_view name, std::string_view origin) {
  const std::vector<std::string> names = InterfaceNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) return std::string(name);
  return absl::InvalidArgumentError(absl::StrCat("network interface '", name, "' (", origin,
                                                 ") does not exist or has no address; this host has ",
                                                 absl::StrJoin(names, ", ")));
}

}  // namespace

std::vector<std::string> InterfaceNames() {
  std::set<std::string> names;
  VisitInterfaces([&](const ifaddrs& entry) { names.insert(entry.ifa_name); });
  return {names.begin(), names.end()};
}

absl::StatusOr<std::string> ChooseInterface(std::string_view requested, bool all_local) {
  if (!requested.empty()) return Existing(requested, "from the group's options");
  if (all_local) {
    std::string loopback;
    VisitInterfaces([&](const ifaddrs& entry) {
      const bool is_up = (entry.ifa_flags & IFF_UP) != 0;
      if (is_up && (entry.ifa_flags & IFF_LOOPBACK) != 0 && loopback.empty()) {
        loopback = entry.ifa_name;
      }
    });
    if (!loopback.empty()) return loopback;
  }
  const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
  if (variable != nullptr && *variable != '\0') {
    const std::string_view list = variable;
    return Existing(list.substr(0, list.find(',')), "from GLOO_SOCKET_IFNAME");
  }
  return std::string();
}

}  // namespace leafpack::gloo_internal
