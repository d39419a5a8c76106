// The data path of a group: the turnstile, the contexts of epochs, the end of a data phase.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/core/engine_impl.h"
#include "distributed/core/engine_registry.h"
#include "distributed/core/engine_store.h"
#include "distributed/core/flight/dump.h"

namespace leafpack {

using protocol::SteadyNanos;

namespace {

// Aborted contexts that may wait for the end of their works.
constexpr size_t kMaxDeadContexts = 4;
// Deadlines are the engine's business: what a backend times out by itself is longer than any call.
constexpr absl::Duration kBackendTimeout = absl::Hours(7 * 24);
// How long a failed call waits for its context's Abort to come back before it returns anyway.
constexpr SteadyNanos kAbortPatience = 1000 * protocol::kMillisecond;
// Paths that are told to the other ranks, at most.
constexpr size_t kMaxPathsTold = 16;

}  // namespace

absl::StatusOr<std::shared_ptr<DataContext>> EngineImpl::EnterData(
    CallState& call, const InterruptCheck& interrupt) {
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  std::shared_ptr<EpochData> data;
  const auto my_turn = [&] {
    mu_.AssertHeld();
    return call.ended ||
           (call.granted && stopped_epoch_ != call.epoch && call.epoch >= first_live_epoch_ &&
            *turnstile_.begin() == call.number);
  };
  const auto opened = [&] {
    mu_.AssertHeld();
    return call.ended || data->opened;
  };
  if (Wait(my_turn, protocol::kNever, interrupt) == WaitEnd::kInterrupted) {
    return FinishData(call, absl::CancelledError("interrupted"), {}, nullptr);
  }
  {
    absl::MutexLock lock(&mu_);
    if (call.ended) return EndStatus(call);
    data = StartOpening(call.epoch, call.deadline);
  }
  if (Wait(opened, protocol::kNever, interrupt) == WaitEnd::kInterrupted) {
    return FinishData(call, absl::CancelledError("interrupted"), {}, nullptr);
  }
  absl::Status failed;
  {
    absl::MutexLock lock(&mu_);
    if (call.ended) return EndStatus(call);
    if (data->status.ok()) {
      config_.flight->Advance(call.flight, FlightState::kInData);
      return data->context;
    }
    failed = data->status;
  }
  return FinishData(call, AnnotateStatus(failed, "opening the data path"), {}, interrupt);
}

void EngineImpl::LeaveTurnstile(CallState& call) {
  if (!CheckUsable().ok()) return;
  absl::MutexLock lock(&mu_);
  if (turnstile_.erase(call.number) > 0) WakeWaiters();
}

absl::Status EngineImpl::Poll(CallState& call) {
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  Deferred deferred;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (!leading_ && !closed_) {
      Pump(deferred);
      NoteChange();
    }
    if (call.ended) status = EndStatus(call);
  }
  if (!deferred.empty()) Execute(deferred);
  return status;
}

absl::Status EngineImpl::FinishData(CallState& call, absl::Status status,
                                    std::vector<std::string> paths_done,
                                    const InterruptCheck& interrupt) {
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    const SteadyNanos now = SteadyNow();
    if (turnstile_.erase(call.number) > 0) WakeWaiters();
    if (!call.ended && !call.reported) {
      call.reported = true;
      if (status.ok()) {
        machine_.OnDataDone(call.number, now, rank_actions_);
      } else {
        std::string told = absl::StrJoin(
            paths_done.begin(),
            paths_done.begin() +
                static_cast<std::ptrdiff_t>(std::min(paths_done.size(), kMaxPathsTold)),
            ", ");
        if (paths_done.size() > kMaxPathsTold) absl::StrAppend(&told, ", ...");
        machine_.OnDataFailed(call.number,
                              absl::IsCancelled(status) ? protocol::FailKind::kInterrupt
                                                        : protocol::FailKind::kError,
                              status.message(), told, now, rank_actions_);
      }
      Drain(now, deferred);
      NoteChange();
    }
  }
  if (!deferred.empty()) Execute(deferred);
  AwaitEnd(call, interrupt);
  absl::Status end;
  std::shared_ptr<EpochData> data;
  {
    absl::MutexLock lock(&mu_);
    end = EndStatus(call);
    if (end.ok()) return end;
    for (const std::shared_ptr<EpochData>& dead : dead_) {
      if (dead->epoch == call.epoch) data = dead;
    }
  }
  if (data != nullptr) {
    // From here on the works of the call end by themselves.
    Wait(
        [&] {
          mu_.AssertHeld();
          return data->abort_done;
        },
        SteadyNow() + kAbortPatience, nullptr);
  }
  NoteFlightError(end);
  ErrorDetails details = GetErrorDetails(end);
  if (details.tree_unchanged) return end;
  details.paths_done = std::move(paths_done);
  return WithErrorDetails(std::move(end), details);
}

std::shared_ptr<EpochData> EngineImpl::StartOpening(uint32_t epoch, absl::Time deadline) {
  std::shared_ptr<EpochData>& data = epochs_[epoch];
  if (data == nullptr) {
    data = std::make_shared<EpochData>();
    data->epoch = epoch;
  }
  if (!data->opening) {
    data->opening = true;
    // A grant that crossed its deadline has a second; so has what it opens.
    const absl::Time until = std::max(
        deadline, absl::Now() + absl::Nanoseconds(protocol::kGrace));
    const absl::Status started =
        RunInHelperThread([self = shared_from_this(), opening = data, until] {
          self->OpenContext(opening, until);
        });
    if (!started.ok()) {
      data->opened = true;
      data->status = started;
    }
  }
  return data;
}

void EngineImpl::OpenContext(std::shared_ptr<EpochData> data, absl::Time deadline) {
  absl::Status freed = FreeDeadContexts(deadline);
  absl::StatusOr<std::shared_ptr<DataContext>> context =
      freed.ok() ? OpenContextOrError(*data, deadline)
                 : absl::StatusOr<std::shared_ptr<DataContext>>(freed);
  std::shared_ptr<DataContext> late;
  {
    absl::MutexLock lock(&mu_);
    data->opened = true;
    data->status = context.status();
    if (context.ok()) {
      if (data->dead) {
        late = *std::move(context);
      } else {
        data->context = *std::move(context);
      }
    }
    WakeWaiters();
  }
  // The epoch ended while its context was made: nobody has used it.
  if (late != nullptr) late->Abort();
}

// The name of the channel, by which all ranks find the same keys. A call that asks nobody may come before the
// channel is open; whoever waits for its data opens that.
absl::StatusOr<std::string> EngineImpl::AwaitSession(const EpochData& data, absl::Time deadline) {
  absl::Duration pause = absl::Milliseconds(1);
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (!session_.empty()) return session_;
      if (!channel_failure_.ok()) return channel_failure_;
      if (data.dead) return absl::AbortedError("the epoch ended");
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError("the control channel is not open");
    }
    absl::SleepFor(pause);
    pause = std::min(pause * 2, absl::Milliseconds(20));
  }
}

absl::StatusOr<std::shared_ptr<DataContext>> EngineImpl::OpenContextOrError(
    const EpochData& data, absl::Time deadline) {
  DataContextOptions options;
  options.rank = config_.rank.value();
  options.size = config_.size;
  options.interface_name = config_.options.interface_name;
  options.timeout = kBackendTimeout;
  const absl::StatusOr<std::string> session = AwaitSession(data, deadline);
  if (!session.ok()) return session.status();
  try {
    options.store = c10::make_intrusive<c10d::PrefixStore>(
        absl::StrCat(config_.prefix, "/data/", *session, "/", data.epoch),
        config_.store->store->clone());
    // Rank 0 alone knows whether all are on one host; it says so beside the context.
    const std::string key = "all_local";
    if (config_.rank.value() == 0) {
      {
        absl::MutexLock lock(&mu_);
        options.all_local = all_local_;
      }
      options.store->set(key, std::vector<uint8_t>{options.all_local ? uint8_t{1} : uint8_t{0}});
    } else {
      absl::Duration pause = absl::Milliseconds(1);
      while (!options.store->check({key})) {
        {
          absl::MutexLock lock(&mu_);
          if (data.dead) return absl::AbortedError("the epoch ended");
        }
        if (absl::Now() >= deadline) {
          return absl::DeadlineExceededError(absl::StrCat(
              "rank ", config_.global_ranks[0].value(), " has not opened the data path"));
        }
        absl::SleepFor(pause);
        pause = std::min(pause * 2, absl::Milliseconds(20));
      }
      const std::vector<uint8_t> value = options.store->get(key);
      options.all_local = !value.empty() && value[0] == 1;
    }
    absl::StatusOr<std::shared_ptr<DataContext>> context =
        config_.backend->Open(options, deadline);
    if (context.ok() && *context == nullptr) return absl::InternalError("the backend gave no context");
    return context;
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("the store failed: ", e.what()));
  }
}

absl::Status EngineImpl::FreeDeadContexts(absl::Time deadline) {
  while (true) {
    std::vector<std::shared_ptr<EpochData>> free;
    size_t left = 0;
    {
      absl::MutexLock lock(&mu_);
      const auto idle = std::stable_partition(
          dead_.begin(), dead_.end(), [](const std::shared_ptr<EpochData>& data) {
            return !data->abort_done || data->context.use_count() > 1 || data.use_count() > 1;
          });
      free.assign(std::make_move_iterator(idle), std::make_move_iterator(dead_.end()));
      dead_.erase(idle, dead_.end());
      left = dead_.size();
    }
    free.clear();  // the destructors of contexts run here, in a helper's thread and without a lock
    if (left <= kMaxDeadContexts) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::ResourceExhaustedError(
          absl::StrCat(left, " aborted data contexts still have operations that have not ended"));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

void EngineImpl::AbortEpoch(uint32_t epoch, Deferred& out) {
  first_live_epoch_ = std::max(first_live_epoch_, epoch + 1);
  auto found = epochs_.find(epoch);
  if (found == epochs_.end()) return;
  std::shared_ptr<EpochData> data = std::move(found->second);
  epochs_.erase(found);
  data->dead = true;
  if (data->context == nullptr) {
    data->abort_done = true;
    return;
  }
  dead_.push_back(data);
  out.aborts.push_back(std::move(data));
}

}  // namespace leafpack
