#include "distributed/store/process_group.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/store/c10d_errors.h"
#include "distributed/store/groups.h"

namespace leafpack {
namespace {

// Groups by the address of what they wrap. A weak pointer keeps the address from being used again,
// though not the object alive; so an entry whose object is gone is never taken for another's.
template <typename Wrapped>
class Cache {
 public:
  absl::StatusOr<Group> Get(const c10::intrusive_ptr<Wrapped>& wrapped,
                            absl::FunctionRef<absl::StatusOr<Group>()> make) {
    std::vector<Group> dead;  // shut down after the lock is gone
    absl::MutexLock lock(&mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.wrapped.expired()) {
        dead.push_back(std::move(it->second.group));
        it = entries_.erase(it);
      } else {
        ++it;
      }
    }
    const auto it = entries_.find(wrapped.get());
    if (it != entries_.end()) return it->second.group;
    absl::StatusOr<Group> group = make();
    if (group.ok()) {
      entries_.emplace(wrapped.get(), Entry{c10::weak_intrusive_ptr<Wrapped>(wrapped), *group});
    }
    return group;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<Wrapped> wrapped;
    Group group;
  };
  absl::Mutex mutex_;
  std::map<const Wrapped*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

template <typename Wrapped>
Cache<Wrapped>& TheCache() {
  static absl::NoDestructor<Cache<Wrapped>> cache;
  return *cache;
}

// Timeout and members as the backend knows them; a backend that tells nothing leaves the defaults.
void TakeOver(c10d::Backend& backend, GroupOptions& group_options, WrapOptions& options) {
  c10::intrusive_ptr<c10d::Backend::Options> known;
  try {
    known = backend.getBackendOptions();
  } catch (const std::exception&) {
    return;  // this kind of backend has no options
  }
  if (known == nullptr) return;
  if (known->timeout.count() > 0) {
    group_options.timeout = absl::Milliseconds(known->timeout.count());
  }
  if (options.global_ranks.empty() &&
      known->global_ranks_in_group.size() == static_cast<size_t>(backend.getSize())) {
    for (uint64_t rank : known->global_ranks_in_group) {
      options.global_ranks.emplace_back(static_cast<int>(rank));
    }
  }
}

GroupOptions OptionsOf(const WrapOptions& options) {
  GroupOptions group_options;
  group_options.backend = options.backend;
  group_options.interface_name = options.interface_name;
  return group_options;
}

}  // namespace

absl::StatusOr<Group> GroupFromProcessGroup(
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group, WrapOptions options) {
  if (process_group == nullptr) return absl::InvalidArgumentError("the process group is null");
  return TheCache<c10d::ProcessGroup>().Get(process_group, [&]() -> absl::StatusOr<Group> {
    return store_internal::CatchC10d("a process group", [&]() -> absl::StatusOr<Group> {
      const c10::intrusive_ptr<c10d::Store> store = process_group->getStore();
      if (store == nullptr) {
        return absl::FailedPreconditionError(
            "the process group has no store, over which its ranks could connect");
      }
      GroupOptions group_options = OptionsOf(options);
      if (process_group->hasBackends()) {
        const c10::DeviceType device =
            process_group->hasBackendForDeviceType(c10::DeviceType::CPU)
                ? c10::DeviceType::CPU
                : process_group->getDeviceTypes().front().type();
        TakeOver(*process_group->getBackend(device), group_options, options);
      }
      return GroupFromStore(store, absl::StrCat("leafpack/pg/", process_group->getGroupName()),
                            process_group->getRank(), process_group->getSize(),
                            std::move(options.global_ranks), std::move(group_options));
    });
  });
}

absl::StatusOr<Group> GroupFromBackend(const c10::intrusive_ptr<c10d::Backend>& backend,
                                       c10::intrusive_ptr<c10d::Store> store,
                                       std::string_view prefix, WrapOptions options) {
  if (backend == nullptr) return absl::InvalidArgumentError("the backend is null");
  return TheCache<c10d::Backend>().Get(backend, [&]() -> absl::StatusOr<Group> {
    GroupOptions group_options = OptionsOf(options);
    TakeOver(*backend, group_options, options);
    return GroupFromStore(std::move(store), prefix, backend->getRank(), backend->getSize(),
                          std::move(options.global_ranks), std::move(group_options));
  });
}

}  // namespace leafpack
