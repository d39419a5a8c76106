// How mailboxes find each other and prove that they belong.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/log/absl_log.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/channel/handshake.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/channel/sockets.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/mailbox/mailbox_internal.h"

namespace leafpack::mailbox {
namespace {

constexpr int64_t kHelloTime = 5000 * kMillisecond;  // also for a TCP connect
constexpr int64_t kFirstRetry = 20 * kMillisecond;
constexpr int64_t kLongestRetry = 200 * kMillisecond;
constexpr size_t kMaxUnproven = 64;
// Of a Unix socket, which has what was written and not yet read: with the system's default of some
// 200 KiB the two sides of a large leaf wake each other once per that many bytes. The system may
// grant less.
constexpr int kUnixSendBuffer = 4 << 20;

enum class Got { kMore, kDone, kBad };

// Reads a message of the handshake, and not a byte behind it.
Got ReadMessage(int fd, absl::StatusOr<size_t> (*length_of)(std::string_view), std::string& read) {
  while (true) {
    size_t need = kHandshakePrefixBytes;
    if (read.size() >= kHandshakePrefixBytes) {
      const absl::StatusOr<size_t> length =
          length_of(std::string_view(read).substr(0, kHandshakePrefixBytes));
      if (!length.ok()) return Got::kBad;
      need += *length;
      if (read.size() == need) return Got::kDone;
    }
    char bytes[512];
    const ssize_t got =
        recv(fd, bytes, std::min(sizeof bytes, need - read.size()), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Got::kMore;
    if (got <= 0) return Got::kBad;
    read.append(bytes, static_cast<size_t>(got));
  }
}

// A handshake message always fits into the buffer of a fresh socket.
bool SendWhole(int fd, std::string_view message) {
  ssize_t sent;
  do {
    sent = send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(message.size());
}

std::string_view BodyOf(const std::string& message) {
  return std::string_view(message).substr(kHandshakePrefixBytes);
}

}  // namespace

Mailbox::Mailbox(MailboxOptions options)
    : options_(std::move(options)), flight_(options_.flight), scratch_(new char[kScratchBytes]) {
  for (size_t i = 0; i < options_.global_ranks.size(); ++i) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = static_cast<int>(i);
  }
}

absl::StatusOr<std::shared_ptr<Mailbox>> Mailbox::Open(std::unique_ptr<KeyValueStore> store,
                                                       MailboxOptions options) {
  std::shared_ptr<Mailbox> mailbox(new Mailbox(std::move(options)));
  absl::MutexLock lock(&mailbox->mu_);
  if (absl::Status status = mailbox->Listen(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<AddressBook>> book = AddressBook::Open(
      std::move(store), mailbox->rank(), EncodeRendezvous(mailbox->rendezvous_));
  if (!book.ok()) return book.status();
  mailbox->book_ = *std::move(book);
  if (!mailbox->Watch(mailbox->book_->fd(), What(Watched::kBook, 0), EPOLLIN, /*add=*/true)) {
    return absl::UnavailableError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
  }
  return mailbox;
}

absl::StatusOr<std::shared_ptr<Mailbox>> Mailbox::Of(Engine& engine) {
  absl::StatusOr<std::shared_ptr<Companion>> companion =
      engine.GetCompanion([&]() -> absl::StatusOr<std::shared_ptr<Companion>> {
        MailboxOptions options;
        options.rank = engine.rank().value();
        options.interface_name = engine.options().interface_name;
        options.flight = &engine.flight();
        if (auto* const channel = dynamic_cast<KnowsLostRanks*>(&engine); channel != nullptr) {
          options.lost = channel->WatchLostRanks();
        }
        for (int i = 0; i < engine.size(); ++i) {
          options.global_ranks.push_back(engine.global_rank(GroupRank(i)));
        }
        return Open(engine.OpenStore("p2p"), std::move(options));
      });
  if (!companion.ok()) return companion.status();
  return std::static_pointer_cast<Mailbox>(*std::move(companion));
}

absl::Status Mailbox::Listen() {
  mu_.AssertHeld();
  epoll_ = TrackedFd::Open([] { return epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll_.valid()) return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
  if (wake_.fd() < 0) return absl::UnavailableError("no descriptor is left for an event");
  rendezvous_.protocol_version = kMailboxProtocolVersion;
  for (ChannelToken* token : {&rendezvous_.token_a, &rendezvous_.token_b}) {
    absl::StatusOr<ChannelToken> random = NewToken();
    if (!random.ok()) return random.status();
    *token = *random;
  }
  const int backlog = std::max(128, static_cast<int>(peers_.size()));
  absl::StatusOr<ChannelToken> name = NewToken();
  if (!name.ok()) return name.status();
  rendezvous_.unix_name = "leafpack-p2p-";
  for (const uint8_t byte : *name) {
    absl::StrAppend(&rendezvous_.unix_name, absl::Hex(byte, absl::kZeroPad2));
  }
  std::string problem;
  if (absl::StatusOr<TrackedFd> fd = ListenUnix(rendezvous_.unix_name, backlog); fd.ok()) {
    listeners_.push_back(*std::move(fd));
  } else {
    rendezvous_.unix_name.clear();
    problem = std::string(fd.status().message());
  }
  absl::StatusOr<std::vector<TcpAddress>> addresses =
      ListenAddresses(options_.interface_name, /*loopback_only=*/false);
  if (absl::IsInvalidArgument(addresses.status())) return addresses.status();
  if (!addresses.ok()) {
    problem = std::string(addresses.status().message());
    addresses.emplace();
  }
  for (TcpAddress& address : *addresses) {
    absl::StatusOr<TrackedFd> fd = ListenTcp(address, backlog);
    if (fd.ok()) {
      listeners_.push_back(*std::move(fd));
      rendezvous_.tcp.push_back(address);
    } else {
      problem = std::string(fd.status().message());
    }
  }
  if (listeners_.empty()) return absl::UnavailableError(absl::StrCat("cannot listen: ", problem));
  for (size_t i = 0; i < listeners_.size(); ++i) {
    if (!Watch(listeners_[i].get(), What(Watched::kListener, i), EPOLLIN, /*add=*/true)) {
      return absl::UnavailableError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// ---- To another rank.

void Mailbox::Seek(Peer& peer) {
  if (peer.reach != Reach::kNone || peer.lost) return;
  peer.reach = Reach::kLooking;
  peer.retry_pause = kFirstRetry;
  seeking_.insert(peer.rank);
  book_->Want(peer.rank);
}

void Mailbox::OnAddresses() {
  if (book_ == nullptr) return;  // Close has taken it
  AddressBook::News news = book_->Take();
  store_problem_ =
      news.error.ok() ? "" : absl::StrCat("the group's store fails: ", news.error.message());
  for (const auto& [rank, value] : news.addresses) {
    Peer& peer = *peers_[static_cast<size_t>(rank)];
    if (peer.lost || peer.reach == Reach::kOpen || peer.reach == Reach::kNone) continue;
    absl::StatusOr<Rendezvous> address = DecodeRendezvous(value);
    if (!address.ok()) {
      peer.problem = std::string(address.status().message());
      continue;
    }
    // Another value: whatever was being tried belongs to a mailbox that is no more.
    peer.address = *std::move(address);
    peer.has_address = true;
    peer.next_address = 0;
    peer.retry_pause = kFirstRetry;
    peer.attempt.Close();
    TryNext(peer);
  }
}

void Mailbox::TryNext(Peer& peer) {
  const std::vector<TcpAddress>& tcp = peer.address.tcp;
  while (peer.next_address <= tcp.size()) {
    const size_t index = peer.next_address++;
    if (index == 0 && peer.address.unix_name.empty()) continue;
    absl::StatusOr<Connecting> connecting =
        index == 0 ? ConnectUnix(peer.address.unix_name) : ConnectTcp(tcp[index - 1]);
    if (!connecting.ok()) {
      // On one host the Unix name is all that need be heard of.
      if (index == 0 || peer.problem.empty()) peer.problem = connecting.status().message();
      continue;
    }
    peer.attempt = std::move(connecting->fd);
    if (index == 0) {
      setsockopt(peer.attempt.get(), SOL_SOCKET, SO_SNDBUF, &kUnixSendBuffer,
                 sizeof kUnixSendBuffer);
    }
    peer.greeting.clear();
    peer.reach = Reach::kConnecting;
    peer.attempt_until = SteadyNow() + kHelloTime;
    if (!Watch(peer.attempt.get(), What(Watched::kAttempt, static_cast<uint64_t>(peer.rank)),
               connecting->pending ? EPOLLOUT : EPOLLIN, /*add=*/true)) {
      return GiveUpAttempt(peer, absl::StrCat("epoll_ctl: ", std::strerror(errno)));
    }
    if (!connecting->pending) OnAttempt(peer);
    return;
  }
  peer.reach = Reach::kLooking;
  peer.next_address = 0;
  peer.retry_at = SteadyNow() + peer.retry_pause;
  peer.retry_pause = std::min(2 * peer.retry_pause, kLongestRetry);
}

void Mailbox::GiveUpAttempt(Peer& peer, std::string why) {
  peer.problem = std::move(why);
  peer.attempt.Close();
  TryNext(peer);
}

void Mailbox::OnAttempt(Peer& peer) {
  if (!peer.attempt.valid()) return;
  const int fd = peer.attempt.get();
  if (peer.reach == Reach::kConnecting) {
    if (absl::Status status = ConnectError(fd); !status.ok()) {
      return GiveUpAttempt(peer, std::string(status.message()));
    }
    Hello hello;
    hello.protocol_version = kMailboxProtocolVersion;
    hello.token = peer.address.token_a;
    hello.rank = static_cast<uint32_t>(rank());
    hello.size = static_cast<uint32_t>(peers_.size());
    if (!SendWhole(fd, EncodeHello(hello))) return GiveUpAttempt(peer, "it takes no greeting");
    peer.reach = Reach::kGreeting;
    Watch(fd, What(Watched::kAttempt, static_cast<uint64_t>(peer.rank)), EPOLLIN, /*add=*/false);
    return;
  }
  switch (ReadMessage(fd, &ReplyLength, peer.greeting)) {
    case Got::kMore:
      return;
    case Got::kBad:
      return GiveUpAttempt(peer, "it closed the connection");
    case Got::kDone:
      break;
  }
  const absl::StatusOr<Reply> reply = DecodeReply(BodyOf(peer.greeting));
  if (!reply.ok() || !TokensEqual(reply->token, peer.address.token_b)) {
    return GiveUpAttempt(peer, "somebody else listens there");
  }
  if (!reply->welcome) return Lose(peer, reply->reason);
  Opened(peer);
}

void Mailbox::Opened(Peer& peer) {
  peer.out = std::make_unique<Connection>();
  peer.out->outgoing = true;
  peer.out->fd = std::move(peer.attempt);
  peer.out->buffer.reset(new char[kReadBufferBytes]);
  peer.reach = Reach::kOpen;
  seeking_.erase(peer.rank);
  book_->Forget(peer.rank);
  Watch(peer.out->fd.get(), What(Watched::kOut, static_cast<uint64_t>(peer.rank)), EPOLLIN,
        /*add=*/false);
  OfferMore(peer);
}

void Mailbox::FireConnectTimers(Nanos now) {
  const std::vector<int> seeking(seeking_.begin(), seeking_.end());
  for (const int rank : seeking) {
    Peer& peer = *peers_[static_cast<size_t>(rank)];
    if (peer.reach == Reach::kConnecting && now >= peer.attempt_until) {
      GiveUpAttempt(peer, "it does not answer");
    } else if (peer.reach == Reach::kLooking && peer.has_address && now >= peer.retry_at) {
      TryNext(peer);
    }
  }
  std::erase_if(unproven_, [now](const auto& entry) { return entry.second.deadline <= now; });
  if (listen_at_ == 0 || now < listen_at_) return;
  listen_at_ = 0;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    Watch(listeners_[i].get(), What(Watched::kListener, i), EPOLLIN, /*add=*/false);
  }
}

// ---- From other ranks.

// Whoever waits in the listener keeps it readable: looking again at once would never end.
void Mailbox::PauseListeners(int error) {
  if (!std::exchange(listen_told_, true)) {
    ABSL_LOG(WARNING) << "leafpack: rank " << global_rank(rank()).value()
                 << " cannot take a connection: " << std::strerror(error)
                 << "; it tries again from time to time";
  }
  listen_pause_ = listen_pause_ == 0 ? kFirstRetry : std::min(2 * listen_pause_, kLongestRetry);
  listen_at_ = SteadyNow() + listen_pause_;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    Watch(listeners_[i].get(), What(Watched::kListener, i), 0, /*add=*/false);
  }
}

void Mailbox::OnListener(size_t index) {
  if (index >= listeners_.size()) return;
  while (true) {
    Unproven peer;
    errno = 0;
    peer.fd = leafpack::Accept(listeners_[index].get());
    if (!peer.fd.valid()) {
      const int error = errno;
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        PauseListeners(error);
      }
      return;
    }
    listen_pause_ = 0;
    peer.deadline = SteadyNow() + kHelloTime;
    if (unproven_.size() >= kMaxUnproven) unproven_.erase(unproven_.begin());
    const uint64_t key = next_unproven_++ & 0xffffffffu;
    if (!Watch(peer.fd.get(), What(Watched::kUnproven, key), EPOLLIN, /*add=*/true)) continue;
    unproven_.insert_or_assign(key, std::move(peer));
    OnUnproven(key);
  }
}

void Mailbox::OnUnproven(uint64_t index) {
  const auto it = unproven_.find(index);
  if (it == unproven_.end()) return;
  switch (ReadMessage(it->second.fd.get(), &HelloLength, it->second.read)) {
    case Got::kMore:
      return;
    case Got::kBad:
      unproven_.erase(it);
      return;
    case Got::kDone:
      break;
  }
  Unproven stranger = std::move(it->second);
  unproven_.erase(it);
  const absl::StatusOr<Hello> hello = DecodeHello(BodyOf(stranger.read), kMailboxProtocolVersion);
  if (!hello.ok() || !TokensEqual(hello->token, rendezvous_.token_a)) return;  // closed in silence
  Reply reply;
  reply.token = rendezvous_.token_b;
  Peer* peer = nullptr;
  if (hello->protocol_version != kMailboxProtocolVersion) {
    reply.reason = absl::StrCat("it speaks version ", kMailboxProtocolVersion, ", not ",
                                hello->protocol_version);
  } else if (hello->size != peers_.size() || hello->rank >= peers_.size() ||
             hello->rank == static_cast<uint32_t>(rank())) {
    reply.reason = absl::StrCat("it knows no group rank ", hello->rank, " of ", hello->size);
  } else {
    peer = peers_[hello->rank].get();
    if (peer->lost) {
      reply.reason = "it had given this rank up";
    } else if (peer->in != nullptr) {
      reply.reason = "this rank is connected already";
    }
  }
  reply.welcome = reply.reason.empty();
  if (!SendWhole(stranger.fd.get(), EncodeReply(reply)) || !reply.welcome) return;
  peer->in = std::make_unique<Connection>();
  peer->in->fd = std::move(stranger.fd);
  peer->in->buffer.reset(new char[kReadBufferBytes]);
  Watch(peer->in->fd.get(), What(Watched::kIn, hello->rank), EPOLLIN, /*add=*/false);
  // What came behind the greeting shows in the next round.
}

}  // namespace leafpack::mailbox
