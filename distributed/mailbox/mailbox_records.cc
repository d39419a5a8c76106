// What the other side's records do; wire.h has their format.
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/mailbox/mailbox_internal.h"

namespace leafpack::mailbox {
namespace {

std::string_view ReadText(ByteReader& in) {
  const std::string_view text = in.String();
  return text.substr(0, kMaxTextBytes);
}

}  // namespace

bool Mailbox::OnRecord(Peer& peer, bool incoming, const Header& header, std::string_view body) {
  if (header.type == static_cast<uint8_t>(RecordType::kBye)) {
    ByteReader in(body);
    peer.farewell = ReadText(in);
    return in.ok();
  }
  return incoming ? OnSenderRecord(peer, header, body) : OnReceiverRecord(peer, header, body);
}

bool Mailbox::OnSenderRecord(Peer& peer, const Header& header, std::string_view body) {
  const uint64_t id = header.transfer;
  switch (static_cast<RecordType>(header.type)) {
    case RecordType::kOffer: {
      Inbound inbound;
      std::string_view eager;
      inbound.is_eager = header.flags == kFlagEager;
      if (id != peer.last_offer + 1 || header.flags > kFlagEager ||
          !DecodeOffer(body, inbound.is_eager, inbound.offer, eager) ||
          peer.waiting_offers >= kMaxWaitingOffers) {
        return false;
      }
      peer.last_offer = id;
      if (inbound.is_eager) {
        peer.eager_in += inbound.offer.bytes;
        if (peer.eager_in > kMaxEagerOutstanding + kMaxEagerBytes) return false;
        inbound.eager = eager;
      }
      inbound.arrival = ++arrivals_;
      ++peer.waiting_offers;
      Inbound& kept = peer.offers.emplace(id, std::move(inbound)).first->second;
      for (auto it = posted_.begin(); it != posted_.end(); ++it) {
        const TransferSpec& spec = (*it)->spec;
        if (spec.offer.tag != kept.offer.tag || spec.peer.value_or(peer.rank) != peer.rank) continue;
        const TransferPtr receive = *it;
        posted_.erase(it);
        Match(peer, id, kept, receive);
        break;
      }
      return true;
    }
    case RecordType::kDescription: {
      const auto it = peer.offers.find(id);
      if (it == peer.offers.end()) return id <= peer.last_offer;
      Inbound& inbound = it->second;
      if (inbound.abandoned) return true;
      if (!inbound.needed || inbound.receive == nullptr ||
          inbound.description.size() + body.size() > kMaxDescriptionBytes) {
        return false;
      }
      inbound.description.append(body);
      if (header.flags != kFlagLast) return true;
      inbound.needed = false;
      StartJob(Job::Kind::kJudge, inbound.receive, inbound.offer, std::move(inbound.description));
      return true;
    }
    case RecordType::kWithdraw: {
      ByteReader in(body);
      const auto why = static_cast<GiveUp>(in.U8());
      const std::string text(ReadText(in));
      if (!in.ok()) return false;
      const auto it = peer.offers.find(id);
      if (it == peer.offers.end()) return id <= peer.last_offer;
      Inbound& inbound = it->second;
      if (inbound.is_eager) {
        peer.eager_in -= inbound.offer.bytes;
        inbound.is_eager = false;
        inbound.eager = std::string();
      }
      if (inbound.withdrawn) return false;
      if (inbound.receive == nullptr && !inbound.abandoned) {
        // Whoever comes to receive it is told.
        inbound.withdrawn = true;
        inbound.why = text;
        inbound.give_up = why;
        --peer.waiting_offers;
        if (++peer.tombstones > kMaxTombstones) {
          for (auto old = peer.offers.begin(); old != peer.offers.end(); ++old) {
            if (!old->second.withdrawn) continue;
            peer.offers.erase(old);
            --peer.tombstones;
            break;
          }
        }
        return true;
      }
      const TransferPtr receive = inbound.receive;
      peer.offers.erase(it);
      if (receive == nullptr || receive->state == Transfer::State::kDone) return true;
      const bool failed = why == GiveUp::kError;
      const std::string message = absl::StrCat(Who(peer.rank), " gave up this send: ", text);
      absl::Status status = Error(*receive,
                                  failed ? absl::FailedPreconditionError(message)
                                         : absl::CancelledError(message),
                                  failed ? ErrorKind::kPeerRefused : ErrorKind::kDeadline,
                                  peer.rank);
      if (receive->busy) {
        if (receive->pending.ok()) receive->pending = std::move(status);
      } else {
        End(receive, std::move(status));
      }
      return true;
    }
    default:
      return false;
  }
}

bool Mailbox::OnReceiverRecord(Peer& peer, const Header& header, std::string_view body) {
  const uint64_t id = header.transfer;
  const auto it = peer.sends.find(id);
  if (it == peer.sends.end()) {
    // An answer to what was withdrawn meanwhile.
    return id > 0 && id < peer.next_id && header.type >= static_cast<uint8_t>(RecordType::kNeed) &&
           header.type <= static_cast<uint8_t>(RecordType::kCancel);
  }
  const TransferPtr transfer = it->second;
  const auto over = [&](absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (transfer->busy) {
      if (transfer->pending.ok()) transfer->pending = std::move(status);
      return;
    }
    if (transfer->eager) peer.eager_out -= transfer->spec.offer.bytes;
    std::erase(peer.sending, transfer);
    peer.sends.erase(id);
    CutChunk(peer, transfer);
    End(transfer, std::move(status));
    OfferMore(peer);
  };
  switch (static_cast<RecordType>(header.type)) {
    case RecordType::kNeed:
      if (transfer->state != Transfer::State::kOffered || transfer->busy) return false;
      StartJob(Job::Kind::kDescribe, transfer);
      return true;
    case RecordType::kAccept:
      if (transfer->state != Transfer::State::kOffered || transfer->eager || transfer->busy) {
        return false;
      }
      transfer->state = Transfer::State::kMoving;
      if (flight_ != nullptr) {
        flight_->Advance(transfer->flight, FlightState::kAgreed);
        flight_->Advance(transfer->flight, FlightState::kInData);
      }
      peer.sending.push_back(transfer);
      Flush(peer, *peer.out);
      return true;
    case RecordType::kRefuse: {
      ByteReader in(body);
      const auto kind = static_cast<Refusal>(in.U8());
      const std::string text(ReadText(in));
      const std::string path(ReadText(in));
      if (!in.ok()) return false;
      const bool mismatch = kind == Refusal::kMismatch;
      absl::Status status = WithErrorDetails(
          absl::FailedPreconditionError(
              mismatch ? text : absl::StrCat(Who(peer.rank), " refused it: ", text)),
          {.kind = mismatch ? ErrorKind::kLayoutMismatch : ErrorKind::kPeerRefused, .path = path});
      over(Error(*transfer, std::move(status), ErrorKind::kOther, peer.rank));
      return true;
    }
    case RecordType::kDone: {
      const bool expected = transfer->eager ? transfer->state == Transfer::State::kOffered
                                            : transfer->state == Transfer::State::kSettling;
      if (!expected || transfer->busy) return false;
      over(absl::OkStatus());
      return true;
    }
    case RecordType::kCancel: {
      ByteReader in(body);
      (void)in.U8();
      const std::string text(ReadText(in));
      if (!in.ok()) return false;
      over(Error(*transfer,
                 absl::CancelledError(
                     absl::StrCat(Who(peer.rank), " gave up the receive: ", text)),
                 ErrorKind::kDeadline, peer.rank));
      // So that it knows where the data ends.
      ByteWriter answer;
      answer.U8(static_cast<uint8_t>(GiveUp::kCancel));
      answer.String("");
      if (peer.out != nullptr) {
        Queue(peer, *peer.out, EncodeRecord(RecordType::kWithdraw, id, std::move(answer).Take()));
      }
      return true;
    }
    default:
      return false;
  }
}

}  // namespace leafpack::mailbox
