// Transfers: posting, matching, ending.
#include "distributed/mailbox/mailbox.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/mailbox/mailbox_internal.h"

namespace leafpack::mailbox {
namespace {

// A receive from any rank connects to all others, to notice their end, in groups of up to so many.
constexpr size_t kWatchAllRanks = 16;

std::string Clipped(std::string_view text) { return std::string(text.substr(0, kMaxTextBytes)); }

std::string EncodeGiveUp(GiveUp why, std::string_view text) {
  ByteWriter out;
  out.U8(static_cast<uint8_t>(why));
  out.String(Clipped(text));
  return std::move(out).Take();
}

std::string_view GiveUpText(GiveUp why) {
  switch (why) {
    case GiveUp::kDeadline:
      return "its deadline passed";
    case GiveUp::kInterrupt:
      return "it was interrupted";
    case GiveUp::kCancel:
      return "it was cancelled";
    case GiveUp::kError:
      return "it failed";
  }
  return "";
}

}  // namespace

int64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string Mailbox::Who(int rank) const {
  return absl::StrCat(options_.rank_word, " ", global_rank(rank).value());
}

absl::Status Mailbox::Error(const Transfer& transfer, absl::Status status, ErrorKind kind,
                            std::optional<int> about) const {
  const TransferSpec& spec = transfer.spec;
  std::string where = absl::StrCat(spec.name, spec.is_send ? " to " : " from ");
  const int other = spec.peer.value_or(transfer.source);
  absl::StrAppend(&where, other < 0 ? "any rank" : Who(other), " on ", Who(rank()));
  ErrorDetails details = GetErrorDetails(status);
  if (kind != ErrorKind::kOther) details.kind = kind;
  if (about.has_value()) details.ranks = {global_rank(*about)};
  details.tree_unchanged = spec.is_send || transfer.moved == 0;
  return WithErrorDetails(AnnotateStatus(status, where), details);
}

absl::StatusOr<std::vector<TransferPtr>> Mailbox::Post(std::vector<TransferSpec> specs) {
  if (forked()) return ProcessCheck::ForkedError();
  const Nanos now = SteadyNow();
  std::vector<TransferPtr> transfers;
  for (TransferSpec& spec : specs) {
    auto transfer = std::make_shared<Transfer>();
    transfer->spec = std::move(spec);
    const int64_t wait = absl::ToInt64Nanoseconds(transfer->spec.timeout);
    transfer->deadline = wait > std::numeric_limits<int64_t>::max() - now
                             ? std::numeric_limits<int64_t>::max()
                             : now + wait;
    transfers.push_back(std::move(transfer));
  }
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return absl::FailedPreconditionError("the group was shut down");
    last_use_ = now;
    // What has arrived comes first: a receive must not take what was withdrawn since.
    Pump();
    for (const TransferPtr& transfer : transfers) {
      ++live_;
      deadlines_.emplace(transfer->deadline, transfer);
      if (transfer->spec.async) ++unattended_;
      const TransferSpec& spec = transfer->spec;
      if (flight_ != nullptr) {
        transfer->flight = flight_->Begin({.kind = spec.is_send ? "send" : "recv",
                                           .name = spec.offer.label,
                                           .number = ++posted_count_,
                                           .peer = spec.peer.value_or(-1),
                                           .tag = spec.offer.tag,
                                           .leaves = spec.leaves,
                                           .bytes = spec.offer.bytes,
                                           .digest = spec.offer.digest,
                                           .async = spec.async},
                                          now);
      }
      PostLocked(transfer);
    }
    if (unattended_ > 0) StartThreadLocked();
  }
  RunJobs();
  return transfers;
}

void Mailbox::PostLocked(const TransferPtr& transfer) {
  TransferSpec& spec = transfer->spec;
  const auto lost = [&](int about) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    End(transfer,
        Error(*transfer, absl::UnavailableError(peers_[static_cast<size_t>(about)]->lost_why),
              ErrorKind::kPeerLost, about));
  };
  if (spec.is_send) {
    Peer& peer = *peers_[static_cast<size_t>(*spec.peer)];
    if (peer.lost) return lost(peer.rank);
    peer.waiting.push_back(transfer);
    if (peer.reach == Reach::kOpen) return OfferMore(peer);
    return Seek(peer);
  }
  // The first offer that fits.
  Peer* from = nullptr;
  uint64_t id = 0;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (spec.peer.has_value() && peer->rank != *spec.peer) continue;
    if (peer->waiting_offers == 0 && peer->tombstones == 0) continue;
    for (auto& [offer_id, inbound] : peer->offers) {
      if (inbound.receive != nullptr || inbound.abandoned || inbound.offer.tag != spec.offer.tag) {
        continue;
      }
      if (inbound.withdrawn && !spec.peer.has_value()) continue;
      if (from == nullptr || inbound.arrival < from->offers[id].arrival) {
        from = peer.get();
        id = offer_id;
      }
      break;
    }
  }
  if (from != nullptr) {
    Inbound& inbound = from->offers[id];
    if (!inbound.withdrawn) return Match(*from, id, inbound, transfer);
    const std::string why = std::move(inbound.why);
    --from->tombstones;
    from->offers.erase(id);
    return End(transfer, Error(*transfer,
                               absl::CancelledError(absl::StrCat(Who(from->rank),
                                                                 " gave up this send: ", why)),
                               ErrorKind::kDeadline, from->rank));
  }
  if (spec.peer.has_value()) {
    Peer& peer = *peers_[static_cast<size_t>(*spec.peer)];
    if (peer.lost) return lost(peer.rank);
    posted_.push_back(transfer);
    return Seek(peer);
  }
  if (AllLost()) {
    return End(transfer, Error(*transfer, absl::UnavailableError("all other ranks are gone"),
                               ErrorKind::kPeerLost));
  }
  posted_.push_back(transfer);
  if (peers_.size() > kWatchAllRanks) return;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->rank != rank()) Seek(*peer);
  }
}

bool Mailbox::AllLost() const {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->rank != rank() && !peer->lost) return false;
  }
  return true;
}

void Mailbox::OfferMore(Peer& peer) {
  while (peer.reach == Reach::kOpen && !peer.waiting.empty() &&
         peer.sends.size() < kMaxWaitingOffers) {
    const TransferPtr transfer = std::move(peer.waiting.front());
    peer.waiting.pop_front();
    OfferOut(peer, transfer);
  }
}

void Mailbox::OfferOut(Peer& peer, const TransferPtr& transfer) {
  const TransferSpec& spec = transfer->spec;
  transfer->id = peer.next_id++;
  transfer->state = Transfer::State::kOffered;
  transfer->eager = spec.offer.bytes <= kMaxEagerBytes &&
                    peer.eager_out + spec.offer.bytes <= kMaxEagerOutstanding;
  std::string eager;
  if (transfer->eager) {
    eager.reserve(static_cast<size_t>(spec.offer.bytes));
    for (const Segment& segment : spec.segments) {
      eager.append(segment.data, static_cast<size_t>(segment.bytes));
    }
    peer.eager_out += spec.offer.bytes;
  }
  peer.sends.emplace(transfer->id, transfer);
  Queue(peer, *peer.out,
        EncodeRecord(RecordType::kOffer, transfer->id, EncodeOffer(spec.offer, eager),
                     transfer->eager ? kFlagEager : 0));
}

void Mailbox::Match(Peer& peer, uint64_t id, Inbound& inbound, const TransferPtr& receive) {
  TransferSpec& spec = receive->spec;
  const Offer& offer = inbound.offer;
  --peer.waiting_offers;
  inbound.receive = receive;
  receive->id = id;
  receive->source = peer.rank;
  receive->state = Transfer::State::kMatched;
  if (flight_ != nullptr) flight_->Advance(receive->flight, FlightState::kAgreed);
  const bool like = offer.kind == spec.offer.kind && offer.label == spec.offer.label;
  if (like && spec.has_memory && offer.digest == spec.offer.digest &&
      offer.bytes == spec.offer.bytes) {
    return Accept(peer, id, inbound);
  }
  if (like && offer.kind == PayloadKind::kTree) {
    inbound.needed = true;
    return Queue(peer, *peer.in, EncodeRecord(RecordType::kNeed, id));
  }
  StartJob(Job::Kind::kJudge, receive, offer);
}

void Mailbox::Accept(Peer& peer, uint64_t id, Inbound& inbound) {
  Transfer& receive = *inbound.receive;
  receive.state = Transfer::State::kMoving;
  if (flight_ != nullptr) flight_->Advance(receive.flight, FlightState::kInData);
  if (inbound.is_eager || inbound.offer.bytes == 0) {
    const char* next = inbound.eager.data();
    for (const Segment& segment : receive.spec.segments) {
      if (segment.bytes > 0) std::memcpy(segment.data, next, static_cast<size_t>(segment.bytes));
      next += segment.bytes;
    }
    receive.moved = inbound.offer.bytes;
    if (inbound.is_eager) peer.eager_in -= inbound.offer.bytes;
    inbound.is_eager = false;
    return AllHere(peer, inbound.receive);
  }
  Queue(peer, *peer.in, EncodeRecord(RecordType::kAccept, id));
}

void Mailbox::AllHere(Peer& peer, const TransferPtr& receive) {
  const TransferPtr keep = receive;  // the reference may stand in what is erased
  keep->state = Transfer::State::kSettling;
  if (keep->spec.finish) return StartJob(Job::Kind::kFinish, keep);
  peer.offers.erase(keep->id);
  if (peer.in != nullptr) Queue(peer, *peer.in, EncodeRecord(RecordType::kDone, keep->id));
  End(keep, absl::OkStatus());
}

void Mailbox::Refuse(Peer& peer, const TransferPtr& receive, absl::Status status) {
  const ErrorDetails details = GetErrorDetails(status);
  ByteWriter body;
  body.U8(static_cast<uint8_t>(details.kind == ErrorKind::kLayoutMismatch ? Refusal::kMismatch
                                                                          : Refusal::kError));
  body.String(Clipped(status.message()));
  body.String(Clipped(details.path));
  if (const auto it = peer.offers.find(receive->id); it != peer.offers.end()) {
    if (it->second.is_eager) peer.eager_in -= it->second.offer.bytes;
    peer.offers.erase(it);
  }
  if (peer.in != nullptr) {
    Queue(peer, *peer.in, EncodeRecord(RecordType::kRefuse, receive->id, std::move(body).Take()));
  }
  End(receive, Error(*receive, std::move(status), ErrorKind::kOther, peer.rank));
}

void Mailbox::End(const TransferPtr& transfer, absl::Status result) {
  const TransferPtr keep = transfer;
  if (keep->state == Transfer::State::kDone) return;
  keep->state = Transfer::State::kDone;
  if (flight_ != nullptr) flight_->End(keep->flight, result);
  keep->result = std::move(result);
  deadlines_.erase({keep->deadline, keep});
  --live_;
  if (keep->spec.async) --unattended_;
  // What it held is freed without the lock.
  auto bin = std::make_shared<TransferSpec>();
  std::swap(bin->describe, keep->spec.describe);
  std::swap(bin->judge, keep->spec.judge);
  std::swap(bin->finish, keep->spec.finish);
  std::swap(bin->keep_alive, keep->spec.keep_alive);
  trash_.push_back(std::move(bin));
  keep->done.store(true, std::memory_order_release);
  changed_.SignalAll();
  // Another thread may have read the answer that the leader sleeps for.
  if (leading_ && !leader_awake_) wake_.Signal();
}

void Mailbox::EndAndTell(const TransferPtr& transfer, absl::Status result, GiveUp why) {
  const TransferPtr keep = transfer;
  if (keep->state == Transfer::State::kDone) return;
  if (keep->busy) {
    if (keep->pending.ok()) keep->pending = std::move(result);
    return;
  }
  const std::string body = EncodeGiveUp(
      why, why == GiveUp::kError ? std::string_view(result.message()) : GiveUpText(why));
  if (keep->spec.is_send) {
    Peer& peer = *peers_[static_cast<size_t>(*keep->spec.peer)];
    std::erase(peer.waiting, keep);
    std::erase(peer.sending, keep);
    if (peer.sends.erase(keep->id) > 0) {
      if (keep->eager) peer.eager_out -= keep->spec.offer.bytes;
      CutChunk(peer, keep);
      if (peer.out != nullptr) {
        Queue(peer, *peer.out, EncodeRecord(RecordType::kWithdraw, keep->id, body));
      }
      OfferMore(peer);
    }
  } else if (keep->source < 0) {
    posted_.remove(keep);
  } else {
    Peer& peer = *peers_[static_cast<size_t>(keep->source)];
    if (const auto it = peer.offers.find(keep->id); it != peer.offers.end()) {
      Inbound& inbound = it->second;
      inbound.receive = nullptr;
      inbound.abandoned = true;
      if (inbound.is_eager) {
        peer.eager_in -= inbound.offer.bytes;
        peer.offers.erase(it);
      }
      if (peer.in != nullptr) {
        Queue(peer, *peer.in, EncodeRecord(RecordType::kCancel, keep->id, body));
      }
    }
  }
  End(keep, std::move(result));
}

std::string Mailbox::WhyLate(const Transfer& transfer) const {
  const TransferSpec& spec = transfer.spec;
  const auto progress = [&](std::string_view verb) {
    return absl::StrCat(verb, " ", transfer.moved, " of ", spec.offer.bytes, " bytes");
  };
  if (spec.is_send) {
    const Peer& peer = *peers_[static_cast<size_t>(*spec.peer)];
    const std::string who = Who(peer.rank);
    switch (transfer.state) {
      case Transfer::State::kPosted:
        if (!store_problem_.empty()) return store_problem_;
        if (peer.reach == Reach::kOpen) {
          return absl::StrCat(who, " has received none of ", peer.sends.size(), " earlier sends");
        }
        if (!peer.has_address) return absl::StrCat(who, " has not opened its mailbox");
        if (peer.reach == Reach::kGreeting) {
          return absl::StrCat(who, " took the connection and does not answer: it neither sends nor "
                                   "receives");
        }
        return absl::StrCat(who, " cannot be reached: ",
                            peer.problem.empty() ? "no answer" : peer.problem);
      case Transfer::State::kOffered:
        return absl::StrCat(who, " has posted no receive for tag ", spec.offer.tag);
      case Transfer::State::kMoving:
        return absl::StrCat(who, progress(" has taken only"));
      default:
        return absl::StrCat(who, " has not confirmed that it has all ", spec.offer.bytes, " bytes");
    }
  }
  if (transfer.source >= 0) {
    const std::string who = Who(transfer.source);
    if (transfer.state == Transfer::State::kMatched) {
      return absl::StrCat(who, " has not sent the description of its tree");
    }
    return absl::StrCat(who, progress(" has sent only"));
  }
  std::vector<std::string> hints;
  std::set<int64_t> tags;
  std::vector<GlobalRank> gone;
  bool connected = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (spec.peer.has_value() && peer->rank != *spec.peer) continue;
    if (peer->in != nullptr) connected = true;
    if (peer->lost) gone.push_back(global_rank(peer->rank));
    for (const auto& [id, inbound] : peer->offers) {
      if (inbound.receive == nullptr && !inbound.abandoned && !inbound.withdrawn &&
          tags.size() < 8) {
        tags.insert(inbound.offer.tag);
      }
    }
  }
  std::string text = absl::StrCat(spec.peer.has_value() ? Who(*spec.peer) : "no rank",
                                  " has sent ", spec.peer.has_value() ? "nothing" : "anything",
                                  " with tag ", spec.offer.tag);
  if (!tags.empty()) {
    absl::StrAppend(&text, "; offered are tags ", absl::StrJoin(tags, ", "));
  } else if (spec.peer.has_value() && !connected) {
    absl::StrAppend(&text, "; it has not connected");
  }
  if (!gone.empty()) absl::StrAppend(&text, "; gone: ", FormatRanks(gone));
  return text;
}

void Mailbox::FireTimers(Nanos now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const TransferPtr transfer = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    const int other = transfer->spec.peer.value_or(transfer->source);
    absl::Status late = absl::DeadlineExceededError(
        absl::StrCat(WhyLate(*transfer), " within ", absl::FormatDuration(transfer->spec.timeout)));
    EndAndTell(transfer,
               Error(*transfer, std::move(late), ErrorKind::kDeadline,
                     other < 0 ? std::nullopt : std::optional<int>(other)),
               GiveUp::kDeadline);
  }
}

void Mailbox::Cancel(const TransferPtr& transfer) {
  if (forked() || transfer->done) return;
  {
    absl::MutexLock lock(&mu_);
    const int other = transfer->spec.peer.value_or(transfer->source);
    EndAndTell(transfer,
               Error(*transfer, absl::CancelledError("the transfer was given up"),
                     ErrorKind::kInterrupted,
                     other < 0 ? std::nullopt : std::optional<int>(other)),
               GiveUp::kCancel);
  }
  RunJobs();
}

int Mailbox::source(const Transfer& transfer) const {
  absl::MutexLock lock(&mu_);
  return transfer.source;
}

// ---- Functions of transfers.

void Mailbox::StartJob(Job::Kind kind, const TransferPtr& transfer, Offer offer,
                       std::string description) {
  transfer->busy = true;
  ++busy_;
  jobs_.push_back({kind, transfer, std::move(offer), std::move(description)});
}

void Mailbox::RunJobs() {
  while (true) {
    std::vector<std::shared_ptr<const void>> trash;
    std::optional<Job> job;
    {
      absl::MutexLock lock(&mu_);
      trash.swap(trash_);
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    if (!job.has_value()) {
      if (trash.empty()) return;
      continue;
    }
    TransferSpec& spec = job->transfer->spec;
    absl::Status status;
    std::string description;
    std::vector<Segment> segments;
    switch (job->kind) {
      case Job::Kind::kDescribe: {
        absl::StatusOr<std::string> described =
            spec.describe ? spec.describe() : absl::InternalError("it has no description");
        status = described.status();
        if (described.ok()) description = *std::move(described);
        break;
      }
      case Job::Kind::kJudge: {
        absl::StatusOr<std::vector<Segment>> memory =
            spec.judge ? spec.judge(job->transfer->source, job->offer, job->description)
                       : absl::InternalError("nobody judges the offer");
        status = memory.status();
        if (memory.ok()) segments = *std::move(memory);
        break;
      }
      case Job::Kind::kFinish:
        status = spec.finish();
        break;
    }
    absl::MutexLock lock(&mu_);
    ApplyJob(*job, std::move(status), std::move(description), std::move(segments));
  }
}

void Mailbox::ApplyJob(Job& job, absl::Status status, std::string description,
                       std::vector<Segment> segments) {
  const TransferPtr& transfer = job.transfer;
  transfer->busy = false;
  --busy_;
  changed_.SignalAll();
  absl::Status pending = std::exchange(transfer->pending, absl::OkStatus());
  // What is all here stays, whatever happened meanwhile.
  if (!pending.ok() && !(job.kind == Job::Kind::kFinish && status.ok())) {
    return EndAndTell(transfer, std::move(pending), GiveUp::kCancel);
  }
  if (job.kind == Job::Kind::kDescribe) {
    Peer& peer = *peers_[static_cast<size_t>(*transfer->spec.peer)];
    if (status.ok() && description.size() > kMaxDescriptionBytes) {
      status = absl::ResourceExhaustedError("the description of the tree is too long");
    }
    if (!status.ok()) {
      return EndAndTell(transfer, Error(*transfer, std::move(status), ErrorKind::kOther),
                        GiveUp::kError);
    }
    for (size_t at = 0; at == 0 || at < description.size(); at += kDescriptionChunkBytes) {
      const bool last = at + kDescriptionChunkBytes >= description.size();
      Queue(peer, *peer.out,
            EncodeRecord(RecordType::kDescription, transfer->id,
                         std::string_view(description).substr(at, kDescriptionChunkBytes),
                         last ? kFlagLast : 0));
    }
    return;
  }
  Peer& peer = *peers_[static_cast<size_t>(transfer->source)];
  const auto it = peer.offers.find(transfer->id);
  if (job.kind == Job::Kind::kFinish) {
    if (!status.ok()) return Refuse(peer, transfer, std::move(status));
    if (it != peer.offers.end()) peer.offers.erase(it);
    if (peer.in != nullptr) Queue(peer, *peer.in, EncodeRecord(RecordType::kDone, transfer->id));
    return End(transfer, absl::OkStatus());
  }
  if (status.ok()) {
    int64_t bytes = 0;
    for (const Segment& segment : segments) bytes += segment.bytes;
    if (bytes != job.offer.bytes) {
      status = absl::FailedPreconditionError(absl::StrCat(
          Who(peer.rank), " offers ", job.offer.bytes, " bytes for a tree of ", bytes));
    }
  }
  if (!status.ok()) return Refuse(peer, transfer, std::move(status));
  if (it == peer.offers.end()) return;
  transfer->spec.segments = std::move(segments);
  transfer->spec.offer = job.offer;
  transfer->spec.has_memory = true;
  Accept(peer, transfer->id, it->second);
}

}  // namespace leafpack::mailbox
