// Reading and writing connections.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/mailbox/mailbox_internal.h"

namespace leafpack::mailbox {
namespace {

constexpr int kMaxVectors = 256;
constexpr int kEventsPerPump = 32;
// Of one connection in one Pump, so that others have their turn and the lock is let go.
constexpr size_t kReadBudget = size_t{1} << 20;
constexpr size_t kWriteBudget = size_t{1} << 20;
// How long the second connection of a rank may outlive the first: bytes of it may be on their way.
constexpr int64_t kBuryTime = 300 * kMillisecond;

bool WouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM;
}

// Adds the memory from (segment, offset) on, `limit` bytes at most. Returns the bytes that were added.
size_t AddMemory(const std::vector<Segment>& segments, size_t segment, int64_t offset, size_t limit,
                 iovec* vectors, int& count, int max_count) {
  size_t added = 0;
  for (; segment < segments.size() && added < limit && count < max_count; ++segment, offset = 0) {
    const auto rest = static_cast<size_t>(segments[segment].bytes - offset);
    if (rest == 0) continue;
    const size_t take = std::min(rest, limit - added);
    vectors[count++] = {segments[segment].data + offset, take};
    added += take;
  }
  return added;
}

void Advance(const std::vector<Segment>& segments, size_t& segment, int64_t& offset, size_t bytes) {
  auto left = static_cast<int64_t>(bytes);
  while (left > 0) {
    const int64_t rest = segments[segment].bytes - offset;
    if (left < rest) {
      offset += left;
      return;
    }
    left -= rest;
    offset = 0;
    ++segment;
  }
}

std::string_view ReadText(ByteReader& in) {
  const std::string_view text = in.String();
  return text.substr(0, kMaxTextBytes);
}

}  // namespace

bool Mailbox::Watch(int fd, uint64_t what, uint32_t events, bool add) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = what;
  return epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0;
}

void Mailbox::Pump() {
  epoll_event events[kEventsPerPump];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerPump, 0);
  for (int i = 0; i < count; ++i) {
    const auto kind = static_cast<Watched>(events[i].data.u64 >> 32);
    const uint64_t index = events[i].data.u64 & 0xffffffffu;
    switch (kind) {
      case Watched::kListener:
        OnListener(index);
        break;
      case Watched::kBook:
        OnAddresses();
        break;
      case Watched::kUnproven:
        OnUnproven(index);
        break;
      case Watched::kAttempt:
        OnAttempt(*peers_[index]);
        break;
      case Watched::kOut:
      case Watched::kIn: {
        Peer& peer = *peers_[index];
        Connection* connection = (kind == Watched::kOut ? peer.out : peer.in).get();
        if (connection == nullptr) break;  // went with an event before this one
        if (events[i].events & EPOLLOUT) Flush(peer, *connection);
        if (events[i].events & ~uint32_t{EPOLLOUT}) Read(peer, *connection, kReadBudget);
        if (connection->dead) Bury(peer, SteadyNow());
        break;
      }
    }
  }
  // What was in time counts, however late we look: timers come after reading.
  const Nanos now = SteadyNow();
  FireConnectTimers(now);
  HearOfLosses(now);
  const std::vector<int> burying(burying_.begin(), burying_.end());
  for (const int rank : burying) {
    Peer& peer = *peers_[static_cast<size_t>(rank)];
    if (now < peer.bury_at) continue;
    if (peer.out != nullptr && peer.out->dead) {
      Lose(peer, peer.out->reason);
    } else if (peer.in != nullptr && peer.in->dead) {
      Lose(peer, peer.in->reason);
    } else if (peer.out == nullptr && peer.in == nullptr) {
      Lose(peer, peer.channel_why);
    } else {
      burying_.erase(rank);  // it connected before its end, which the connection tells
    }
  }
  FireTimers(now);
}

// ---- Writing.

void Mailbox::Queue(Peer& peer, Connection& connection, std::string record) {
  if (connection.write_failed || connection.dead) return;
  connection.queue.push_back(std::move(record));
  Flush(peer, connection);
}

void Mailbox::StartChunk(Peer& peer, Connection& connection) {
  const TransferPtr transfer = std::move(peer.sending.front());
  peer.sending.pop_front();
  const auto rest = static_cast<uint64_t>(transfer->spec.offer.bytes - transfer->moved);
  connection.chunk_left = static_cast<size_t>(std::min<uint64_t>(rest, kMaxDataBytes));
  ByteWriter head;
  PutHeader(head, {static_cast<uint32_t>(connection.chunk_left),
                   static_cast<uint8_t>(RecordType::kData), 0, transfer->id});
  connection.chunk_head = std::move(head).Take();
  connection.chunk = transfer;
  connection.in_chunk = true;
}

void Mailbox::Flush(Peer& peer, Connection& connection) {
  size_t budget = kWriteBudget;
  bool blocked = false;
  while (!connection.write_failed && !blocked && budget > 0) {
    if (!connection.in_chunk && connection.queue.empty() && connection.outgoing &&
        !peer.sending.empty()) {
      StartChunk(peer, connection);
    }
    iovec vectors[kMaxVectors];
    int count = 0;
    size_t total = 0;
    if (connection.in_chunk) {
      if (!connection.chunk_head.empty()) {
        vectors[count++] = {connection.chunk_head.data(), connection.chunk_head.size()};
        total += connection.chunk_head.size();
      }
      if (connection.chunk != nullptr) {
        const Transfer& transfer = *connection.chunk;
        total += AddMemory(transfer.spec.segments, transfer.segment, transfer.offset,
                           connection.chunk_left, vectors, count, kMaxVectors);
      } else {
        vectors[count++] = {connection.chunk_tail.data() + connection.chunk_tail_offset,
                            connection.chunk_left};
        total += connection.chunk_left;
      }
    } else {
      size_t skip = connection.queue_offset;
      for (std::string& record : connection.queue) {
        if (count == kMaxVectors) break;
        vectors[count++] = {record.data() + skip, record.size() - skip};
        total += record.size() - skip;
        skip = 0;
      }
    }
    if (total == 0) break;
    msghdr message = {};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t sent = sendmsg(connection.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (WouldBlock(errno)) {
        blocked = true;
        break;
      }
      connection.write_failed = true;
      if (connection.reason.empty()) connection.reason = std::strerror(errno);
      break;
    }
    Wrote(peer, connection, static_cast<size_t>(sent));
    budget -= std::min(budget, static_cast<size_t>(sent));
    blocked = static_cast<size_t>(sent) < total;
  }
  const bool wants = !connection.write_failed &&
                     (connection.in_chunk || !connection.queue.empty() ||
                      (connection.outgoing && !peer.sending.empty()));
  if (!connection.dead) SetWritableWanted(peer, connection, wants);
}

void Mailbox::SetWritableWanted(Peer& peer, Connection& connection, bool wanted) {
  if (wanted == connection.writable_wanted) return;
  connection.writable_wanted = wanted;
  unsent_ += wanted ? 1 : -1;
  if (connection.dead) return;
  Watch(connection.fd.get(),
        What(connection.outgoing ? Watched::kOut : Watched::kIn, static_cast<uint64_t>(peer.rank)),
        wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, /*add=*/false);
}

void Mailbox::Wrote(Peer& peer, Connection& connection, size_t bytes) {
  if (!connection.in_chunk) {
    while (bytes > 0) {
      const size_t rest = connection.queue.front().size() - connection.queue_offset;
      if (bytes < rest) {
        connection.queue_offset += bytes;
        return;
      }
      bytes -= rest;
      connection.queue_offset = 0;
      connection.queue.pop_front();
    }
    return;
  }
  const size_t head = std::min(bytes, connection.chunk_head.size());
  connection.chunk_head.erase(0, head);
  bytes -= head;
  connection.chunk_left -= bytes;
  if (connection.chunk != nullptr) {
    Transfer& transfer = *connection.chunk;
    Advance(transfer.spec.segments, transfer.segment, transfer.offset, bytes);
    transfer.moved += static_cast<int64_t>(bytes);
  } else {
    connection.chunk_tail_offset += bytes;
  }
  if (connection.chunk_left > 0 || !connection.chunk_head.empty()) return;
  connection.in_chunk = false;
  const TransferPtr transfer = std::move(connection.chunk);
  connection.chunk = nullptr;
  connection.chunk_tail.clear();
  connection.chunk_tail_offset = 0;
  if (transfer == nullptr) return;
  if (transfer->moved < transfer->spec.offer.bytes) {
    peer.sending.push_back(transfer);  // each in turn
  } else {
    transfer->state = Transfer::State::kSettling;
  }
}

void Mailbox::CutChunk(Peer& peer, const TransferPtr& transfer) {
  if (peer.out == nullptr || peer.out->chunk != transfer) return;
  Connection& connection = *peer.out;
  size_t segment = transfer->segment;
  int64_t offset = transfer->offset;
  connection.chunk_tail.reserve(connection.chunk_left);
  while (connection.chunk_tail.size() < connection.chunk_left) {
    const Segment& piece = transfer->spec.segments[segment];
    const size_t take = std::min(static_cast<size_t>(piece.bytes - offset),
                                 connection.chunk_left - connection.chunk_tail.size());
    connection.chunk_tail.append(piece.data + offset, take);
    Advance(transfer->spec.segments, segment, offset, take);
  }
  connection.chunk_tail_offset = 0;
  connection.chunk = nullptr;
}

// ---- Reading.

void Mailbox::Read(Peer& peer, Connection& connection, size_t budget) {
  while (!connection.dead && budget > 0) {
    iovec vectors[kMaxVectors];
    int count = 0;
    size_t data = 0;
    if (connection.begin == connection.end) connection.begin = connection.end = 0;
    if (connection.data_left > 0) {
      const auto it = peer.offers.find(connection.data_id);
      const TransferPtr receive = it == peer.offers.end() ? nullptr : it->second.receive;
      if (receive != nullptr) {
        data = AddMemory(receive->spec.segments, receive->segment, receive->offset,
                         connection.data_left, vectors, count, kMaxVectors - 1);
      } else {
        data = std::min(connection.data_left, kScratchBytes);
        vectors[count++] = {scratch_.get(), data};
      }
    } else if (connection.begin > 0 && kReadBufferBytes - connection.end < kReadBufferBytes / 2) {
      std::memmove(connection.buffer.get(), connection.buffer.get() + connection.begin,
                   connection.end - connection.begin);
      connection.end -= connection.begin;
      connection.begin = 0;
    }
    size_t total = data;
    if (data == connection.data_left) {  // records behind it come along
      vectors[count++] = {connection.buffer.get() + connection.end,
                          kReadBufferBytes - connection.end};
      total += kReadBufferBytes - connection.end;
    }
    const ssize_t got = readv(connection.fd.get(), vectors, count);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (WouldBlock(errno)) return;
      connection.dead = true;
      if (connection.reason.empty()) connection.reason = std::strerror(errno);
      return;
    }
    if (got == 0) {
      connection.dead = true;
      if (connection.reason.empty()) connection.reason = "it closed the connection";
      return;
    }
    const auto bytes = static_cast<size_t>(got);
    const size_t taken = std::min(bytes, data);
    connection.end += bytes - taken;
    if (taken > 0) GotData(peer, connection, taken);
    if (!Parse(peer, connection)) {
      connection.dead = true;
      connection.reason = "it sent bytes that are no record of this protocol";
      peer.farewell.clear();
      return;
    }
    budget -= std::min(budget, bytes);
    if (bytes < total) return;  // that was all, for now
  }
}

bool Mailbox::Parse(Peer& peer, Connection& connection) {
  const char* buffer = connection.buffer.get();
  while (connection.begin < connection.end) {
    const size_t have = connection.end - connection.begin;
    const char* next = buffer + connection.begin;
    if (connection.data_left > 0) {
      const size_t take = std::min(have, connection.data_left);
      const auto it = peer.offers.find(connection.data_id);
      if (it != peer.offers.end() && it->second.receive != nullptr) {
        const Transfer& receive = *it->second.receive;
        iovec vectors[16];
        int count = 0;
        const size_t added = AddMemory(receive.spec.segments, receive.segment, receive.offset, take,
                                       vectors, count, 16);
        size_t at = 0;
        for (int i = 0; i < count; ++i) {
          std::memcpy(vectors[i].iov_base, next + at, vectors[i].iov_len);
          at += vectors[i].iov_len;
        }
        connection.begin += added;
        GotData(peer, connection, added);
      } else {
        connection.begin += take;
        GotData(peer, connection, take);
      }
      continue;
    }
    if (have < kHeaderBytes) break;
    Header header;
    if (!GetHeader({next, kHeaderBytes}, header)) return false;
    if (header.type == static_cast<uint8_t>(RecordType::kData)) {
      if (connection.outgoing || !BeginData(peer, header.transfer, header.length)) return false;
      connection.begin += kHeaderBytes;
      connection.data_left = header.length;
      connection.data_id = header.transfer;
      continue;
    }
    if (have < kHeaderBytes + header.length) break;
    connection.begin += kHeaderBytes + header.length;
    if (!OnRecord(peer, !connection.outgoing, header, {next + kHeaderBytes, header.length})) {
      return false;
    }
  }
  return true;
}

bool Mailbox::BeginData(Peer& peer, uint64_t id, size_t bytes) {
  const auto it = peer.offers.find(id);
  if (it == peer.offers.end()) return false;
  const Inbound& inbound = it->second;
  const bool expected = inbound.abandoned || (inbound.receive != nullptr &&
                                              inbound.receive->state == Transfer::State::kMoving);
  return expected && !inbound.is_eager &&
         static_cast<int64_t>(bytes) <= inbound.offer.bytes - inbound.received;
}

void Mailbox::GotData(Peer& peer, Connection& connection, size_t bytes) {
  connection.data_left -= bytes;
  const auto it = peer.offers.find(connection.data_id);
  if (it == peer.offers.end()) return;
  Inbound& inbound = it->second;
  inbound.received += static_cast<int64_t>(bytes);
  if (inbound.receive != nullptr) {
    Transfer& receive = *inbound.receive;
    Advance(receive.spec.segments, receive.segment, receive.offset, bytes);
    receive.moved += static_cast<int64_t>(bytes);
  }
  if (inbound.received < inbound.offer.bytes) return;
  if (inbound.receive != nullptr) {
    AllHere(peer, inbound.receive);
  } else {
    peer.offers.erase(it);
  }
}

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
  const auto over = [&](absl::Status status) {
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

// ---- The end of a rank.

void Mailbox::Bury(Peer& peer, Nanos now) {
  Connection* const both[] = {peer.out.get(), peer.in.get()};
  std::string reason;
  bool alive = false;
  for (Connection* connection : both) {
    if (connection == nullptr) continue;
    // What it said before it died counts.
    if (!connection->dead) Read(peer, *connection, std::numeric_limits<size_t>::max());
    if (!connection->dead) {
      alive = true;
      continue;
    }
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->fd.get(), nullptr);
    if (reason.empty()) reason = connection->reason;
  }
  if (!alive) return Lose(peer, reason);
  if (burying_.insert(peer.rank).second) peer.bury_at = now + kBuryTime;
}

void Mailbox::HearOfLosses(Nanos now) {
  if (options_.lost == nullptr || options_.lost->count() == losses_heard_) return;
  for (const LostRanks::Loss& loss : options_.lost->After(losses_heard_)) {
    ++losses_heard_;
    Peer& peer = *peers_[static_cast<size_t>(loss.rank)];
    // Connections tell of their own end, behind what was sent.
    if (loss.rank == rank() || peer.lost || peer.out != nullptr || peer.in != nullptr) continue;
    peer.channel_why = loss.why;
    // What it sent right before may stand in a listener.
    if (burying_.insert(peer.rank).second) peer.bury_at = now + kBuryTime;
  }
}

void Mailbox::Lose(Peer& peer, std::string why) {
  burying_.erase(peer.rank);
  seeking_.erase(peer.rank);
  if (peer.lost) return;
  peer.lost = true;
  peer.lost_why = peer.farewell.empty()
                      ? absl::StrCat(Who(peer.rank), " is gone: ", why)
                      : absl::StrCat(Who(peer.rank), " has left the group: ", peer.farewell);
  if (book_ != nullptr) book_->Forget(peer.rank);
  peer.reach = Reach::kNone;
  std::vector<TransferPtr> ended(peer.waiting.begin(), peer.waiting.end());
  for (const auto& [id, transfer] : peer.sends) ended.push_back(transfer);
  for (const auto& [id, inbound] : peer.offers) {
    if (inbound.receive != nullptr) ended.push_back(inbound.receive);
  }
  const bool all = AllLost();
  for (auto it = posted_.begin(); it != posted_.end();) {
    const std::optional<int>& from = (*it)->spec.peer;
    if (from.has_value() ? *from == peer.rank : all) {
      ended.push_back(*it);
      it = posted_.erase(it);
    } else {
      ++it;
    }
  }
  peer.waiting.clear();
  peer.sends.clear();
  peer.sending.clear();
  peer.offers.clear();
  peer.waiting_offers = peer.tombstones = 0;
  for (std::unique_ptr<Connection>* connection : {&peer.out, &peer.in}) {
    if (*connection == nullptr) continue;
    SetWritableWanted(peer, **connection, false);
    *connection = nullptr;
  }
  peer.attempt.Close();
  for (const TransferPtr& transfer : ended) {
    absl::Status status =
        Error(*transfer, absl::UnavailableError(peer.lost_why), ErrorKind::kPeerLost, peer.rank);
    if (transfer->busy) {
      if (transfer->pending.ok()) transfer->pending = std::move(status);
    } else {
      End(transfer, std::move(status));
    }
  }
}

}  // namespace leafpack::mailbox
