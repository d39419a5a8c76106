#include "distributed/core/channel/connector.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "distributed/core/channel/handshake.h"
#include "distributed/core/channel/rights.h"
#include "distributed/core/channel/sockets.h"
#include "distributed/core/channel/store_thread.h"

namespace leafpack {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kKey[] = "channel";
constexpr Clock::time_point kNever = Clock::time_point::max();
constexpr absl::Duration kFirstRetry = absl::Milliseconds(20);
constexpr absl::Duration kLongestRetry = absl::Milliseconds(200);
constexpr int kEventsPerStep = 64;

// Reads one handshake message, and not a byte that follows it.
class MessageReader {
 public:
  using LengthOf = absl::StatusOr<size_t> (*)(std::string_view prefix);
  enum class Result { kMore, kDone, kBad, kClosed };

  // `rights`, if there is one, gets a descriptor that comes along; others are dropped.
  Result Read(int fd, LengthOf length_of, TrackedFd* rights = nullptr) {
    while (true) {
      while (buffer_.size() < need_) {
        char bytes[512];
        const absl::Span<char> room = absl::MakeSpan(bytes, std::min(sizeof bytes, need_ - buffer_.size()));
        const ssize_t n = rights == nullptr ? recv(fd, room.data(), room.size(), MSG_DONTWAIT)
                                            : ReceiveWithFd(fd, room, *rights);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Result::kMore;
        if (n <= 0) return Result::kClosed;
        buffer_.append(bytes, static_cast<size_t>(n));
      }
      if (has_length_) return Result::kDone;
      absl::StatusOr<size_t> length = length_of(buffer_);
      if (!length.ok()) return Result::kBad;
      has_length_ = true;
      need_ += *length;
    }
  }
  std::string_view body() const { return std::string_view(buffer_).substr(kHandshakePrefixBytes); }

 private:
  std::string buffer_;
  size_t need_ = kHandshakePrefixBytes;
  bool has_length_ = false;
};

// A handshake message always fits into the buffer of a fresh socket. `rights` >= 0: a descriptor that goes along.
bool SendWhole(int fd, std::string_view message, int rights = -1) {
  ssize_t n;
  do {
    n = SendWithFd(fd, message, rights);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(message.size());
}

}  // namespace

class Connector::Impl {
 public:
  Impl(std::unique_ptr<KeyValueStore> store, ConnectorOptions options)
      : options_(std::move(options)),
        generation_(ForkGeneration()),
        store_(std::move(store)),
        in_(static_cast<size_t>(std::max(options_.size, 1)), false) {}

  State Step();
  void Fail(absl::Status status);
  std::string Problem() const;
  bool StoreFails() const { return state_ == State::kConnecting && store_fails_ && !found_; }
  std::vector<int> MissingRanks() const;
  // Of the channel that this rank opened or joined.
  const ChannelToken& token() const { return rendezvous_.token_a; }

  State state_ = State::kConnecting;
  absl::Status status_;
  bool all_local_ = false;
  std::vector<Joined> joined_;
  std::vector<Rejected> rejected_;
  TrackedFd epoll_;

 private:
  // One connection to rank 0 that has not proved that it belongs.
  struct Unproven {
    TrackedFd fd;
    bool local;
    Clock::time_point deadline;
    MessageReader reader;
  };
  struct Listener {
    TrackedFd fd;
    bool local;
  };
  // Where rank r stands with the addresses of rank 0.
  enum class Attempt { kIdle, kConnecting, kAwaitingReply };

  bool coordinator() const { return options_.rank == 0; }
  absl::Status Start();
  absl::Status Listen();
  void Finish();
  absl::Status Watch(int fd, uint32_t events);
  void SetWatch(int fd, uint32_t events);
  void OnStore();
  void SetTimer();

  // Rank 0.
  void OnListener(Listener& listener);
  void OnUnproven(int fd);
  void Answer(Unproven& peer);
  std::string ReasonToReject(const Hello& hello, bool& rank_is_lost) const;
  void PauseListeners(bool pause);

  // Rank r.
  void OnAttempt();
  void TryNext();
  void SayHello();
  void GiveUp(std::string_view why);
  void OnReply();
  std::string AddressName() const;

  const ConnectorOptions options_;
  const uint64_t generation_;
  bool started_ = false;
  std::unique_ptr<KeyValueStore> store_;
  std::unique_ptr<StoreThread> store_thread_;
  TrackedFd timer_;
  Clock::time_point timer_at_ = kNever;
  Rendezvous rendezvous_;
  std::string store_problem_;
  bool store_fails_ = false;

  std::string listen_problem_;
  std::vector<Listener> listeners_;
  bool listeners_paused_ = false;
  absl::flat_hash_map<int, Unproven> unproven_;
  std::vector<bool> in_;
  int joined_count_ = 0;

  bool found_ = false;  // rendezvous_ came from the store
  Attempt attempt_ = Attempt::kIdle;
  size_t next_address_ = 0;  // 0: Unix, i: tcp[i - 1]; the current one is the one before
  bool attempt_local_ = false;
  TrackedFd attempt_fd_;
  TrackedFd lane_fd_;  // came with the answer
  MessageReader reader_;
  Clock::time_point attempt_deadline_ = kNever;
  Clock::time_point retry_at_ = kNever;
  absl::Duration retry_pause_ = kFirstRetry;
  std::string attempt_problem_;
};

absl::Status Connector::Impl::Watch(int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

void Connector::Impl::SetWatch(int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

absl::Status Connector::Impl::Start() {
  epoll_ = TrackedFd::Open([] { return epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll_.valid()) return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
  timer_ = TrackedFd::Open([] { return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC); });
  if (!timer_.valid()) return absl::UnavailableError(absl::StrCat("timerfd: ", std::strerror(errno)));
  if (absl::Status status = Watch(timer_.get(), EPOLLIN); !status.ok()) return status;
  if (coordinator()) {
    if (absl::Status status = Listen(); !status.ok()) return status;
  }
  absl::StatusOr<std::unique_ptr<StoreThread>> thread =
      coordinator() ? StoreThread::Publish(std::move(store_), kKey, EncodeRendezvous(rendezvous_))
                    : StoreThread::Watch(std::move(store_), kKey);
  if (!thread.ok()) return thread.status();
  store_thread_ = *std::move(thread);
  return Watch(store_thread_->fd(), EPOLLIN);
}

absl::Status Connector::Impl::Listen() {
  rendezvous_.protocol_version = options_.protocol_version;
  for (ChannelToken* token : {&rendezvous_.token_a, &rendezvous_.token_b}) {
    absl::StatusOr<ChannelToken> random = NewToken();
    if (!random.ok()) return random.status();
    *token = *random;
  }
  const int backlog = std::max(128, options_.size + options_.max_unproven);
  if (options_.use_unix) {
    absl::StatusOr<ChannelToken> name = NewToken();
    if (!name.ok()) return name.status();
    rendezvous_.unix_name = "leafpack-";
    for (uint8_t byte : *name) absl::StrAppend(&rendezvous_.unix_name, absl::Hex(byte, absl::kZeroPad2));
    absl::StatusOr<TrackedFd> fd = ListenUnix(rendezvous_.unix_name, backlog);
    if (fd.ok()) {
      listeners_.push_back({*std::move(fd), true});
    } else {
      rendezvous_.unix_name.clear();
      listen_problem_ = std::string(fd.status().message());
    }
  }
  if (options_.use_tcp) {
    absl::StatusOr<std::vector<TcpAddress>> addresses =
        ListenAddresses(options_.interface_name, options_.loopback_only);
    if (absl::IsInvalidArgument(addresses.status())) return addresses.status();
    if (!addresses.ok()) {
      listen_problem_ = std::string(addresses.status().message());
      addresses.emplace();
    }
    for (TcpAddress& address : *addresses) {
      absl::StatusOr<TrackedFd> fd = ListenTcp(address, backlog);
      if (fd.ok()) {
        listeners_.push_back({*std::move(fd), false});
        rendezvous_.tcp.push_back(address);
      } else {
        listen_problem_ = std::string(fd.status().message());
      }
    }
  }
  // One way in is enough to begin with: a host without a network still has its own ranks.
  if (listeners_.empty()) return absl::UnavailableError(absl::StrCat("rank 0 cannot listen: ", listen_problem_));
  for (const Listener& listener : listeners_) {
    if (absl::Status status = Watch(listener.fd.get(), EPOLLIN); !status.ok()) return status;
  }
  in_[0] = true;
  return absl::OkStatus();
}

Connector::State Connector::Impl::Step() {
  if (state_ != State::kConnecting) return state_;
  if (generation_ != ForkGeneration()) {
    Fail(ForkedError());
    return state_;
  }
  if (!started_) {
    started_ = true;
    if (absl::Status status = Start(); !status.ok()) {
      Fail(std::move(status));
      return state_;
    }
  }
  epoll_event events[kEventsPerStep];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerStep, 0);
  for (int i = 0; i < count && state_ == State::kConnecting; ++i) {
    const int fd = events[i].data.fd;
    if (fd == timer_.get()) {
      uint64_t expirations;
      if (read(fd, &expirations, sizeof expirations) > 0) timer_at_ = kNever;
    } else if (fd == store_thread_->fd()) {
      OnStore();
    } else if (fd == attempt_fd_.get()) {
      OnAttempt();
    } else if (unproven_.contains(fd)) {
      OnUnproven(fd);
    } else {
      for (Listener& listener : listeners_) {
        if (listener.fd.get() == fd) OnListener(listener);
      }
    }
  }
  if (state_ != State::kConnecting) return state_;

  // Timers come after every socket was read: what was in time counts, however late we look.
  const Clock::time_point now = Clock::now();
  absl::erase_if(unproven_, [now](const auto& entry) { return entry.second.deadline <= now; });
  PauseListeners(static_cast<int>(unproven_.size()) >= options_.max_unproven);
  if (attempt_ == Attempt::kConnecting && attempt_deadline_ <= now) GiveUp("does not answer");
  if (attempt_ == Attempt::kIdle && retry_at_ <= now) {
    next_address_ = 0;
    TryNext();
  }
  if (state_ == State::kConnecting) SetTimer();
  return state_;
}

void Connector::Impl::SetTimer() {
  Clock::time_point next = std::min(retry_at_, attempt_deadline_);
  for (const auto& [fd, peer] : unproven_) next = std::min(next, peer.deadline);
  if (next == timer_at_) return;
  timer_at_ = next;
  itimerspec spec = {};
  if (next != kNever) {
    // A time in the past fires at once; zero would disarm.
    const auto since_boot = std::max(next.time_since_epoch(), Clock::duration(1));
    spec.it_value = absl::ToTimespec(absl::FromChrono(since_boot));
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

void Connector::Impl::OnStore() {
  StoreThread::News news = store_thread_->Take();
  store_fails_ = !news.error.ok();
  store_problem_ = news.error.ok() ? "" : absl::StrCat("the store fails: ", news.error.message());
  if (news.failing > options_.store_patience) {
    return Fail(absl::UnavailableError(absl::StrCat("the store has failed for ",
                                                    absl::FormatDuration(options_.store_patience), ": ",
                                                    news.error.message())));
  }
  if (!news.value.has_value()) return;
  absl::StatusOr<Rendezvous> decoded = DecodeRendezvous(*news.value);
  if (!decoded.ok()) {
    store_problem_ = std::string(decoded.status().message());
    return;
  }
  // Another value: whatever was being tried belongs to a rank 0 that is no more.
  rendezvous_ = *std::move(decoded);
  found_ = true;
  retry_pause_ = kFirstRetry;
  next_address_ = 0;
  TryNext();
}

void Connector::Impl::Finish() {
  state_ = State::kConnected;
  listeners_.clear();
  unproven_.clear();
  timer_.Close();
  store_thread_->Stop();
  // Its descriptor must not keep ours readable.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, store_thread_->fd(), nullptr);
}

void Connector::Impl::Fail(absl::Status status) {
  state_ = State::kFailed;
  status_ = std::move(status);
  listeners_.clear();
  unproven_.clear();
  attempt_fd_.Close();
  timer_.Close();
  if (store_thread_ != nullptr && generation_ == ForkGeneration()) {
    store_thread_->Stop();
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, store_thread_->fd(), nullptr);
  }
}

std::vector<int> Connector::Impl::MissingRanks() const {
  std::vector<int> missing;
  if (!coordinator()) {
    if (state_ != State::kConnected) missing.push_back(0);
    return missing;
  }
  for (int rank = 1; rank < options_.size; ++rank) {
    if (!in_[static_cast<size_t>(rank)]) missing.push_back(rank);
  }
  return missing;
}

std::string Connector::Impl::Problem() const {
  if (state_ == State::kConnected) return "";
  if (state_ == State::kFailed) return std::string(status_.message());
  if (!store_problem_.empty()) return store_problem_;
  if (coordinator()) return listen_problem_.empty() ? "" : absl::StrCat("rank 0 cannot listen: ", listen_problem_);
  if (!found_) return "rank 0 has not opened its channel";
  if (attempt_ == Attempt::kAwaitingReply) {
    return absl::StrCat("rank 0 took the connection at ", AddressName(), " and does not answer");
  }
  return attempt_problem_.empty() ? "rank 0's channel is being connected" : attempt_problem_;
}

// ---- rank 0

void Connector::Impl::PauseListeners(bool pause) {
  if (pause == listeners_paused_) return;
  listeners_paused_ = pause;
  for (const Listener& listener : listeners_) SetWatch(listener.fd.get(), pause ? 0u : uint32_t{EPOLLIN});
}

void Connector::Impl::OnListener(Listener& listener) {
  while (state_ == State::kConnecting && static_cast<int>(unproven_.size()) < options_.max_unproven) {
    Unproven peer{Accept(listener.fd.get()), listener.local, {}, {}};
    const int fd = peer.fd.get();
    if (fd < 0) return;
    peer.deadline = Clock::now() + absl::ToChronoNanoseconds(options_.hello_timeout);
    if (!Watch(fd, EPOLLIN).ok()) continue;
    unproven_.insert_or_assign(fd, std::move(peer));
    OnUnproven(fd);
  }
}

void Connector::Impl::OnUnproven(int fd) {
  const auto it = unproven_.find(fd);
  switch (it->second.reader.Read(fd, &HelloLength)) {
    case MessageReader::Result::kMore:
      return;
    case MessageReader::Result::kBad:
    case MessageReader::Result::kClosed:
      unproven_.erase(it);
      return;
    case MessageReader::Result::kDone:
      break;
  }
  Unproven peer = std::move(it->second);
  unproven_.erase(it);
  Answer(peer);
}

std::string Connector::Impl::ReasonToReject(const Hello& hello, bool& rank_is_lost) const {
  const bool in_range = hello.rank >= 1 && hello.rank < static_cast<uint32_t>(options_.size);
  rank_is_lost = in_range && !in_[hello.rank];
  if (hello.protocol_version != options_.protocol_version) {
    return absl::StrCat("rank ", hello.rank, " speaks version ", hello.protocol_version,
                        " of the protocol, rank 0 version ", options_.protocol_version);
  }
  if (hello.library_version != options_.library_version) {
    return absl::StrCat("rank ", hello.rank, " runs leafpack ", hello.library_version, ", rank 0 leafpack ",
                        options_.library_version);
  }
  if (hello.size != static_cast<uint32_t>(options_.size)) {
    return absl::StrCat("rank ", hello.rank, " says that the group has ", hello.size, " ranks, rank 0 says ",
                        options_.size);
  }
  rank_is_lost = false;
  if (!in_range) return absl::StrCat("rank ", hello.rank, " is not a rank that may connect in a group of ", options_.size);
  if (in_[hello.rank]) return absl::StrCat("two processes came as rank ", hello.rank);
  return "";
}

void Connector::Impl::Answer(Unproven& peer) {
  absl::StatusOr<Hello> hello = DecodeHello(peer.reader.body(), options_.protocol_version);
  if (!hello.ok() || !TokensEqual(hello->token, rendezvous_.token_a)) return;  // in silence
  bool rank_is_lost = false;
  std::string reason = ReasonToReject(*hello, rank_is_lost);
  if (!reason.empty()) {
    SendWhole(peer.fd.get(), EncodeReply({false, rendezvous_.token_b, reason}));
    const int said = static_cast<int>(std::min<uint32_t>(hello->rank, 1u << 30));
    rejected_.push_back({said, rank_is_lost, absl::FailedPreconditionError(reason)});
    return;
  }
  Lane::Made made;
  if (peer.local && options_.use_lanes) {
    // Without memory for it the socket does alone.
    if (absl::StatusOr<Lane::Made> lane = Lane::Make(); lane.ok()) made = *std::move(lane);
  }
  bool framed = made.lane != nullptr;
  // The system may refuse to pass a descriptor on; then nothing has left.
  if (framed && !SendWhole(peer.fd.get(), EncodeReply({true, rendezvous_.token_b, "", true}), made.fd.get())) {
    framed = false;
    made = {};
  }
  // A peer that is gone already shows in its link.
  if (!framed) SendWhole(peer.fd.get(), EncodeReply({true, rendezvous_.token_b, "", false}));
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.fd.get(), nullptr);
  in_[hello->rank] = true;
  if (joined_count_ == 0) all_local_ = true;
  all_local_ = all_local_ && peer.local;
  joined_.push_back(
      {static_cast<int>(hello->rank), std::move(peer.fd), peer.local, framed, std::move(made.lane)});
  if (++joined_count_ == options_.size - 1) Finish();
}

// ---- rank r

std::string Connector::Impl::AddressName() const {
  if (next_address_ <= 1) return "its Unix name";
  return rendezvous_.tcp[next_address_ - 2].ToString();
}

void Connector::Impl::TryNext() {
  attempt_fd_.Close();
  lane_fd_.Close();
  attempt_ = Attempt::kIdle;
  attempt_deadline_ = retry_at_ = kNever;
  reader_ = MessageReader();
  store_thread_->SetEager(true);
  while (next_address_ < rendezvous_.tcp.size() + 1) {
    const size_t index = next_address_++;
    attempt_local_ = index == 0;
    if (attempt_local_ ? (!options_.use_unix || rendezvous_.unix_name.empty()) : !options_.use_tcp) continue;
    absl::StatusOr<Connecting> connecting =
        attempt_local_ ? ConnectUnix(rendezvous_.unix_name) : ConnectTcp(rendezvous_.tcp[index - 1]);
    if (connecting.ok()) {
      attempt_fd_ = std::move(connecting->fd);
      attempt_ = Attempt::kConnecting;
      if (connecting->pending) {
        attempt_deadline_ = Clock::now() + absl::ToChronoNanoseconds(options_.hello_timeout);
        if (Watch(attempt_fd_.get(), EPOLLOUT).ok()) return;
      } else if (Watch(attempt_fd_.get(), EPOLLIN).ok()) {
        return SayHello();
      }
      attempt_fd_.Close();
      attempt_ = Attempt::kIdle;
      continue;
    }
    // That the Unix name is unknown here says nothing: rank 0 may be on another host.
    const bool busy = absl::IsResourceExhausted(connecting.status());
    if (busy || !attempt_local_ || rendezvous_.tcp.empty()) {
      attempt_problem_ = absl::StrCat("rank 0's channel at ", AddressName(),
                                      " cannot be reached: ", connecting.status().message());
    }
    if (busy) break;  // it is the right one
  }
  // A stale address, or a rank 0 that closed in silence: try again, or another value if one comes.
  retry_at_ = Clock::now() + absl::ToChronoNanoseconds(retry_pause_);
  retry_pause_ = std::min(2 * retry_pause_, kLongestRetry);
}

void Connector::Impl::GiveUp(std::string_view why) {
  attempt_problem_ = absl::StrCat("rank 0's channel at ", AddressName(), " ", why);
  TryNext();
}

void Connector::Impl::OnAttempt() {
  if (attempt_ == Attempt::kAwaitingReply) return OnReply();
  if (absl::Status status = ConnectError(attempt_fd_.get()); !status.ok()) {
    return GiveUp(absl::StrCat("cannot be reached: ", status.message()));
  }
  SetWatch(attempt_fd_.get(), EPOLLIN);
  SayHello();
}

void Connector::Impl::SayHello() {
  attempt_deadline_ = kNever;
  const Hello hello{options_.protocol_version, rendezvous_.token_a, static_cast<uint32_t>(options_.rank),
                    static_cast<uint32_t>(options_.size), options_.library_version};
  if (!SendWhole(attempt_fd_.get(), EncodeHello(hello))) return GiveUp("closed the connection");
  // No deadline from here on: rank 0 may be stopped for a while, and if we left it would find our
  // HELLO and then our absence. Only another value in the store ends the wait.
  attempt_ = Attempt::kAwaitingReply;
  store_thread_->SetEager(false);
}

void Connector::Impl::OnReply() {
  switch (reader_.Read(attempt_fd_.get(), &ReplyLength, &lane_fd_)) {
    case MessageReader::Result::kMore:
      return;
    case MessageReader::Result::kBad:
      return GiveUp("is not one of leafpack");
    case MessageReader::Result::kClosed:
      return GiveUp("closed the connection");
    case MessageReader::Result::kDone:
      break;
  }
  absl::StatusOr<Reply> reply = DecodeReply(reader_.body());
  if (!reply.ok() || !TokensEqual(reply->token, rendezvous_.token_b)) return GiveUp("is not that of this group");
  if (!reply->welcome) {
    return Fail(absl::FailedPreconditionError(absl::StrCat("rank 0 turned this rank away: ", reply->reason)));
  }
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, attempt_fd_.get(), nullptr);
  std::unique_ptr<Lane> lane;
  if (reply->lane) {
    // Without it (no descriptor or memory was left here) this side goes on over the socket.
    if (absl::StatusOr<std::unique_ptr<Lane>> opened = Lane::Open(lane_fd_); opened.ok()) {
      lane = *std::move(opened);
    }
  }
  lane_fd_.Close();
  joined_.push_back({0, std::move(attempt_fd_), attempt_local_, reply->lane, std::move(lane)});
  Finish();
}

// ---- Connector

Connector::Connector(std::unique_ptr<KeyValueStore> store, ConnectorOptions options)
    : impl_(std::make_unique<Impl>(std::move(store), std::move(options))) {}
Connector::~Connector() = default;

Connector::State Connector::Step() { return impl_->Step(); }
Connector::State Connector::state() const { return impl_->state_; }
const absl::Status& Connector::status() const { return impl_->status_; }
std::vector<Connector::Joined> Connector::TakeJoined() { return std::exchange(impl_->joined_, {}); }
std::vector<Connector::Rejected> Connector::TakeRejected() { return std::exchange(impl_->rejected_, {}); }
int Connector::fd() const { return impl_->epoll_.get(); }
std::vector<int> Connector::MissingRanks() const { return impl_->MissingRanks(); }
std::string Connector::Problem() const { return impl_->Problem(); }
bool Connector::StoreFails() const { return impl_->StoreFails(); }
std::string Connector::session() const {
  if (impl_->state_ != State::kConnected) return "";
  const ChannelToken& token = impl_->token();
  return absl::BytesToHexString(
      std::string_view(reinterpret_cast<const char*>(token.data()), token.size()));
}

bool Connector::all_local() const { return impl_->state_ == State::kConnected && impl_->all_local_; }

}  // namespace leafpack
