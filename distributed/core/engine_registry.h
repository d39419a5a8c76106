// The engines of this process, for the hook that runs at exit.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ENGINE_REGISTRY_H_
#define LEAFPACK_DISTRIBUTED_CORE_ENGINE_REGISTRY_H_

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace leafpack {

class Engine;
class EngineImpl;

// Remembers `engine` until it is gone. At exit() engines that are still open are shut down: they
// drain up to the deadlines of their calls, 5 s at most together, and say farewell.
void RegisterEngine(const std::shared_ptr<EngineImpl>& engine);

// Remembers the engine of a group of one until it is gone, for ShutdownAllGroups alone: it has nobody to say
// farewell to.
void RegisterSoloEngine(const std::shared_ptr<Engine>& engine);

// True from the exit hook on. What backends made is leaked then, not destroyed.
bool ProcessIsExiting();

// Never frees `what`: for what must not be destroyed at exit, or belongs to the parent of a fork.
// Leak checkers see it as still in use.
void KeepForever(std::shared_ptr<const void> what);

// Runs `task` in a thread of its own, for what may block (opening a data context). The exit hook
// waits for these threads as long as it waits for anything. Unavailable when the system refuses a
// thread; the task is not run then.
absl::Status RunInHelperThread(absl::AnyInvocable<void()> task);

// Threads of RunInHelperThread that have not ended; for tests.
int HelperThreads();

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ENGINE_REGISTRY_H_
