#include "distributed/core/channel/store_thread.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/thread.h"
#include "distributed/core/channel/waiter.h"

namespace leafpack {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(20);
constexpr absl::Duration kLazyPause = absl::Milliseconds(500);
constexpr absl::Duration kEndPatience = absl::Milliseconds(100);

}  // namespace

struct StoreThread::State {
  // Used by the thread alone.
  std::unique_ptr<KeyValueStore> store;
  std::string key;
  std::optional<std::string> to_publish;

  WakeEvent event;
  absl::Mutex mutex;
  absl::CondVar changed;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool eager ABSL_GUARDED_BY(mutex) = true;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  absl::Time failing_since ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
  News news ABSL_GUARDED_BY(mutex);
};

StoreThread::StoreThread(std::shared_ptr<State> state, std::unique_ptr<std::thread> thread,
                         uint64_t generation)
    : state_(std::move(state)), thread_(std::move(thread)), generation_(generation) {}

absl::StatusOr<std::unique_ptr<StoreThread>> StoreThread::Publish(std::unique_ptr<KeyValueStore> store,
                                                                  std::string key, std::string value) {
  auto state = std::make_shared<State>();
  state->store = std::move(store);
  state->key = std::move(key);
  state->to_publish = std::move(value);
  return Start(std::move(state));
}

absl::StatusOr<std::unique_ptr<StoreThread>> StoreThread::Watch(std::unique_ptr<KeyValueStore> store,
                                                                std::string key) {
  auto state = std::make_shared<State>();
  state->store = std::move(store);
  state->key = std::move(key);
  return Start(std::move(state));
}

absl::StatusOr<std::unique_ptr<StoreThread>> StoreThread::Start(std::shared_ptr<State> state) {
  if (state->event.fd() < 0) return absl::UnavailableError("no descriptor is left for an event");
  absl::StatusOr<std::thread> thread = StartThread("leafpack-store", [state] { Run(*state); });
  if (!thread.ok()) return thread.status();
  auto owned = std::make_unique<std::thread>(*std::move(thread));
  return std::unique_ptr<StoreThread>(new StoreThread(std::move(state), std::move(owned), ForkGeneration()));
}

void StoreThread::Run(State& state) {
  std::string last;
  bool found = false;
  absl::Duration pause = kFirstPause;
  while (true) {
    absl::Status error;
    std::optional<std::string> value;
    bool published = false;
    if (state.to_publish.has_value()) {
      error = state.store->Set(state.key, *state.to_publish);
      published = error.ok();
    } else {
      absl::StatusOr<bool> exists = state.store->Check(state.key);
      error = exists.status();
      if (exists.ok() && *exists) {
        absl::StatusOr<std::string> got = state.store->Get(state.key);
        error = got.status();
        if (got.ok() && (!found || *got != last)) {
          found = true;
          last = *got;
          value = *std::move(got);
        }
      }
    }

    absl::MutexLock lock(&state.mutex);
    const bool tell = !error.ok() || value.has_value() || published;
    if (error.ok()) {
      state.failing_since = absl::InfiniteFuture();
    } else {
      state.failing_since = std::min(state.failing_since, absl::Now());
    }
    state.news.error = std::move(error);
    state.news.published = published;
    if (value.has_value()) state.news.value = std::move(value);
    if (tell) state.event.Signal();
    if (!state.stop && !published) {
      const absl::Duration nap = state.eager ? pause : std::max(pause, kLazyPause);
      pause = std::min(2 * pause, kLongestPause);
      state.changed.WaitWithTimeout(&state.mutex, nap);
    }
    if (state.stop || published) {
      state.ended = true;
      state.changed.SignalAll();
      return;
    }
  }
}

StoreThread::~StoreThread() {
  if (generation_ != ForkGeneration()) {
    // The thread does not exist in this process, and its mutex may be held for ever.
    new std::shared_ptr<State>(std::move(state_));
    thread_.release();
    return;
  }
  bool ended;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->stop = true;
    state_->changed.SignalAll();
    const absl::Time patience = absl::Now() + kEndPatience;
    while (!state_->ended && !state_->changed.WaitWithDeadline(&state_->mutex, patience)) {
    }
    ended = state_->ended;
  }
  if (ended) {
    thread_->join();
  } else {
    thread_->detach();
  }
}

StoreThread::News StoreThread::Take() {
  state_->event.Drain();
  absl::MutexLock lock(&state_->mutex);
  News result = state_->news;
  state_->news.value.reset();
  result.failing = state_->failing_since == absl::InfiniteFuture() ? absl::ZeroDuration()
                                                                   : absl::Now() - state_->failing_since;
  return result;
}

int StoreThread::fd() const { return state_->event.fd(); }

void StoreThread::SetEager(bool eager) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->eager == eager) return;
  state_->eager = eager;
  state_->changed.SignalAll();
}

void StoreThread::Stop() {
  absl::MutexLock lock(&state_->mutex);
  state_->stop = true;
  state_->changed.SignalAll();
}

}  // namespace leafpack
