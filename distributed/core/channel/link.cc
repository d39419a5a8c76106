#include "distributed/core/channel/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace leafpack {
namespace {

constexpr size_t kMaxParts = 16;  // buffers of one system call
// Lengths of frames that are signs; see the header.
constexpr uint32_t kWakeMark = 0;
constexpr uint32_t kLaneMark = ~uint32_t{0};
// Reads of an empty lane until the socket is looked at, which tells that the peer is gone.
constexpr int kQuietReads = 64;

bool WouldBlock(int error) {
  // ENOBUFS and ENOMEM: the kernel is short of memory for now.
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM;
}

std::string FrameHeader(size_t size) {
  const auto length = static_cast<uint32_t>(size);
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header;
}

}  // namespace

void Link::Attach(TrackedFd fd) {
  fd_ = std::move(fd);
  attached_ = true;
  // A failure is kept in the link, and the next Send reports it.
  Flush().IgnoreError();
}

void Link::AttachWithLane(TrackedFd fd, std::unique_ptr<Lane> lane) {
  framed_ = true;
  lane_ = std::move(lane);
  // What was queued before has no frames yet.
  for (Queued& item : queue_) {
    item.bytes.insert(0, FrameHeader(item.bytes.size()));
    queued_bytes_ += sizeof(uint32_t);
  }
  Attach(std::move(fd));
}

void Link::FailWriting(int error) {
  write_failed_ = true;
  if (reason_.empty()) reason_ = std::strerror(error);
  queue_.clear();
  queued_bytes_ = 0;
}

ssize_t Link::SendSome(absl::Span<const std::string_view> parts) {
  iovec vectors[kMaxParts];
  msghdr message = {};
  message.msg_iov = vectors;
  for (std::string_view part : parts.subspan(0, std::min(parts.size(), kMaxParts))) {
    if (part.empty()) continue;
    vectors[message.msg_iovlen++] = {const_cast<char*>(part.data()), part.size()};
  }
  if (message.msg_iovlen == 0) return 0;
  while (true) {
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EINTR) continue;
    if (WouldBlock(errno)) return 0;
    FailWriting(errno);
    return -1;
  }
}

bool Link::SendMark(uint32_t length) {
  const std::string frame = FrameHeader(length);
  const std::string_view part = frame;
  const ssize_t sent = SendSome({&part, 1});
  if (sent == 0 || sent == static_cast<ssize_t>(frame.size())) return sent > 0;
  // A Unix socket takes so few bytes as a whole.
  if (sent > 0) FailWriting(EPROTO);
  return false;
}

bool Link::SendByLane(absl::Span<const std::string_view> parts, size_t size) {
  if (!sends_by_lane_) {
    // Back only when the peer has caught up.
    if (size > Lane::kCapacity / 2 || !lane_->PeerIsIn() || !lane_->IsEmpty()) return false;
    if (!SendMark(kLaneMark)) return false;
    sends_by_lane_ = true;
  }
  if (!lane_->Write(parts)) {
    lane_->WriteDetour();
    sends_by_lane_ = false;
    return false;
  }
  // A socket that is full has bytes that wake the peer.
  if (lane_->PeerSleeps()) SendMark(kWakeMark);
  return true;
}

absl::StatusOr<Link::SendId> Link::Send(std::string_view record) { return Send({&record, 1}); }

absl::StatusOr<Link::SendId> Link::Send(absl::Span<const std::string_view> parts) {
  if (write_failed_ || hung_up_) return absl::UnavailableError(reason_);
  size_t size = 0;
  for (std::string_view part : parts) size += part.size();

  std::string header;
  absl::InlinedVector<std::string_view, 4> framed;
  if (framed_) {
    if (lane_ != nullptr && attached_ && queued_bytes_ == 0 && SendByLane(parts, size)) {
      queue_.clear();
      return next_id_++;
    }
    if (write_failed_) return absl::UnavailableError(reason_);
    header = FrameHeader(size);
    framed.push_back(header);
    framed.insert(framed.end(), parts.begin(), parts.end());
    parts = framed;
    size += header.size();
  }

  size_t sent = 0;
  if (attached_ && queued_bytes_ == 0) {
    const ssize_t n = SendSome(parts);
    if (n < 0) return absl::UnavailableError(reason_);
    sent = static_cast<size_t>(n);
    if (sent == size) {
      queue_.clear();  // retracted records without bytes
      return next_id_++;
    }
  }
  if (sent == 0 && queued_bytes_ + size > options_.max_queued_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a record of ", size, " bytes does not fit into the queue to the peer: ", queued_bytes_,
                     " of at most ", options_.max_queued_bytes, " bytes wait for it to read"));
  }
  Queued item;
  item.begun = sent > 0;
  item.bytes.reserve(size - sent);
  size_t skip = sent;
  for (std::string_view part : parts) {
    const size_t drop = std::min(skip, part.size());
    skip -= drop;
    item.bytes.append(part.substr(drop));
  }
  queued_bytes_ += item.bytes.size();
  queue_.push_back(std::move(item));
  return next_id_++;
}

bool Link::HasBegun(SendId id) const {
  const SendId first = next_id_ - queue_.size();
  return id < first || id >= next_id_ || queue_[id - first].begun;
}

absl::Status Link::Flush() {
  if (write_failed_ || hung_up_) return absl::UnavailableError(reason_);
  if (!attached_) return absl::OkStatus();
  while (queued_bytes_ > 0) {
    std::string_view parts[kMaxParts];
    size_t count = 0, offered = 0;
    for (const Queued& item : queue_) {
      if (count == kMaxParts) break;
      parts[count] = std::string_view(item.bytes).substr(item.offset);
      offered += parts[count++].size();
    }
    const ssize_t n = SendSome({parts, count});
    if (n < 0) return absl::UnavailableError(reason_);
    size_t left = static_cast<size_t>(n);
    queued_bytes_ -= left;
    while (!queue_.empty()) {
      Queued& item = queue_.front();
      const size_t rest = item.bytes.size() - item.offset;
      if (left < rest) {
        item.offset += left;
        item.begun = item.begun || left > 0;
        break;
      }
      left -= rest;
      queue_.pop_front();
    }
    if (offered > 0 && static_cast<size_t>(n) < offered) break;
  }
  return absl::OkStatus();
}

bool Link::TakeFramed(absl::Span<const char> bytes, Sink sink) {
  const auto leave = [&] { behind_.assign(bytes.data(), bytes.size()); };
  while (!bytes.empty()) {
    if (frame_left_ > 0) {
      const size_t count = std::min(frame_left_, bytes.size());
      const absl::Span<const char> part = bytes.subspan(0, count);
      bytes.remove_prefix(count);
      frame_left_ -= count;
      if (!sink(part)) {
        leave();
        return false;
      }
      continue;
    }
    const size_t count = std::min(sizeof frame_header_ - header_bytes_, bytes.size());
    std::memcpy(frame_header_ + header_bytes_, bytes.data(), count);
    header_bytes_ += count;
    bytes.remove_prefix(count);
    if (header_bytes_ < sizeof frame_header_) break;
    header_bytes_ = 0;
    uint32_t length;
    std::memcpy(&length, frame_header_, sizeof length);
    if (length == kWakeMark) continue;
    if (length == kLaneMark) {
      reads_from_lane_ = true;
    } else {
      frame_left_ = length;
    }
    // The lane comes first: up to a detour's mark, if this frame is behind one.
    if (reads_from_lane_) {
      leave();
      return true;
    }
  }
  return true;
}

Link::ReadState Link::ReadLane(Sink sink, size_t max_bytes, size_t& total) {
  absl::Span<const char> first, second;
  if (!lane_rest_.empty()) {
    const std::string rest = std::exchange(lane_rest_, {});
    total += rest.size();
    if (!sink(rest)) return ReadState::kMore;
  }
  while (total < max_bytes) {
    switch (lane_->Peek(first, second)) {
      case Lane::Next::kNothing:
        return ReadState::kDrained;
      case Lane::Next::kDetour:
        reads_from_lane_ = false;
        return ReadState::kDrained;
      case Lane::Next::kBroken:
        return HangUp("what the peer wrote into shared memory makes no sense");
      case Lane::Next::kRecord:
        break;
    }
    total += first.size();
    bool more = sink(first);
    if (!more) {
      lane_rest_.assign(second.data(), second.size());
    } else if (!second.empty()) {
      total += second.size();
      more = sink(second);
    }
    lane_->Release();
    if (!more) return ReadState::kMore;
  }
  return ReadState::kMore;
}

Link::ReadState Link::HangUp(std::string_view reason) {
  if (reason_.empty()) reason_ = std::string(reason);
  hung_up_ = true;
  queue_.clear();
  queued_bytes_ = 0;
  return ReadState::kHungUp;
}

Link::ReadState Link::ReadAvailable(absl::Span<char> scratch, Sink sink, size_t max_bytes) {
  if (hung_up_) return ReadState::kHungUp;
  if (!attached_) return ReadState::kDrained;
  size_t total = 0;
  while (total < max_bytes) {
    if (reads_from_lane_) {
      if (lane_ == nullptr) return HangUp("the peer speaks by a lane that this side does not have");
      const ReadState state = ReadLane(sink, max_bytes, total);
      if (state != ReadState::kDrained) return state;
      if (!reads_from_lane_) continue;
      // Bytes of a record have come over the socket, but no detour's mark.
      if (frame_left_ > 0) return HangUp("what the peer wrote into shared memory makes no sense");
      if (behind_.empty() && !socket_ended_ && ++quiet_reads_ < kQuietReads) return ReadState::kDrained;
    }
    if (!behind_.empty()) {
      const std::string bytes = std::exchange(behind_, {});
      if (!TakeFramed(bytes, sink)) return ReadState::kMore;
      continue;
    }
    if (socket_ended_) return HangUp(reason_);
    const ssize_t n = recv(fd_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    quiet_reads_ = 0;
    if (n > 0) {
      const absl::Span<const char> bytes = scratch.subspan(0, static_cast<size_t>(n));
      total += bytes.size();
      if (framed_ ? !TakeFramed(bytes, sink) : !sink(bytes)) return ReadState::kMore;
      // A read that did not fill the buffer found the socket's end for now.
      if (bytes.size() < scratch.size() && !reads_from_lane_) return ReadState::kDrained;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && WouldBlock(errno)) return ReadState::kDrained;
    if (reason_.empty()) reason_ = n == 0 ? "the peer closed the connection" : std::strerror(errno);
    if (!reads_from_lane_) return HangUp(reason_);
    // What it wrote into the lane before is there by now.
    socket_ended_ = true;
  }
  return ReadState::kMore;
}

bool Link::SetAsleep(bool asleep) {
  if (lane_ == nullptr) return false;
  if (asleep) quiet_reads_ = kQuietReads;
  const bool filled = lane_->SetAsleep(asleep) && reads_from_lane_;
  return asleep && (filled || !behind_.empty() || !lane_rest_.empty());
}

void Link::Close() {
  fd_.Close();
  lane_.reset();
  if (reason_.empty()) reason_ = "the connection was closed here";
  hung_up_ = true;
  queue_.clear();
  queued_bytes_ = 0;
}

void SetChannelSocketOptions(int fd) {
  auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); };
  int domain = 0;
  socklen_t length = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain == AF_UNIX) return;
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10000);  // ms
}

}  // namespace leafpack
