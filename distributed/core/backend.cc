#include "distributed/core/backend.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/log/absl_log.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/device_backends.h"

namespace leafpack {
namespace {

struct Registry {
  absl::Mutex mu;
  std::map<std::string, BackendFactory, std::less<>> factories ABSL_GUARDED_BY(mu);
};

Registry& TheRegistry() {
  static absl::NoDestructor<Registry> registry;
  return *registry;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataWork>> DataContext::Exchange(std::vector<Transfer> /*sends*/,
                                                                std::vector<Transfer> /*receives*/) {
  return absl::UnimplementedError("this backend does not exchange leaves");
}

absl::Status Backend::SupportsExchange(at::ScalarType /*dtype*/, c10::DeviceType /*device*/) const {
  return absl::UnimplementedError(absl::StrCat("the ", name(), " backend does not exchange leaves"));
}

bool RegisterBackend(std::string_view name, BackendFactory factory) {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  const bool inserted = registry.factories.try_emplace(std::string(name), std::move(factory)).second;
  if (!inserted) ABSL_LOG(ERROR) << "leafpack: a backend named '" << name << "' is registered already";
  return inserted;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name) {
  if (NamesDevices(name)) return MakeDeviceBackends(name);
  BackendFactory factory;
  {
    Registry& registry = TheRegistry();
    absl::MutexLock lock(&registry.mu);
    auto it = registry.factories.find(name);
    if (it != registry.factories.end()) factory = it->second;
  }
  if (factory == nullptr) {
    const std::vector<std::string> names = BackendNames();
    return absl::NotFoundError(absl::StrCat(
        "no backend named '", absl::Utf8SafeCEscape(name), "' is linked into this program; linked in: ",
        names.empty() ? std::string("none") : absl::StrJoin(names, ", ")));
  }
  return factory();
}

std::vector<std::string> BackendNames() {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry.factories) names.push_back(name);
  return names;
}

}  // namespace leafpack
