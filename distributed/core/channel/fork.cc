#include "distributed/core/channel/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/internal/sysinfo.h"

namespace leafpack {
namespace {

std::atomic<uint64_t> generation{0};

// The descriptors of this process. The mutex is taken around every open, close and fork; a plain
// std::mutex, because the child has to unlock what the parent locked.
struct Registry {
  std::mutex mutex;
  std::vector<int> fds;
};

void BeforeFork();
void InParent();
void InChild();

// Never destroyed: links in static storage may still close theirs.
Registry& GetRegistry() {
  static Registry* registry = [] {
    pthread_atfork(&BeforeFork, &InParent, &InChild);
    return new Registry;
  }();
  return *registry;
}

void BeforeFork() {
  // The first contended absl::Mutex measures the clock under a once flag, for some milliseconds. A fork
  // in the midst of that leaves the flag taken in the child, and its first contended lock waits for
  // ever. So it is done with before the fork; a lasting answer after the first time.
  absl::base_internal::NominalCPUFrequency();
  GetRegistry().mutex.lock();
}
void InParent() { GetRegistry().mutex.unlock(); }
void InChild() {
  Registry& registry = GetRegistry();
  for (int fd : registry.fds) close(fd);
  registry.fds.clear();
  generation.fetch_add(1, std::memory_order_relaxed);
  registry.mutex.unlock();
}

}  // namespace

uint64_t ForkGeneration() { return generation.load(std::memory_order_relaxed); }

absl::Status ForkedError() {
  return absl::FailedPreconditionError(
      "this group was made before the process forked; a forked child cannot use it: make a group in "
      "the child (or start processes by spawn instead of fork)");
}

TrackedFd::TrackedFd(TrackedFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}

TrackedFd& TrackedFd::operator=(TrackedFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

TrackedFd TrackedFd::Open(absl::FunctionRef<int()> open) {
  TrackedFd result;
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  registry.fds.reserve(registry.fds.size() + 1);
  result.fd_ = open();
  result.generation_ = ForkGeneration();
  if (result.fd_ >= 0) registry.fds.push_back(result.fd_);
  return result;
}

int TrackedFd::get() const { return generation_ == ForkGeneration() ? fd_ : -1; }

void TrackedFd::Close() {
  int fd = std::exchange(fd_, -1);
  if (fd < 0 || generation_ != ForkGeneration()) return;
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  auto it = std::find(registry.fds.begin(), registry.fds.end(), fd);
  if (it != registry.fds.end()) {
    *it = registry.fds.back();
    registry.fds.pop_back();
  }
  close(fd);
}

}  // namespace leafpack
