#include "distributed/mailbox/address_book.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "distributed/core/channel/thread.h"
#include "distributed/core/channel/waiter.h"

namespace leafpack::mailbox {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(20);
constexpr absl::Duration kEndPatience = absl::Milliseconds(100);

std::string KeyOf(int rank) { return absl::StrCat("rank/", rank); }

}  // namespace

struct AddressBook::State {
  // Used by the thread alone.
  std::unique_ptr<KeyValueStore> store;
  int rank = 0;
  std::string address;

  WakeEvent event;
  absl::Mutex mutex;
  absl::CondVar changed;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  // Wanted ranks, and the address that was found last.
  std::map<int, std::string> wanted ABSL_GUARDED_BY(mutex);
  bool eager ABSL_GUARDED_BY(mutex) = true;  // somebody came to be wanted
  News news ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<std::unique_ptr<AddressBook>> AddressBook::Open(std::unique_ptr<KeyValueStore> store,
                                                               int rank, std::string address) {
  auto state = std::make_shared<State>();
  if (state->event.fd() < 0) return absl::UnavailableError("no descriptor is left for an event");
  state->store = std::move(store);
  state->rank = rank;
  state->address = std::move(address);
  std::unique_ptr<AddressBook> book(new AddressBook(state));
  absl::StatusOr<std::thread> thread = StartThread("leafpack-addr", [state] { Run(*state); });
  if (!thread.ok()) return thread.status();
  book->thread_ = *std::move(thread);
  return book;
}

void AddressBook::Run(State& state) {
  bool published = false;
  absl::Duration pause = kFirstPause;
  while (true) {
    std::map<int, std::string> wanted;
    {
      absl::MutexLock lock(&state.mutex);
      while (!state.stop && published && state.wanted.empty()) state.changed.Wait(&state.mutex);
      if (state.stop) break;
      wanted = state.wanted;
      if (std::exchange(state.eager, false)) pause = kFirstPause;
    }
    absl::Status error;
    if (!published) {
      error = state.store->Set(KeyOf(state.rank), state.address);
      published = error.ok();
    }
    std::vector<std::pair<int, std::string>> found;
    for (const auto& [rank, last] : wanted) {
      absl::StatusOr<bool> exists = state.store->Check(KeyOf(rank));
      if (exists.ok() && !*exists) continue;
      absl::StatusOr<std::string> value =
          exists.ok() ? state.store->Get(KeyOf(rank)) : exists.status();
      if (!value.ok()) {
        error = value.status();
        break;
      }
      if (*value != last) found.emplace_back(rank, *std::move(value));
    }
    absl::MutexLock lock(&state.mutex);
    state.news.error = std::move(error);
    for (auto& [rank, value] : found) {
      const auto it = state.wanted.find(rank);
      if (it == state.wanted.end()) continue;
      it->second = value;
      state.news.addresses.emplace_back(rank, std::move(value));
    }
    if (!found.empty()) state.event.Signal();
    if (!state.stop && !state.eager && (!published || !state.wanted.empty())) {
      state.changed.WaitWithTimeout(&state.mutex, pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
  absl::MutexLock lock(&state.mutex);
  state.ended = true;
  state.changed.SignalAll();
}

AddressBook::~AddressBook() {
  if (!thread_.joinable()) return;
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
    thread_.join();
  } else {
    thread_.detach();
  }
}

void AddressBook::Want(int rank) {
  absl::MutexLock lock(&state_->mutex);
  if (!state_->wanted.try_emplace(rank).second) return;
  state_->eager = true;
  state_->changed.SignalAll();
}

void AddressBook::Forget(int rank) {
  absl::MutexLock lock(&state_->mutex);
  state_->wanted.erase(rank);
}

AddressBook::News AddressBook::Take() {
  state_->event.Drain();
  absl::MutexLock lock(&state_->mutex);
  News result = state_->news;
  state_->news.addresses.clear();
  return result;
}

int AddressBook::fd() const { return state_->event.fd(); }

}  // namespace leafpack::mailbox
