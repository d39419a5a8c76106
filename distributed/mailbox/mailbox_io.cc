// Reading and writing connections.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "distributed/mailbox/mailbox.h"
#include "distributed/mailbox/mailbox_internal.h"

namespace leafpack::mailbox {
namespace {

constexpr int kMaxVectors = 256;
constexpr int kEventsPerPump = 32;
// Of one connection in one Pump, so that others have their turn and the lock is let go.
constexpr size_t kReadBudget = size_t{1} << 20;
constexpr size_t kWriteBudget = size_t{1} << 20;

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

}  // namespace leafpack::mailbox
