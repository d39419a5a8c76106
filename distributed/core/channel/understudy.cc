#include "distributed/core/channel/understudy.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/thread.h"
#include "distributed/core/channel/waiter.h"

namespace leafpack {
namespace {

constexpr int kEvents = 64;
constexpr uint64_t kWakeTag = ~uint64_t{0};
constexpr absl::Duration kExitPatience = absl::Seconds(1);

uint64_t Tag(uint32_t id, int fd) { return uint64_t{id} << 32 | static_cast<uint32_t>(fd); }

}  // namespace

class Understudy::Impl {
 public:
  struct Watched {
    uint32_t events;
    bool armed;
  };
  struct Entry {
    Client* client;
    std::shared_ptr<std::atomic<uint64_t>> uses;
    uint64_t uses_seen = 0;
    absl::Time wake_at = absl::InfiniteFuture();
    bool poked = false;
    bool disarmed = false;  // since the client was asked last
    absl::flat_hash_map<int, Watched> fds;

    bool AnyDisarmed() const {
      return std::any_of(fds.begin(), fds.end(), [](const auto& entry) { return !entry.second.armed; });
    }
  };

  absl::Status EnsureStarted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Arm(uint32_t id, int fd, Watched& watched, bool add) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  int Timeout() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve(uint32_t id, bool ready);
  void StopAtExit();

  const uint64_t generation_ = ForkGeneration();
  std::atomic<uint64_t> wakeups_{0};
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;            // written once, under mutex_
  std::thread::id thread_id_ ABSL_GUARDED_BY(mutex_);
  TrackedFd epoll_;               // written once, before the thread starts
  std::unique_ptr<WakeEvent> wake_;
  uint32_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  uint32_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // id of the client that is being served, or 0
  absl::Time next_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::flat_hash_map<uint32_t, std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Understudy::Impl::EnsureStarted() {
  if (started_) return absl::OkStatus();
  epoll_ = TrackedFd::Open([] { return epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll_.valid()) return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
  wake_ = std::make_unique<WakeEvent>();
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (wake_->fd() < 0 || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_->fd(), &event) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot watch an event: ", std::strerror(errno)));
  }
  absl::StatusOr<std::thread> thread = StartThread("leafpack-under", [this] { Run(); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  thread_id_ = thread_.get_id();
  started_ = true;
  std::atexit([] {
    // A child that calls exit() inherits this handler, but not the thread.
    Understudy& current = Get();
    current.impl_->StopAtExit();
  });
  return absl::OkStatus();
}

void Understudy::Impl::StopAtExit() {
  absl::MutexLock lock(&mutex_);
  if (!started_) return;
  stop_ = true;
  wake_->Signal();
  const absl::Time patience = absl::Now() + kExitPatience;
  while (!ended_ && !changed_.WaitWithDeadline(&mutex_, patience)) {
  }
  // Not joined if a client's mutex is stuck: the thread then ends with the process, and all that it
  // uses is never destroyed.
  if (ended_ && thread_.joinable()) thread_.join();
}

absl::Status Understudy::Impl::Arm(uint32_t id, int fd, Watched& watched, bool add) {
  epoll_event event = {};
  event.events = watched.events | EPOLLONESHOT;
  event.data.u64 = Tag(id, fd);
  int result = epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
  if (result != 0) return absl::UnavailableError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
  watched.armed = true;
  return absl::OkStatus();
}

int Understudy::Impl::Timeout() {
  absl::Time next = absl::InfiniteFuture();
  bool disarmed = false;
  for (const auto& [id, entry] : entries_) {
    if (entry->poked) return 0;
    next = std::min(next, entry->wake_at);
    disarmed = disarmed || entry->AnyDisarmed();
  }
  const absl::Time now = absl::Now();
  if (!disarmed) {
    next_tick_ = absl::InfiniteFuture();
  } else if (next_tick_ == absl::InfiniteFuture()) {
    next_tick_ = now + kTick;
  }
  next = std::min(next, next_tick_);
  if (next == absl::InfiniteFuture()) return -1;
  // A wall clock that is set back must not put the thread to sleep for long.
  const absl::Duration left = std::clamp(next - now, absl::ZeroDuration(), absl::Seconds(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

void Understudy::Impl::Run() {
  std::vector<uint32_t> ready, due;
  while (true) {
    int timeout;
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) {
        ended_ = true;
        changed_.SignalAll();
        return;
      }
      timeout = Timeout();
    }
    epoll_event events[kEvents];
    const int count = epoll_wait(epoll_.get(), events, kEvents, timeout);
    wakeups_.fetch_add(1, std::memory_order_relaxed);
    ready.clear();
    due.clear();
    {
      absl::MutexLock lock(&mutex_);
      for (int i = 0; i < count; ++i) {
        if (events[i].data.u64 == kWakeTag) {
          wake_->Drain();
          continue;
        }
        const auto id = static_cast<uint32_t>(events[i].data.u64 >> 32);
        const auto it = entries_.find(id);
        if (it == entries_.end()) continue;
        const auto watched = it->second->fds.find(static_cast<int>(events[i].data.u64 & 0xffffffffu));
        if (watched == it->second->fds.end()) continue;
        watched->second.armed = false;
        if (std::find(ready.begin(), ready.end(), id) == ready.end()) ready.push_back(id);
      }
      const absl::Time now = absl::Now();
      const bool tick = next_tick_ <= now;
      if (tick) next_tick_ = absl::InfiniteFuture();
      for (const auto& [id, entry] : entries_) {
        bool serve = entry->poked || entry->wake_at <= now;
        if (tick && entry->AnyDisarmed()) {
          const uint64_t uses = entry->uses->load(std::memory_order_relaxed);
          serve = serve || uses == entry->uses_seen;
          entry->uses_seen = uses;
        }
        if (serve && std::find(ready.begin(), ready.end(), id) == ready.end()) due.push_back(id);
      }
    }
    for (uint32_t id : ready) Serve(id, true);
    for (uint32_t id : due) Serve(id, false);
  }
}

void Understudy::Impl::Serve(uint32_t id, bool ready) {
  Client* client;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = entries_.find(id);
    if (it == entries_.end()) return;
    client = it->second->client;
    // What others ask for from here on comes on top of the client's answer.
    it->second->poked = false;
    it->second->disarmed = false;
    it->second->wake_at = absl::InfiniteFuture();
    running_ = id;
  }
  const absl::Time now = absl::Now();
  const Next next = ready ? client->OnReady(now) : client->OnTick(now);

  absl::MutexLock lock(&mutex_);
  running_ = 0;
  changed_.SignalAll();
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  Entry& entry = *it->second;
  entry.wake_at = std::min(entry.wake_at, next.wake_at);
  if (!next.rearm || entry.disarmed) {
    entry.uses_seen = entry.uses->load(std::memory_order_relaxed);
    return;
  }
  for (auto& [fd, watched] : entry.fds) {
    // A descriptor that cannot be armed (closed without Unwatch) is no more asked for.
    if (!watched.armed && !Arm(id, fd, watched, false).ok()) watched.armed = true;
  }
}

Understudy::Understudy() : impl_(new Impl) {}

Understudy& Understudy::Get() {
  static std::atomic<Understudy*> instance{nullptr};
  Understudy* current = instance.load(std::memory_order_acquire);
  // Without a lock: at a fork it could be held by a thread that the child does not have.
  while (current == nullptr || current->impl_->generation_ != ForkGeneration()) {
    auto* fresh = new Understudy;
    if (instance.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh->impl_;
    ::operator delete(fresh);
  }
  return *current;
}

absl::StatusOr<std::unique_ptr<Understudy::Registration>> Understudy::Register(Client* client) {
  absl::MutexLock lock(&impl_->mutex_);
  if (absl::Status status = impl_->EnsureStarted(); !status.ok()) return status;
  const uint32_t id = impl_->next_id_++;
  auto entry = std::make_unique<Impl::Entry>();
  entry->client = client;
  entry->uses = std::make_shared<std::atomic<uint64_t>>(0);
  auto registration = std::unique_ptr<Registration>(new Registration(this, id, entry->uses));
  impl_->entries_.emplace(id, std::move(entry));
  return registration;
}

uint64_t Understudy::wakeups() const { return impl_->wakeups_.load(std::memory_order_relaxed); }

Understudy::Registration::Registration(Understudy* owner, uint32_t id,
                                       std::shared_ptr<std::atomic<uint64_t>> uses)
    : owner_(owner), id_(id), generation_(ForkGeneration()), uses_(std::move(uses)) {}

Understudy::Registration::~Registration() { Unregister(); }

absl::Status Understudy::Registration::Watch(int fd, bool want_write) {
  if (generation_ != ForkGeneration()) return ForkedError();
  Impl& impl = *owner_->impl_;
  absl::MutexLock lock(&impl.mutex_);
  const auto it = impl.entries_.find(id_);
  if (it == impl.entries_.end()) return absl::FailedPreconditionError("the client is not registered any more");
  const uint32_t events = EPOLLIN | (want_write ? uint32_t{EPOLLOUT} : 0u);
  const auto [watched, inserted] = it->second->fds.try_emplace(fd, Impl::Watched{events, false});
  watched->second.events = events;
  absl::Status status = impl.Arm(id_, fd, watched->second, inserted);
  if (!status.ok() && inserted) it->second->fds.erase(watched);
  return status;
}

void Understudy::Registration::Unwatch(int fd) {
  if (generation_ != ForkGeneration()) return;
  Impl& impl = *owner_->impl_;
  absl::MutexLock lock(&impl.mutex_);
  const auto it = impl.entries_.find(id_);
  if (it == impl.entries_.end() || it->second->fds.erase(fd) == 0) return;
  epoll_ctl(impl.epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Understudy::Registration::NoteUse() { uses_->fetch_add(1, std::memory_order_relaxed); }

void Understudy::Registration::Disarm() {
  if (generation_ != ForkGeneration()) return;
  Impl& impl = *owner_->impl_;
  absl::MutexLock lock(&impl.mutex_);
  const auto it = impl.entries_.find(id_);
  if (it == impl.entries_.end()) return;
  it->second->disarmed = true;
  for (auto& [fd, watched] : it->second->fds) watched.armed = false;
  it->second->uses_seen = uses_->load(std::memory_order_relaxed);
  impl.wake_->Signal();
}

void Understudy::Registration::Poke() {
  if (generation_ != ForkGeneration()) return;
  Impl& impl = *owner_->impl_;
  absl::MutexLock lock(&impl.mutex_);
  const auto it = impl.entries_.find(id_);
  if (it == impl.entries_.end() || it->second->poked) return;
  it->second->poked = true;
  impl.wake_->Signal();
}

void Understudy::Registration::EnsureArmed() {
  if (generation_ != ForkGeneration()) return;
  Impl& impl = *owner_->impl_;
  absl::MutexLock lock(&impl.mutex_);
  const auto it = impl.entries_.find(id_);
  if (it == impl.entries_.end() || it->second->poked || !it->second->AnyDisarmed()) return;
  it->second->poked = true;
  impl.wake_->Signal();
}

void Understudy::Registration::WakeBy(absl::Time time) {
  if (generation_ != ForkGeneration()) return;
  Impl& impl = *owner_->impl_;
  absl::MutexLock lock(&impl.mutex_);
  const auto it = impl.entries_.find(id_);
  if (it == impl.entries_.end() || it->second->wake_at <= time) return;
  it->second->wake_at = time;
  impl.wake_->Signal();
}

void Understudy::Registration::Unregister() {
  if (generation_ != ForkGeneration()) return;
  Impl& impl = *owner_->impl_;
  absl::MutexLock lock(&impl.mutex_);
  const auto it = impl.entries_.find(id_);
  if (it != impl.entries_.end()) {
    for (const auto& [fd, watched] : it->second->fds) epoll_ctl(impl.epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    impl.entries_.erase(it);
  }
  // Also when another thread has taken the entry out: its method may still run.
  if (std::this_thread::get_id() == impl.thread_id_) return;
  while (impl.running_ == id_) impl.changed_.Wait(&impl.mutex_);
}

}  // namespace leafpack
