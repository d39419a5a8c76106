#include "distributed/store/tcp_stores.h"

#include <algorithm>
#include <map>
#include <utility>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/core/interrupted.h"
#include "distributed/store/groups.h"
#include "distributed/store/open_tcp_store.h"

namespace leafpack::store_internal {
namespace {

// Stores live as long as the process: rank 0's serves the others.
struct OpenStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
  bool opening = false;  // by a thread, without the lock
  int groups = 0;        // made over it so far
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

absl::StatusOr<Group> GroupOverTcp(const TcpMeeting& meeting, GroupOptions options,
                                   const InterruptCheck& interrupt) {
  const std::string key = absl::StrCat(meeting.host, ":", meeting.port, " ", meeting.rank, "/",
                                       meeting.size, " ", meeting.prefix);
  const absl::Duration timeout = std::clamp(options.timeout, absl::Milliseconds(1), absl::Hours(24));
  const absl::Time deadline = absl::Now() + timeout;
  OpenStores& stores = TheOpenStores();
  absl::MutexLock lock(&stores.mutex);
  OpenStore& open = stores.by_key[key];
  const auto opened = [&] { return !open.opening; };
  while (!stores.mutex.AwaitWithDeadline(absl::Condition(&opened),
                                         std::min(deadline, absl::Now() + kWaitSlice))) {
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(meeting.what, ": another thread still opens it"));
    }
    if (interrupt == nullptr) continue;
    stores.mutex.Unlock();
    const bool interrupted = IsInterrupted(interrupt);
    stores.mutex.Lock();
    if (interrupted) return absl::CancelledError(absl::StrCat(meeting.what, ": interrupted"));
  }
  if (open.store == nullptr) {
    c10d::TCPStoreOptions store_options;
    store_options.port = meeting.port;
    store_options.isServer = meeting.serves;
    store_options.waitWorkers = false;
    store_options.multiTenant = true;
    store_options.timeout = absl::ToChronoMilliseconds(timeout);
    open.opening = true;
    stores.mutex.Unlock();
    absl::StatusOr<c10::intrusive_ptr<c10d::TCPStore>> store =
        OpenTcpStore(meeting.host, store_options, meeting.what, deadline - absl::Now(), interrupt);
    stores.mutex.Lock();
    open.opening = false;
    if (!store.ok()) return store.status();
    open.store = *std::move(store);
  }
  absl::StatusOr<Group> group =
      GroupFromStore(open.store, absl::StrCat(meeting.prefix, "/", open.groups), meeting.rank,
                     meeting.size, {}, std::move(options));
  if (group.ok()) ++open.groups;
  return group;
}

}  // namespace leafpack::store_internal
