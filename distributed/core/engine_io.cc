// What moves records: reading and writing the star, feeding the machines, carrying out what they say.
#include <poll.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/log/absl_log.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/engine_impl.h"
#include "distributed/core/engine_registry.h"
#include "distributed/core/error.h"
#include "distributed/core/protocol/manifest.h"

namespace leafpack {

using protocol::CoordinatorAction;
using protocol::RankAction;
using protocol::Record;
using protocol::SteadyNanos;

namespace {
// How often one service of the understudy reads what came meanwhile.
constexpr int kServeRounds = 16;
}  // namespace

SteadyNanos SteadyNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return SteadyNanos{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

SteadyNanos ToSteady(absl::Time time) {
  if (time == absl::InfiniteFuture()) return protocol::kNever;
  const int64_t left = absl::ToInt64Nanoseconds(time - absl::Now());
  const SteadyNanos now = SteadyNow();
  if (left < -now) return 0;
  return left >= protocol::kNever - now ? protocol::kNever : now + left;
}

absl::Time FromSteady(SteadyNanos steady) {
  if (steady == protocol::kNever) return absl::InfiniteFuture();
  return absl::Now() + absl::Nanoseconds(steady - SteadyNow());
}

void EngineImpl::StepConnector(SteadyNanos now) {
  if (connector_ == nullptr) return;
  const Connector::State state = connector_->Step();
  if (connector_fd_ < 0 && connector_->fd() >= 0) {
    connector_fd_ = connector_->fd();
    registration_->Watch(connector_fd_, false).IgnoreError();
  }
  if (state != Connector::State::kConnecting && connector_fd_ >= 0) {
    registration_->Unwatch(connector_fd_);
    connector_fd_ = -1;
  }
  for (Connector::Joined& joined : connector_->TakeJoined()) {
    const int index = coordinator_.has_value() ? joined.rank : 0;
    Peer& peer = *peers_[static_cast<size_t>(index)];
    if (joined.framed) {
      peer.link.AttachWithLane(std::move(joined.fd), std::move(joined.lane));
      has_lanes_ = has_lanes_ || peer.link.has_lane();
      if (lanes_awake_) peer.link.SetAsleep(false);
    } else {
      peer.link.Attach(std::move(joined.fd));
    }
    if (peer.link.fd() >= 0) {
      peer.write_watched = peer.link.wants_write();
      peer.watched = registration_->Watch(peer.link.fd(), peer.write_watched).ok();
      if (lanes_awake_) {
        registration_->Disarm();
      } else {
        understudy_listens_ = true;
      }
    }
    if (coordinator_.has_value()) {
      coordinator_->OnJoined(static_cast<uint32_t>(joined.rank));
    } else {
      machine_.OnChannelOpen(now, rank_actions_);
    }
  }
  for (const Connector::Rejected& rejected : connector_->TakeRejected()) {
    ABSL_LOG(WARNING) << "leafpack: " << rejected.reason.message();
    if (rejected.rank_is_lost && coordinator_.has_value() && rejected.rank > 0 &&
        rejected.rank < config_.size) {
      FailPeer(rejected.rank, protocol::LostKind::kProtocol, rejected.reason.message(), now);
    }
  }
  if (state == Connector::State::kConnected) {
    all_local_ = connector_->all_local();
    session_ = connector_->session();
    config_.flight->set_session(session_);
    connector_.reset();
  } else if (state == Connector::State::kFailed) {
    channel_failure_ = connector_->status();
    connector_.reset();
    machine_.OnLinkLost(channel_failure_.message(), now, rank_actions_);
  }
}

// False when there is more to read: timers are not to be believed yet.
bool EngineImpl::ReadPeer(int index, SteadyNanos now) {
  Peer& peer = *peers_[static_cast<size_t>(index)];
  if (peer.gone || !peer.link.attached()) return true;
  absl::Status broken;
  const Link::ReadState state = peer.link.ReadAvailable(
      absl::MakeSpan(scratch_.get(), kScratchBytes), [&](absl::Span<const char> bytes) {
        mu_.AssertHeld();
        std::string_view left(bytes.data(), bytes.size());
        while (true) {
          absl::StatusOr<std::optional<Record>> record = peer.parser.Next(left);
          if (!record.ok()) {
            broken = record.status();
            return false;
          }
          if (!record->has_value()) return true;
          NoteLost(index, **record);
          if (coordinator_.has_value()) {
            if ((*record)->type == protocol::RecordType::kWithdraw || !peer.held.empty()) {
              peer.held.push_back(**std::move(record));
              any_held_ = true;
            } else {
              coordinator_->OnRecord(static_cast<uint32_t>(index), **std::move(record), now,
                                     coordinator_actions_);
            }
          } else if (absl::Status s =
                         machine_.OnRecord(**std::move(record), now, rank_actions_);
                     !s.ok()) {
            broken = s;
            return false;
          }
        }
      });
  if (!broken.ok()) {
    FailPeer(index, protocol::LostKind::kProtocol, broken.message(), now);
  } else if (state == Link::ReadState::kHungUp) {
    FailPeer(index, protocol::LostKind::kHangUp, peer.link.hang_up_reason(), now);
  }
  return state != Link::ReadState::kMore;
}

// A WITHDRAW asks who is missing: that is known once what has arrived from all ranks was read.
void EngineImpl::HandHeldRecords(SteadyNanos now) {
  if (!any_held_) return;
  any_held_ = false;
  for (size_t r = 1; r < peers_.size(); ++r) {
    std::vector<Record> held = std::exchange(peers_[r]->held, {});
    for (Record& record : held) {
      coordinator_->OnRecord(static_cast<uint32_t>(r), std::move(record), now, coordinator_actions_);
    }
  }
}

void EngineImpl::FailPeer(int index, protocol::LostKind kind, std::string_view reason,
                          SteadyNanos now) {
  Peer& peer = *peers_[static_cast<size_t>(index)];
  if (peer.gone) return;
  const std::string why(reason);  // closing drops the link's own text
  for (Record& record : std::exchange(peer.held, {})) {
    // What it sent before comes first.
    coordinator_->OnRecord(static_cast<uint32_t>(index), std::move(record), now,
                           coordinator_actions_);
  }
  ClosePeer(peer);
  lost_->Add(coordinator_.has_value() ? index : 0, why);
  if (coordinator_.has_value()) {
    coordinator_->OnLost(static_cast<uint32_t>(index), kind, why, now, coordinator_actions_);
  } else {
    machine_.OnLinkLost(why, now, rank_actions_);
  }
}

void EngineImpl::NoteLost(int from, const Record& record) {
  const bool left = record.type == protocol::RecordType::kBye;
  if (!left && record.type != protocol::RecordType::kLost) return;
  const absl::StatusOr<std::string> reason = protocol::DecodeReason(record);
  if (!reason.ok() || record.rank >= static_cast<uint32_t>(config_.size)) return;
  lost_->Add(left ? from : static_cast<int>(record.rank), *reason);
}

void EngineImpl::ClosePeer(Peer& peer) {
  if (peer.watched) registration_->Unwatch(peer.link.fd());
  peer.watched = false;
  peer.gone = true;
  peer.link.Close();
}

void EngineImpl::SendTo(int index, const Record& record, SteadyNanos now) {
  Peer& peer = *peers_[static_cast<size_t>(index)];
  if (peer.gone) return;
  char header[protocol::kHeaderBytes];
  protocol::EncodeHeader(record, header);
  std::string_view parts[3] = {std::string_view(header, sizeof(header)), record.body,
                               record.attachment == nullptr ? std::string_view()
                                                            : std::string_view(*record.attachment)};
  const absl::StatusOr<Link::SendId> sent = peer.link.Send(parts);
  // A write that failed does not end reading: what the peer sent before its death comes first.
  if (!sent.ok() && absl::IsResourceExhausted(sent.status())) {
    FailPeer(index, protocol::LostKind::kProtocol, sent.status().message(), now);
  }
}

void EngineImpl::Drain(SteadyNanos now, Deferred& out) {
  while (true) {
    bool progress = false;
    if (coordinator_.has_value()) {
      while (std::optional<Record> record = machine_.TakeOutgoing()) {
        coordinator_->OnRecord(0, *std::move(record), now, coordinator_actions_);
        progress = true;
      }
    } else {
      // Records stay in the machine while the socket is full: there they can still be retracted.
      Peer& peer = *peers_[0];
      while (peer.link.attached() && !peer.gone && !peer.link.wants_write()) {
        std::optional<Record> record = machine_.TakeOutgoing();
        if (!record.has_value()) break;
        SendTo(0, *record, now);
        progress = true;
      }
    }
    while (!coordinator_actions_.empty()) {
      progress = true;
      protocol::CoordinatorActions actions;
      std::swap(actions, coordinator_actions_);
      for (CoordinatorAction& action : actions) {
        const int rank = static_cast<int>(action.rank);
        if (action.type == CoordinatorAction::Type::kDrop) {
          ABSL_LOG(WARNING) << "leafpack: dropping group rank " << rank << ": " << action.reason;
          ClosePeer(*peers_[static_cast<size_t>(rank)]);
          lost_->Add(rank, action.reason);
        } else if (rank != 0) {
          SendTo(rank, action.record, now);
        } else if (absl::Status s = machine_.OnRecord(std::move(action.record), now, rank_actions_);
                   !s.ok()) {
          machine_.OnLinkLost(s.message(), now, rank_actions_);
        }
      }
    }
    while (!rank_actions_.empty()) {
      progress = true;
      protocol::RankActions actions;
      std::swap(actions, rank_actions_);
      for (RankAction& action : actions) ApplyRankAction(std::move(action), out);
    }
    if (!progress) return;
  }
}

void EngineImpl::ApplyRankAction(RankAction action, Deferred& out) {
  auto found = calls_.find(action.call);
  CallState* call = found == calls_.end() ? nullptr : found->second.get();
  switch (action.type) {
    case RankAction::Type::kEnded: {
      if (call == nullptr) return;
      call->ended = true;
      call->outcome = std::move(action.outcome);
      call->settled_at = SteadyNow();
      config_.flight->EndWith(call->flight, call->outcome.ok(), call->outcome.text,
                              call->settled_at);
      if (connector_ != nullptr && !call->outcome.ok()) {
        call->channel_problem = connector_->Problem();
        call->store_fails = connector_->StoreFails();
      }
      turnstile_.erase(call->number);
      // User code and leaves may hang on what the call keeps.
      out.garbage.push_back(std::move(found->second));
      calls_.erase(found);
      WakeWaiters();
      return;
    }
    case RankAction::Type::kGranted:
      if (call == nullptr) return;
      call->granted = true;
      call->soft_equal = action.soft_equal;
      call->epoch = action.epoch;
      call->settled_at = SteadyNow();
      config_.flight->Advance(call->flight, FlightState::kAgreed, call->epoch, call->settled_at);
      turnstile_.insert(call->number);
      if (call->learns && agreed_.size() < kMaxAgreed) agreed_.insert(call->digest);
      WakeWaiters();
      return;
    case RankAction::Type::kStopEnqueue:
      if (action.resume) {
        if (stopped_epoch_ == action.epoch) stopped_epoch_.reset();
      } else {
        stopped_epoch_ = action.epoch;
      }
      WakeWaiters();
      return;
    case RankAction::Type::kAbortEpoch:
      AbortEpoch(action.epoch, out);
      WakeWaiters();
      return;
    case RankAction::Type::kManifestWanted:
      // The description stays with the call: it may be asked for again.
      out.manifests.emplace_back(action.call, call == nullptr ? nullptr : call->describe);
      return;
    case RankAction::Type::kDecided:
      return;
  }
}

// A difference that a joiner found, as a decision.
absl::StatusOr<protocol::FrameOutcome> EngineImpl::MismatchOrError(
    const absl::Status& status) const {
  const ErrorDetails details = GetErrorDetails(status);
  if (details.kind != ErrorKind::kLayoutMismatch) return status;
  protocol::DecideBody body;
  body.text = std::string(status.message());
  body.path = details.path;
  for (const GlobalRank rank : details.ranks) {
    const auto at = std::find(config_.global_ranks.begin(), config_.global_ranks.end(), rank);
    if (at == config_.global_ranks.end()) continue;
    body.ranks.push_back(static_cast<uint32_t>(at - config_.global_ranks.begin()));
  }
  std::sort(body.ranks.begin(), body.ranks.end());
  return body;
}

absl::StatusOr<protocol::FrameOutcome> EngineImpl::ReduceFrame(uint64_t number,
                                                    absl::Span<const std::string_view> payloads) {
  auto found = calls_.find(number);
  if (found == calls_.end() ||
      (found->second->reduce == nullptr && found->second->join == nullptr)) {
    return absl::InternalError("the frame's reduction is not known any more");
  }
  absl::InlinedVector<absl::Span<const char>, 8> spans;
  for (std::string_view payload : payloads) spans.emplace_back(payload.data(), payload.size());
  std::string result;
  try {
    if (found->second->join != nullptr) {
      absl::StatusOr<std::optional<std::string>> joined = found->second->join(spans);
      if (!joined.ok()) return MismatchOrError(joined.status());
      if (!*joined) return protocol::FrameOutcome(std::nullopt);
      return protocol::FrameOutcome(**std::move(joined));
    }
    result.resize(payloads.empty() ? 0 : payloads[0].size());
    found->second->reduce(spans, absl::MakeSpan(result));
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
  return result;
}

void EngineImpl::Pump(Deferred& out) {
  const SteadyNanos now = SteadyNow();
  pumped_at_ = now;
  StepConnector(now);
  bool drained = true;
  if (coordinator_.has_value()) {
    for (int r = 1; r < config_.size; ++r) drained &= ReadPeer(r, now);
    HandHeldRecords(now);
  } else {
    drained = ReadPeer(0, now);
  }
  if (!rank_actions_.empty() || !coordinator_actions_.empty() || machine_.HasOutgoing()) {
    Drain(now, out);
  }
  if (drained && NextTimer() <= now) {
    machine_.OnTick(now, rank_actions_);
    if (coordinator_.has_value()) coordinator_->OnTick(now, coordinator_actions_);
    Drain(now, out);
  }
  if (!WantsWrite()) return;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer->gone && peer->link.wants_write()) peer->link.Flush().IgnoreError();
  }
  if (machine_.HasOutgoing()) Drain(now, out);
}

SteadyNanos EngineImpl::NextTimer() const {
  SteadyNanos next = machine_.NextTimer();
  if (coordinator_.has_value()) next = std::min(next, coordinator_->NextTimer());
  return next;
}

bool EngineImpl::WantsWrite() const {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer->gone && peer->link.wants_write()) return true;
  }
  return false;
}

void EngineImpl::WakeWaiters() {
  if (waiters_ > 0) changed_.SignalAll();
  if (leader_sleeps_) wake_.Signal();
}

void EngineImpl::NoteChange() {
  if (leading_) {
    if (leader_sleeps_ && (WantsWrite() || NextTimer() < leader_wakes_at_)) wake_.Signal();
    return;
  }
  if (registration_ == nullptr) return;
  UpdateWatches();
  if (const SteadyNanos next = NextTimer(); next != protocol::kNever) {
    registration_->WakeBy(FromSteady(next));
  }
}

void EngineImpl::WakeLanes() {
  // After the end of a group there is nothing to read, though a call may still wait for its data path.
  if (lanes_awake_ || !has_lanes_ || closed_) return;
  lanes_awake_ = true;
  for (const std::unique_ptr<Peer>& peer : peers_) peer->link.SetAsleep(false);
  // Once for a stream of calls, as its first record would have disarmed a descriptor.
  if (std::exchange(understudy_listens_, false)) registration_->Disarm();
}

bool EngineImpl::SleepLanes() {
  if (!has_lanes_) return false;
  lanes_awake_ = false;
  bool any = false;
  for (const std::unique_ptr<Peer>& peer : peers_) any |= peer->link.SetAsleep(true);
  return any;
}

void EngineImpl::UpdateWatches() {
  bool armed = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer->watched || peer->link.wants_write() == peer->write_watched) continue;
    peer->write_watched = !peer->write_watched;
    registration_->Watch(peer->link.fd(), peer->write_watched).IgnoreError();
    armed = true;
  }
  if (!armed) return;
  // Nothing makes a descriptor readable while the lanes are awake, so the understudy must go on looking by its
  // ticks; later they have to be told again that it listens.
  if (lanes_awake_) {
    registration_->Disarm();
  } else {
    understudy_listens_ = true;
  }
}

void EngineImpl::Execute(Deferred& deferred, bool in_understudy) {
  while (!deferred.empty()) {
    Deferred work;
    std::swap(work, deferred);
    for (const std::shared_ptr<EpochData>& data : work.aborts) {
      auto abort = [self = shared_from_this(), data] {
        data->context->Abort();
        absl::MutexLock lock(&self->mu_);
        data->abort_done = true;
        self->WakeWaiters();
      };
      // An abort may take milliseconds, which the other groups should not have to wait for.
      if (!in_understudy || !RunInHelperThread(abort).ok()) abort();
    }
    for (auto& [number, describe] : work.manifests) {
      std::vector<protocol::ManifestEntry> entries;
      if (describe != nullptr) {
        try {
          for (DescriptionEntry& entry : describe()) {
            entries.push_back({entry.is_argument, std::move(entry.key), std::move(entry.label),
                               std::move(entry.value)});
          }
        } catch (const std::exception& e) {
          ABSL_LOG(ERROR) << "leafpack: a call could not be described: " << e.what();
          entries.clear();
        }
      }
      const std::string description = protocol::EncodeManifest(entries);
      absl::MutexLock lock(&mu_);
      machine_.ProvideManifest(number, description);
      Drain(SteadyNow(), deferred);
      NoteChange();
    }
    if (in_understudy && !work.garbage.empty()) {
      absl::MutexLock lock(&mu_);
      for (std::shared_ptr<CallState>& call : work.garbage) trash_.push_back(std::move(call));
    }
  }
}

Understudy::Next EngineImpl::Serve() {
  Deferred deferred;
  Understudy::Next next;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return {.rearm = false};
    if (leading_) {
      next.rearm = false;
    } else {
      Pump(deferred);
      int rounds = 0;
      while (SleepLanes() && rounds++ < kServeRounds) Pump(deferred);
      // Peers that do not stop must not keep the other groups waiting.
      if (rounds > kServeRounds) registration_->Poke();
      understudy_listens_ = true;
      UpdateWatches();
    }
    if (const SteadyNanos timer = NextTimer(); timer != protocol::kNever) {
      next.wake_at = FromSteady(timer);
    }
  }
  if (!deferred.empty()) Execute(deferred, /*in_understudy=*/true);
  return next;
}

Understudy::Next EngineImpl::OnReady(absl::Time) { return Serve(); }
Understudy::Next EngineImpl::OnTick(absl::Time) { return Serve(); }

absl::Span<pollfd> EngineImpl::PollFds() {
  poll_fds_.clear();
  poll_fds_.push_back({.fd = wake_.fd(), .events = POLLIN, .revents = 0});
  if (connector_ != nullptr && connector_->fd() >= 0) {
    poll_fds_.push_back({.fd = connector_->fd(), .events = POLLIN, .revents = 0});
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->gone || peer->link.fd() < 0) continue;
    const short events = static_cast<short>(POLLIN | (peer->link.wants_write() ? POLLOUT : 0));
    poll_fds_.push_back({.fd = peer->link.fd(), .events = events, .revents = 0});
  }
  return absl::MakeSpan(poll_fds_);
}

}  // namespace leafpack
