// Making an engine, and issuing calls and refusals.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/channel/c10d_key_value_store.h"
#include "distributed/core/channel/fork.h"
#include "distributed/core/engine_call.h"
#include "distributed/core/engine_impl.h"
#include "distributed/core/engine_registry.h"
#include "distributed/core/engine_store.h"
#include "distributed/core/error.h"
#include "distributed/core/flight/dump.h"

namespace leafpack {
namespace {

// All ranks must run the same build of the protocol; its own version is checked beside this one.
constexpr std::string_view kLibraryVersion = "0.1";

// What FitsInFrame lets through must fit in the protocol's record.
static_assert(kMaxFrameBytes == int64_t{protocol::kMaxFramePayload});

protocol::RankNamer Namer(const EngineConfig& config) {
  return [ranks = config.global_ranks](uint32_t rank) {
    return rank < ranks.size() ? absl::StrCat(ranks[rank].value()) : absl::StrCat("#", rank);
  };
}

protocol::RankMachine::Options RankOptions(const EngineConfig& config) {
  protocol::RankMachine::Options options;
  options.rank = static_cast<uint32_t>(config.rank.value());
  options.size = static_cast<uint32_t>(config.size);
  options.name = Namer(config);
  return options;
}

protocol::Digest128 ToDigest(absl::uint128 value) {
  return {.lo = absl::Uint128Low64(value), .hi = absl::Uint128High64(value)};
}

}  // namespace

std::shared_ptr<EngineImpl> EngineImpl::Create(EngineConfig config) {
  const uint64_t generation = ForkGeneration();
  std::shared_ptr<EngineImpl> engine(new EngineImpl(std::move(config)),
                                     [generation](EngineImpl* e) {
                                       std::unique_ptr<EngineImpl> owned(e);
                                       if (generation == ForkGeneration()) return;
                                       KeepForever(std::shared_ptr<EngineImpl>(std::move(owned)));
                                     });
  RegisterEngine(engine);
  return engine;
}

EngineImpl::EngineImpl(EngineConfig config)
    : config_(std::move(config)),
      fork_generation_(ForkGeneration()),
      waiter_(FewerCoresThan(config_.size) ? 1 : kPollsPerYield),
      machine_(RankOptions(config_)),
      scratch_(new char[kScratchBytes]) {
  const int peers = config_.rank.value() == 0 ? config_.size : 1;
  for (int i = 0; i < peers; ++i) peers_.push_back(std::make_unique<Peer>());
  if (config_.rank.value() == 0) {
    protocol::CoordinatorMachine::Options options;
    options.size = static_cast<uint32_t>(config_.size);
    options.name = Namer(config_);
    options.reduce = [this](uint64_t call, absl::Span<const std::string_view> payloads) {
      mu_.AssertHeld();
      return ReduceFrame(call, payloads);
    };
    coordinator_.emplace(std::move(options));
  }
}

namespace {

absl::Status ShutDownError(std::string_view call) {
  return AnnotateStatus(absl::FailedPreconditionError("the group was shut down"), call);
}

}  // namespace

absl::Status EngineImpl::CheckUsable() const {
  return fork_generation_ == ForkGeneration() ? absl::OkStatus() : ForkedError();
}

std::unique_ptr<KeyValueStore> Engine::OpenStore(std::string_view) { return nullptr; }

std::unique_ptr<KeyValueStore> EngineImpl::OpenStore(std::string_view purpose) {
  return WrapC10dStore(config_.store->store, absl::StrCat(config_.prefix, "/", purpose));
}

absl::Status EngineImpl::StartChannel() {
  if (started_) return channel_failure_;
  absl::StatusOr<std::unique_ptr<Understudy::Registration>> registration =
      Understudy::Get().Register(this);
  if (!registration.ok()) return registration.status();
  registration_ = *std::move(registration);
  started_ = true;
  const protocol::SteadyNanos now = SteadyNow();
  ConnectorOptions options;
  options.rank = config_.rank.value();
  options.size = config_.size;
  options.library_version = std::string(kLibraryVersion);
  options.interface_name = config_.options.interface_name;
  connector_ = std::make_unique<Connector>(
      WrapC10dStore(config_.store->store, absl::StrCat(config_.prefix, "/control")), std::move(options));
  if (coordinator_.has_value()) machine_.OnChannelOpen(now, rank_actions_);
  StepConnector(now);
  return channel_failure_;
}

std::shared_ptr<const LostRanks> EngineImpl::WatchLostRanks() {
  if (!CheckUsable().ok()) return lost_;
  absl::MutexLock lock(&mu_);
  // A channel that cannot be opened tells of nobody; calls say why.
  if (!closing_ && StartChannel().ok()) NoteChange();
  return lost_;
}

absl::StatusOr<std::shared_ptr<Call>> EngineImpl::Post(CallSpec spec) {
  if (absl::Status usable = CheckUsable(); !usable.ok()) return AnnotateStatus(usable, spec.name);
  auto call = std::make_shared<CallState>();
  call->name = std::move(spec.name);
  call->deadline = spec.deadline == absl::InfiniteFuture()
                       ? absl::Now() + config_.options.timeout
                       : spec.deadline;
  call->restore = spec.restore;
  call->digest = spec.digest;
  call->describe = std::move(spec.describe);
  call->reduce = std::move(spec.reduce);
  call->join = std::move(spec.join);

  protocol::CallSpec issue;
  issue.digest = ToDigest(spec.digest);
  issue.soft_digest = ToDigest(spec.soft_digest);
  issue.frame = spec.is_frame;
  issue.open = spec.is_open;
  issue.restore = spec.restore;
  issue.deadline = ToSteady(call->deadline);
  if (spec.is_frame) issue.payload = std::make_shared<const std::string>(std::move(spec.payload));
  // Host backends always agree: they may die of what would be let through.
  const bool may_skip = config_.backend->MustEnqueueInCallerThread();
  issue.unchecked = may_skip && spec.check == CheckMode::kOff;
  call->learns = may_skip && !issue.unchecked;

  Deferred deferred;
  std::vector<std::shared_ptr<CallState>> trash;
  absl::Status error;
  {
    absl::ReleasableMutexLock lock(&mu_);
    if (closing_) return ShutDownError(call->name);
    trash.swap(trash_);
    error = StartChannel();
    if (!error.ok()) {
      lock.Release();
      error = WithErrorDetails(
          AnnotateStatus(error, call->name), {});
      NoteFlightError(error);
      return error;
    }
    if (!remembered_.ok()) {
      error = std::exchange(remembered_, absl::OkStatus());
      IssueRefusal(spec.kind, absl::StrCat("an earlier asynchronous call failed there: ", error.message()),
                   deferred);
    } else if (machine_.posts_waiting() >= protocol::kMaxUndecided) {
      // A full window: wait for room, as a waiter that may lead.
      lock.Release();
      const WaitEnd end = Wait(
          [this] {
            mu_.AssertHeld();
            return machine_.posts_waiting() < protocol::kMaxUndecided || closing_;
          },
          issue.deadline, nullptr);
      absl::MutexLock again(&mu_);
      if (closing_) return ShutDownError(call->name);
      if (end == WaitEnd::kTimeout) {
        error = WithErrorDetails(
            absl::DeadlineExceededError(absl::StrCat(
                call->name, ": ", protocol::kMaxUndecided,
                " earlier calls of this group were still undecided at the call's deadline")),
            {.kind = ErrorKind::kDeadline});
        IssueRefusal(spec.kind, error.message(), deferred);
      } else {
        PostLocked(call, std::move(issue), spec, deferred);
      }
    } else {
      PostLocked(call, std::move(issue), spec, deferred);
    }
  }
  if (!deferred.empty()) Execute(deferred);
  if (!error.ok()) {
    NoteFlightError(error);
    return error;
  }
  absl::Status lost;
  {
    absl::MutexLock lock(&mu_);
    if (call->ended && call->outcome.kind == protocol::OutcomeKind::kLost) lost = EndStatus(*call);
  }
  if (!lost.ok()) {
    NoteFlightError(lost);
    return lost;
  }
  return std::shared_ptr<Call>(std::make_shared<CallImpl>(shared_from_this(), std::move(call)));
}

void EngineImpl::PostLocked(const std::shared_ptr<CallState>& call, protocol::CallSpec issue,
                            const CallSpec& spec, Deferred& out) {
  if (spec.check == CheckMode::kFirst && config_.backend->MustEnqueueInCallerThread()) {
    issue.trusted = agreed_.contains(spec.digest);
  }
  if (coordinator_.has_value() && !leading_ && SteadyNow() - pumped_at_ > kStale) Pump(out);
  // The call may end or be granted while it is issued, so it is entered before.
  call->number = machine_.issued() + 1;
  calls_.emplace(call->number, call);
  const protocol::SteadyNanos now = SteadyNow();
  call->flight = config_.flight->Begin({.kind = CollectiveName(spec.kind),
                                        .name = spec.label,
                                        .number = call->number,
                                        .leaves = spec.leaves,
                                        .bytes = spec.bytes,
                                        .digest = spec.digest,
                                        .epoch = machine_.epoch(),
                                        .async = spec.async,
                                        .frame = spec.is_frame},
                                       now);
  machine_.Issue(std::move(issue), now, rank_actions_);
  Drain(now, out);
  NoteChange();
  if (spec.async && !leading_ && !call->ended) registration_->EnsureArmed();
}

void EngineImpl::IssueRefusal(CollectiveKind kind, std::string_view reason, Deferred& out) {
  const protocol::SteadyNanos now = SteadyNow();
  const FlightRecorder::Ticket flight = config_.flight->Begin(
      {.kind = CollectiveName(kind), .number = machine_.issued() + 1, .epoch = machine_.epoch()},
      now);
  config_.flight->EndWith(flight, /*ok=*/false, reason, now);
  machine_.IssueRefusal(reason, now, rank_actions_);
  Drain(now, out);
  NoteChange();
}

absl::Status EngineImpl::Refuse(CollectiveKind kind, absl::Status reason, absl::Time) {
  if (!CheckUsable().ok()) return reason;
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    if (closing_ || !StartChannel().ok()) return reason;
    IssueRefusal(kind, reason.message(), deferred);
  }
  if (!deferred.empty()) Execute(deferred);
  NoteFlightError(reason);
  return reason;
}

void EngineImpl::RunInWorker(absl::AnyInvocable<void()> task) {
  if (CheckUsable().ok()) {
    worker_.Run(std::move(task));
  } else {
    task();  // in a forked child, where the worker does not exist
  }
}

void EngineImpl::RememberError(absl::Status status) {
  if (!CheckUsable().ok()) return;
  absl::MutexLock lock(&mu_);
  remembered_.Update(status);
}

void EngineImpl::DropCall(const std::shared_ptr<CallState>& call) {
  if (!CheckUsable().ok()) return;
  Withdraw(call->number, protocol::WithdrawKind::kCancel);
}

}  // namespace leafpack
