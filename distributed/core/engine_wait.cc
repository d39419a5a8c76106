// Waiting: the first caller that waits leads, that is, does the I/O; the others sleep until something
// changed or the leader's call has ended.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/core/engine_impl.h"
#include "distributed/core/flight/dump.h"
#include "distributed/core/interrupted.h"

namespace leafpack {

using protocol::SteadyNanos;

namespace {
constexpr SteadyNanos kSliceNanos = 50 * protocol::kMillisecond;
static_assert(absl::Nanoseconds(kSliceNanos) == kWaitSlice);
}  // namespace

// Nobody leads while `interrupt` is asked: what it runs may wait in this group too.
EngineImpl::WaitEnd EngineImpl::Wait(absl::FunctionRef<bool()> done, SteadyNanos until,
                                     const InterruptCheck& interrupt) {
  SteadyNanos asked_at = SteadyNow();
  mu_.Lock();
  while (!done()) {
    bool ask = false;
    if (!leading_) {
      leading_ = true;
      if (registration_ != nullptr) registration_->NoteUse();
      mu_.Unlock();
      const SteadyNanos slice =
          interrupt == nullptr ? until : std::min(until, asked_at + kSliceNanos);
      const WaitEnd end = Lead(done, slice, /*may_be_interrupted=*/interrupt != nullptr);
      mu_.Lock();
      leading_ = false;
      leader_sleeps_ = false;
      if (waiters_ > 0) {
        changed_.SignalAll();
      } else {
        NoteChange();
      }
      if (end == WaitEnd::kDone) break;
      ask = end == WaitEnd::kInterrupted;
    } else {
      const SteadyNanos now = SteadyNow();
      if (now < until) {
        ++waiters_;
        changed_.WaitWithTimeout(&mu_, absl::Nanoseconds(std::min(kSliceNanos, until - now)));
        --waiters_;
      }
    }
    const SteadyNanos now = SteadyNow();
    if (now >= until && !ask) {
      const bool is_done = done();
      mu_.Unlock();
      return is_done ? WaitEnd::kDone : WaitEnd::kTimeout;
    }
    if (interrupt == nullptr || (!ask && now - asked_at < kSliceNanos)) continue;
    mu_.Unlock();
    if (IsInterrupted(interrupt)) return WaitEnd::kInterrupted;
    asked_at = SteadyNow();
    mu_.Lock();
  }
  mu_.Unlock();
  return WaitEnd::kDone;
}

// Does the I/O until `done`, until `until`, or, where it may be, until a signal arrived.
EngineImpl::WaitEnd EngineImpl::Lead(absl::FunctionRef<bool()> done, SteadyNanos until,
                                     bool may_be_interrupted) {
  SteadyNanos timer = 0;
  {
    absl::MutexLock lock(&mu_);
    timer = NextTimer();
  }
  Deferred deferred;
  const auto poll = [&] {
    bool is_done = false;
    {
      absl::MutexLock lock(&mu_);
      leader_sleeps_ = false;
      WakeLanes();
      Pump(deferred);
      timer = NextTimer();
      is_done = done();
    }
    if (!deferred.empty()) Execute(deferred);
    return is_done;
  };
  const auto descriptors = [&] {
    absl::MutexLock lock(&mu_);
    leader_sleeps_ = true;
    leader_wakes_at_ = std::min(until, timer);
    // What others changed since the last poll woke nobody.
    if (SleepLanes() || done() || NextTimer() < timer) wake_.Signal();
    return PollFds();
  };
  while (true) {
    if (SteadyNow() >= until) return poll() ? WaitEnd::kDone : WaitEnd::kTimeout;
    const Waiter::Result result =
        waiter_.Wait(poll, descriptors, FromSteady(std::min(until, timer)));
    if (result == Waiter::Result::kProgress) return WaitEnd::kDone;
    if (result == Waiter::Result::kReady) {
      absl::MutexLock lock(&mu_);
      leader_sleeps_ = false;
      if (!poll_fds_.empty() && poll_fds_[0].revents != 0) wake_.Drain();
    }
    if (may_be_interrupted && result == Waiter::Result::kInterrupted) return WaitEnd::kInterrupted;
  }
}

bool EngineImpl::Settled(const CallState& call) const {
  if (!call.granted && !call.ended) return false;
  if (!coordinator_.has_value()) return true;
  return !WantsWrite() || SteadyNow() - call.settled_at >= protocol::kGrace;
}

void EngineImpl::Withdraw(uint64_t number, protocol::WithdrawKind kind) {
  if (!CheckUsable().ok()) return;
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    if (calls_.find(number) == calls_.end() || closed_) return;
    const SteadyNanos now = SteadyNow();
    machine_.Withdraw(number, kind, now, rank_actions_);
    Drain(now, deferred);
    NoteChange();
  }
  if (!deferred.empty()) Execute(deferred);
}

absl::StatusOr<bool> EngineImpl::AwaitDecision(CallState& call, SteadyNanos until,
                                               const InterruptCheck& interrupt) {
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  const auto settled = [&] {
    mu_.AssertHeld();
    return Settled(call);
  };
  WaitEnd end = Wait(settled, until, interrupt);
  if (end == WaitEnd::kInterrupted) {
    // Asked once; the answer, or the doubt, comes within a second or so.
    Withdraw(call.number, protocol::WithdrawKind::kInterrupt);
    end = Wait(settled, until, nullptr);
  }
  if (end == WaitEnd::kTimeout) return false;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (call.ended) status = EndStatus(call);
  }
  if (status.ok()) return true;
  NoteFlightError(status);
  return status;
}

void EngineImpl::AwaitEnd(CallState& call, const InterruptCheck& interrupt) {
  const auto ended = [&] {
    mu_.AssertHeld();
    return call.ended && Settled(call);
  };
  if (Wait(ended, protocol::kNever, interrupt) != WaitEnd::kInterrupted) return;
  Withdraw(call.number, protocol::WithdrawKind::kInterrupt);
  Wait(ended, protocol::kNever, nullptr);
}

}  // namespace leafpack
