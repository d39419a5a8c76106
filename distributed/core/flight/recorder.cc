#include "distributed/core/flight/recorder.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/channel/fork.h"

namespace leafpack {
namespace {

// Groups that were shut down and are still told of: one of them may be why the others wait.
constexpr size_t kKeptClosed = 4;

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::atomic<bool>& Enabled() {
  static std::atomic<bool> enabled = [] {
    const char* value = std::getenv("LEAFPACK_FLIGHT");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return enabled;
}

// A lock that is held for some nanoseconds only.
class Spin {
 public:
  explicit Spin(std::atomic<bool>& busy) : busy_(busy) {
    while (busy_.exchange(true, std::memory_order_acquire)) sched_yield();
  }
  ~Spin() { busy_.store(false, std::memory_order_release); }
  Spin(const Spin&) = delete;
  Spin& operator=(const Spin&) = delete;

 private:
  std::atomic<bool>& busy_;
};

struct Known {
  explicit Known(uint64_t g) : generation(g) {}
  const uint64_t generation;
  absl::Mutex mu;
  std::deque<std::shared_ptr<FlightRecorder>> recorders ABSL_GUARDED_BY(mu);
};

// One for each fork generation: what a parent recorded is not its child's. Never destroyed.
Known& TheKnown() {
  static std::atomic<Known*> current{nullptr};
  Known* known = current.load(std::memory_order_acquire);
  while (known == nullptr || known->generation != ForkGeneration()) {
    auto* fresh = new Known(ForkGeneration());
    if (current.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *known;
}

}  // namespace

std::string_view FlightStateName(FlightState state) {
  switch (state) {
    case FlightState::kPosted:
      return "posted";
    case FlightState::kAgreed:
      return "agreed";
    case FlightState::kInData:
      return "in data";
    case FlightState::kDone:
      return "done";
    case FlightState::kFailed:
      return "failed";
  }
  return "unknown";
}

struct FlightRecorder::Slot {
  std::atomic<bool> busy{false};
  Ticket ticket = 0;  // of the call that is in it
  std::string_view kind;
  FlightCall call;  // but for `kind`
};

std::shared_ptr<FlightRecorder> FlightRecorder::Create(Info info) {
  auto recorder = std::make_shared<FlightRecorder>(std::move(info));
  Known& known = TheKnown();
  std::vector<std::shared_ptr<FlightRecorder>> forgotten;  // freed without the lock
  absl::MutexLock lock(&known.mu);
  known.recorders.push_back(recorder);
  const auto gone = [](const std::shared_ptr<FlightRecorder>& r) {
    return r->closed() || r.use_count() == 1;
  };
  size_t kept = static_cast<size_t>(
      std::count_if(known.recorders.begin(), known.recorders.end(), gone));
  for (auto it = known.recorders.begin(); it != known.recorders.end() && kept > kKeptClosed;) {
    if (gone(*it)) {
      forgotten.push_back(std::move(*it));
      it = known.recorders.erase(it);
      --kept;
    } else {
      ++it;
    }
  }
  return recorder;
}

FlightRecorder::~FlightRecorder() {
  for (std::atomic<Slot*>& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
}

void FlightRecorder::SetEnabled(bool enabled) {
  Enabled().store(enabled, std::memory_order_relaxed);
}

bool FlightRecorder::enabled() { return Enabled().load(std::memory_order_relaxed); }

FlightRecorder::Slot* FlightRecorder::Find(Ticket ticket, bool make) {
  const size_t index = (ticket - 1) % kCalls;
  std::atomic<Slot*>& chunk = chunks_[index / kChunk];
  Slot* slots = chunk.load(std::memory_order_acquire);
  if (slots == nullptr) {
    if (!make) return nullptr;
    auto fresh = std::make_unique<Slot[]>(kChunk);
    if (chunk.compare_exchange_strong(slots, fresh.get(), std::memory_order_acq_rel)) {
      slots = fresh.release();
    }
  }
  return slots + index % kChunk;
}

template <typename F>
void FlightRecorder::Change(Ticket ticket, F change) {
  if (ticket == 0) return;
  Slot* slot = Find(ticket, /*make=*/false);
  if (slot == nullptr) return;
  Spin lock(slot->busy);
  // What has ended stays as it ended.
  if (slot->ticket == ticket && slot->call.ended == 0) change(slot->call);
}

FlightRecorder::Ticket FlightRecorder::Begin(const Begun& begun, int64_t now) {
  if (!enabled()) return 0;
  if (now == 0) now = Now();
  const Ticket ticket = next_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot* slot = Find(ticket, /*make=*/true);
  Spin lock(slot->busy);
  if (slot->ticket > ticket) return 0;  // a whole round has passed meanwhile
  slot->ticket = ticket;
  slot->kind = begun.kind;
  FlightCall& call = slot->call;
  call.index = ticket;
  call.number = begun.number;
  call.name.assign(begun.name.substr(0, kMaxName));
  call.reason.clear();
  call.peer = begun.peer;
  call.tag = begun.tag;
  call.leaves = begun.leaves;
  call.bytes = begun.bytes;
  call.digest = begun.digest;
  call.epoch = begun.epoch;
  call.async = begun.async;
  call.frame = begun.frame;
  call.state = FlightState::kPosted;
  call.posted = now;
  call.agreed = call.in_data = call.ended = 0;
  return ticket;
}

void FlightRecorder::Advance(Ticket ticket, FlightState state, int64_t now) {
  if (ticket == 0) return;
  if (now == 0) now = Now();
  Change(ticket, [&](FlightCall& call) {
    call.state = state;
    if (state == FlightState::kAgreed) call.agreed = now;
    if (state == FlightState::kInData) call.in_data = now;
  });
}

void FlightRecorder::Advance(Ticket ticket, FlightState state, uint32_t epoch, int64_t now) {
  Advance(ticket, state, now);
  Change(ticket, [&](FlightCall& call) { call.epoch = epoch; });
}

void FlightRecorder::End(Ticket ticket, const absl::Status& status, int64_t now) {
  EndWith(ticket, status.ok(), status.message(), now);
}

void FlightRecorder::EndWith(Ticket ticket, bool ok, std::string_view reason, int64_t now) {
  if (ticket == 0) return;
  if (now == 0) now = Now();
  Change(ticket, [&](FlightCall& call) {
    call.state = ok ? FlightState::kDone : FlightState::kFailed;
    call.ended = now;
    if (ok && call.agreed == 0) call.agreed = now;
    if (!ok) call.reason.assign(reason.substr(0, kMaxReason));
  });
}

void FlightRecorder::set_session(std::string_view session) {
  Spin lock(session_busy_);
  session_.assign(session);
}

std::string FlightRecorder::session() const {
  Spin lock(session_busy_);
  return session_;
}

std::vector<FlightCall> FlightRecorder::Calls() const {
  std::vector<FlightCall> calls;
  const uint64_t last = next_.load(std::memory_order_acquire);
  const uint64_t first = last > kCalls ? last - kCalls + 1 : 1;
  calls.reserve(static_cast<size_t>(last - first + 1));
  for (uint64_t ticket = first; ticket <= last; ++ticket) {
    Slot* slot = const_cast<FlightRecorder*>(this)->Find(ticket, /*make=*/false);
    if (slot == nullptr) continue;
    Spin lock(slot->busy);
    if (slot->ticket != ticket) continue;  // not yet there, or overwritten meanwhile
    calls.push_back(slot->call);
    calls.back().kind = std::string(slot->kind);
  }
  return calls;
}

std::vector<std::shared_ptr<const FlightRecorder>> FlightRecorders() {
  Known& known = TheKnown();
  absl::MutexLock lock(&known.mu);
  return {known.recorders.begin(), known.recorders.end()};
}

}  // namespace leafpack
