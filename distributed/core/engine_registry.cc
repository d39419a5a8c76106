#include "distributed/core/engine_registry.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/thread.h"
#include "distributed/core/engine_impl.h"
#include "distributed/core/exit.h"

namespace leafpack {
namespace {

constexpr absl::Duration kExitPatience = absl::Seconds(5);

struct Registry {
  Registry(uint64_t g, Registry* p) : generation(g), parent(p) {}
  const uint64_t generation;
  Registry* const parent;  // the one of the process that forked this one
  absl::Mutex mu;
  absl::CondVar changed;
  std::vector<std::weak_ptr<EngineImpl>> engines ABSL_GUARDED_BY(mu);
  std::vector<std::weak_ptr<Engine>> solo ABSL_GUARDED_BY(mu);
  std::vector<std::shared_ptr<const void>> kept ABSL_GUARDED_BY(mu);
  int helpers ABSL_GUARDED_BY(mu) = 0;
};

std::atomic<bool> exiting{false};
std::atomic<Registry*> current{nullptr};

// One for each fork generation: a child must not touch a mutex that a thread of its parent may have
// held. Never destroyed.
Registry& TheRegistry() {
  Registry* registry = current.load(std::memory_order_acquire);
  while (registry == nullptr || registry->generation != ForkGeneration()) {
    auto* fresh = new Registry(ForkGeneration(), registry);
    if (current.compare_exchange_strong(registry, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *registry;
}

// Forgets those that are gone.
template <typename E>
void Remember(std::vector<std::weak_ptr<E>>& engines, const std::shared_ptr<E>& engine) {
  std::erase_if(engines, [](const std::weak_ptr<E>& e) { return e.expired(); });
  engines.push_back(engine);
}

template <typename E>
std::vector<std::shared_ptr<E>> Living(const std::vector<std::weak_ptr<E>>& engines) {
  std::vector<std::shared_ptr<E>> living;
  for (const std::weak_ptr<E>& weak : engines) {
    if (std::shared_ptr<E> engine = weak.lock()) living.push_back(std::move(engine));
  }
  return living;
}

std::vector<std::shared_ptr<EngineImpl>> OpenEngines(Registry& registry) {
  absl::MutexLock lock(&registry.mu);
  return Living(registry.engines);
}

void ShutDownAll() {
  exiting = true;
  const absl::Time until = absl::Now() + kExitPatience;
  Registry& registry = TheRegistry();
  std::vector<std::shared_ptr<EngineImpl>> engines = OpenEngines(registry);
  for (const std::shared_ptr<EngineImpl>& engine : engines) engine->ShutdownAtExit(until);
  // Threads that exit() does not end may still refer to them.
  for (std::shared_ptr<EngineImpl>& engine : engines) KeepForever(std::move(engine));
  absl::MutexLock lock(&registry.mu);
  while (registry.helpers > 0) {
    if (registry.changed.WaitWithDeadline(&registry.mu, until)) break;
  }
}

}  // namespace

void RegisterEngine(const std::shared_ptr<EngineImpl>& engine) {
  static const bool registered = std::atexit(ShutDownAll) == 0;
  (void)registered;
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  Remember(registry.engines, engine);
}

void RegisterSoloEngine(const std::shared_ptr<Engine>& engine) {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  Remember(registry.solo, engine);
}

void KeepForever(std::shared_ptr<const void> what) {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  registry.kept.push_back(std::move(what));
}

void ShutdownAllGroups(absl::Duration patience) {
  const absl::Time until = absl::Now() + patience;
  Registry& registry = TheRegistry();
  std::vector<std::shared_ptr<Engine>> engines;
  for (std::shared_ptr<EngineImpl>& engine : OpenEngines(registry)) {
    engines.push_back(std::move(engine));
  }
  {
    absl::MutexLock lock(&registry.mu);
    for (std::shared_ptr<Engine>& engine : Living(registry.solo)) {
      engines.push_back(std::move(engine));
    }
  }
  for (const std::shared_ptr<Engine>& engine : engines) {
    // What nobody waits for is told to nobody.
    engine->Shutdown(std::max(until - absl::Now(), absl::ZeroDuration())).IgnoreError();
  }
}

bool ProcessIsExiting() { return exiting; }

absl::Status RunInHelperThread(absl::AnyInvocable<void()> task) {
  Registry& registry = TheRegistry();
  {
    absl::MutexLock lock(&registry.mu);
    ++registry.helpers;
  }
  const auto ended = [&registry] {
    absl::MutexLock lock(&registry.mu);
    --registry.helpers;
    registry.changed.SignalAll();
  };
  absl::StatusOr<std::thread> thread =
      StartThread("leafpack-help", [ended, task = std::move(task)]() mutable {
        task();
        task = nullptr;  // what it held is gone before the thread counts as ended
        ended();
      });
  if (thread.ok()) {
    thread->detach();
  } else {
    ended();
  }
  return thread.status();
}

int HelperThreads() {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  return registry.helpers;
}

}  // namespace leafpack
