#include "distributed/core/channel/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace leafpack {
namespace {

constexpr size_t kMaxParts = 16;  // buffers of one system call

bool WouldBlock(int error) {
  // ENOBUFS and ENOMEM: the kernel is short of memory for now.
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

void Link::Attach(TrackedFd fd) {
  fd_ = std::move(fd);
  attached_ = true;
  // A failure is kept in the link, and the next Send reports it.
  Flush().IgnoreError();
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

absl::StatusOr<Link::SendId> Link::Send(std::string_view record) { return Send({&record, 1}); }

absl::StatusOr<Link::SendId> Link::Send(absl::Span<const std::string_view> parts) {
  if (write_failed_ || hung_up_) return absl::UnavailableError(reason_);
  size_t size = 0;
  for (std::string_view part : parts) size += part.size();

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

Link::ReadState Link::ReadAvailable(absl::Span<char> scratch, Sink sink, size_t max_bytes) {
  if (hung_up_) return ReadState::kHungUp;
  if (!attached_) return ReadState::kDrained;
  size_t total = 0;
  while (total < max_bytes) {
    const ssize_t n = recv(fd_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (n > 0) {
      total += static_cast<size_t>(n);
      if (!sink(scratch.subspan(0, static_cast<size_t>(n)))) return ReadState::kMore;
      // A read that did not fill the buffer found the socket's end for now.
      if (static_cast<size_t>(n) < scratch.size()) return ReadState::kDrained;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && WouldBlock(errno)) return ReadState::kDrained;
    if (reason_.empty()) reason_ = n == 0 ? "the peer closed the connection" : std::strerror(errno);
    hung_up_ = true;
    queue_.clear();
    queued_bytes_ = 0;
    return ReadState::kHungUp;
  }
  return ReadState::kMore;
}

void Link::Close() {
  fd_.Close();
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
