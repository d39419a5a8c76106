// The end of a group: draining, farewell, and the hook at exit.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/engine_impl.h"
#include "distributed/core/engine_registry.h"
#include "distributed/core/flight/dump.h"

namespace leafpack {

using protocol::SteadyNanos;

namespace {

// What calls get that were withdrawn by Shutdown: an answer, or the doubt after kGrace; an aborted
// epoch after that.
constexpr SteadyNanos kWithdrawTime = 2 * protocol::kGrace + protocol::kProbeTime;
// Refusals wait this long for a channel that has never opened.
constexpr SteadyNanos kChannelPatience = protocol::kGrace;

}  // namespace

bool EngineImpl::Close(absl::Time until) {
  if (!CheckUsable().ok()) return false;
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return false;
    closing_ = true;
    if (!started_) {
      closed_ = true;
      return true;
    }
    WakeWaiters();
  }
  const SteadyNanos start = SteadyNow();
  const SteadyNanos end = ToSteady(until);
  // Calls in flight end; posts that wait leave.
  Wait(
      [&] {
        mu_.AssertHeld();
        if (!machine_.Availability().ok()) return machine_.in_flight() == 0;
        if (machine_.in_flight() > 0) return false;
        return machine_.posts_waiting() == 0 ||
               (!machine_.channel_open() && SteadyNow() - start >= kChannelPatience);
      },
      end, nullptr);
  std::vector<uint64_t> left;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [number, call] : calls_) left.push_back(number);
  }
  if (!left.empty()) {
    for (uint64_t number : left) Withdraw(number, protocol::WithdrawKind::kCancel);
    Wait(
        [&] {
          mu_.AssertHeld();
          return machine_.in_flight() == 0;
        },
        SteadyNow() + kWithdrawTime, nullptr);
  }
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    machine_.Leave("the group was shut down", SteadyNow(), rank_actions_);
    Drain(SteadyNow(), deferred);
  }
  if (!deferred.empty()) Execute(deferred);
  // The farewell, and what was queued before it, reaches the kernel.
  Wait(
      [&] {
        mu_.AssertHeld();
        return !WantsWrite();
      },
      std::max(end, SteadyNow() + protocol::kGrace), nullptr);
  std::unique_ptr<Understudy::Registration> registration;
  std::unique_ptr<Connector> connector;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (!peer->gone && peer->link.attached()) ClosePeer(*peer);
    }
    if (connector_fd_ >= 0) registration_->Unwatch(connector_fd_);
    connector_fd_ = -1;
    // Whoever still waits is not left waiting.
    machine_.OnLinkLost("the group was shut down", SteadyNow(), rank_actions_);
    Drain(SteadyNow(), deferred);
    connector = std::move(connector_);
    registration = std::move(registration_);
    WakeWaiters();
  }
  if (!deferred.empty()) Execute(deferred);
  registration.reset();  // waits for the understudy, which takes the mutex
  return true;
}

bool EngineImpl::AwaitIdle(absl::Time until, const InterruptCheck& interrupt) {
  if (!CheckUsable().ok()) return true;
  {
    absl::MutexLock lock(&mu_);
    if (!started_ || closing_) return true;
  }
  const auto idle = [&] {
    mu_.AssertHeld();
    return machine_.in_flight() == 0;
  };
  return Wait(idle, ToSteady(until), interrupt) == WaitEnd::kDone;
}

absl::Status EngineImpl::Shutdown(absl::Duration timeout) {
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  const absl::Time until = absl::Now() + timeout;
  CloseCompanion(until);
  if (!Close(until)) return absl::OkStatus();
  config_.flight->set_closed();
  FlushFlightErrors();
  worker_.Stop(until);
  std::map<uint32_t, std::shared_ptr<EpochData>> epochs;
  std::vector<std::shared_ptr<EpochData>> dead;
  std::vector<std::shared_ptr<CallState>> trash;
  absl::Status remembered;
  {
    absl::MutexLock lock(&mu_);
    epochs.swap(epochs_);
    dead.swap(dead_);
    trash.swap(trash_);
    remembered = std::exchange(remembered_, absl::OkStatus());
  }
  if (ProcessIsExiting()) {
    // Backends may need what static destructors took away.
    KeepForever(std::make_shared<decltype(epochs)>(std::move(epochs)));
    KeepForever(std::make_shared<decltype(dead)>(std::move(dead)));
  }
  return remembered;
}

void EngineImpl::ShutdownAtExit(absl::Time until) {
  if (CheckUsable().ok()) CloseCompanion(until);
  Close(until);
  FlushFlightErrors();
  worker_.Stop(until);
  absl::MutexLock lock(&mu_);
  KeepForever(std::make_shared<decltype(epochs_)>(std::exchange(epochs_, {})));
  KeepForever(std::make_shared<decltype(dead_)>(std::exchange(dead_, {})));
}

}  // namespace leafpack
