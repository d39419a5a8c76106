#include "distributed/backends/shm/peers.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"

#include "distributed/core/channel/rights.h"

namespace leafpack::shm {
namespace {

constexpr uint32_t kVersion = 1;
constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(10);

// What a rank says of the meeting once it knows: one of these words, then a reason.
constexpr std::string_view kOk = "ok";
constexpr std::string_view kApart = "apart ";  // does not share memory with all
constexpr std::string_view kNoMemory = "memory ";

using Token = std::array<char, 16>;

bool RandomBytes(void* to, size_t bytes) {
  return getrandom(to, bytes, 0) == static_cast<ssize_t>(bytes);
}

// First message of either side; carries the sender's segment as a descriptor.
struct Hello {
  char magic[8];
  uint32_t version;
  int32_t rank;
  int32_t size;
  uint32_t reserved;
  uint64_t segment_bytes;
  uint64_t word;  // stands in the header of the segment
  Token token;    // of the rank that is addressed
};
constexpr char kMagic[8] = {'l', 'e', 'a', 'f', 's', 'h', 'm', '\n'};

sockaddr_un AbstractName(std::string_view name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

TrackedFd NewSocket() {
  return TrackedFd::Open(
      [] { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

bool SendHello(int socket, const Hello& hello, int segment_fd) {
  const std::string_view bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
  return SendWithFd(socket, bytes, segment_fd) == static_cast<ssize_t>(sizeof hello);
}

enum class Read { kNothing, kHello, kClosed };

Read ReadHello(int socket, Hello* hello, TrackedFd* segment_fd) {
  segment_fd->Close();
  const ssize_t got = ReceiveWithFd(
      socket, absl::MakeSpan(reinterpret_cast<char*>(hello), sizeof *hello), *segment_fd);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Read::kNothing;
  // Nor one that lost its descriptor on the way, since this process may have no more.
  if (got != static_cast<ssize_t>(sizeof *hello) || !segment_fd->valid() ||
      std::memcmp(hello->magic, kMagic, sizeof kMagic) != 0) {
    return Read::kClosed;
  }
  return Read::kHello;
}

bool HungUp(int socket) {
  pollfd entry{socket, POLLIN | POLLRDHUP, 0};
  if (poll(&entry, 1, 0) <= 0) return false;
  return (entry.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

std::string RankList(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "group rank " : "group ranks ",
                      absl::StrJoin(ranks, ", "));
}

}  // namespace

// One rank's part in Peers::Connect.
class Meeting {
 public:
  Meeting(KeyValueStore& store, int rank, const Geometry& geometry, absl::Time deadline,
          const MeetingPoll& poll, TrackedFd* own_fd)
      : store_(store),
        rank_(rank),
        size_(geometry.ranks()),
        deadline_(deadline),
        poll_(poll),
        kept_fd_(own_fd),
        peers_(new Peers(rank, geometry)) {
    greeted_.resize(static_cast<size_t>(size_), false);
    verdicts_.resize(static_cast<size_t>(size_));
  }

  absl::StatusOr<std::unique_ptr<Peers>> Run() {
    absl::Status status = Prepare();
    if (status.ok() && problem_.empty()) status = Publish();
    if (status.ok() && problem_.empty()) status = MeetAll();
    if (!status.ok()) return status;
    status = store_.Set(VerdictKey(rank_), problem_.empty() ? kOk : problem_);
    if (!status.ok()) return status;
    if (status = AwaitVerdicts(); !status.ok()) return status;
    if (status = Judge(); !status.ok()) return status;
    if (kept_fd_ != nullptr) *kept_fd_ = std::move(own_fd_);
    return std::move(peers_);
  }

 private:
  static std::string VerdictKey(int rank) { return absl::StrCat("verdict/", rank); }
  static std::string NameKey(int rank) { return absl::StrCat("name/", rank); }

  // Own segment and listener. What only this rank lacks becomes its verdict.
  absl::Status Prepare() {
    absl::StatusOr<Segment::Created> created = Segment::Create(peers_->geometry_.total());
    if (!created.ok()) {
      problem_ = absl::StrCat(absl::IsResourceExhausted(created.status()) ? kNoMemory : kApart,
                              created.status().message());
      return absl::OkStatus();
    }
    own_fd_ = std::move(created->fd);
    peers_->segments_[static_cast<size_t>(rank_)] = std::move(created->segment);
    char random[16];
    if (!RandomBytes(random, sizeof random) || !RandomBytes(token_.data(), token_.size()) ||
        !RandomBytes(&word_, sizeof word_)) {
      return absl::UnavailableError("the system has no random bytes");
    }
    peers_->geometry_.header(peers_->base(rank_)).word = word_;
    name_ = absl::StrCat("leafpack-", absl::BytesToHexString({random, sizeof random}));
    listener_ = NewSocket();
    socklen_t length = 0;
    const sockaddr_un address = AbstractName(name_, &length);
    if (!listener_.valid() ||
        bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        listen(listener_.get(), size_) != 0) {
      problem_ = absl::StrCat(kApart, "no Unix socket: ", std::strerror(errno));
    }
    return absl::OkStatus();
  }

  absl::Status Publish() {
    return store_.Set(
        NameKey(rank_),
        absl::StrCat(name_, " ", absl::BytesToHexString({token_.data(), token_.size()})));
  }

  // Until every rank was met, or it is known that one cannot be.
  absl::Status MeetAll() {
    absl::Duration pause = kFirstPause;
    while (true) {
      bool progress = false;
      if (absl::Status status = poll_ ? poll_() : absl::OkStatus(); !status.ok()) return status;
      if (absl::Status status = CallLower(&progress); !status.ok()) return status;
      AcceptHigher(&progress);
      ReadGreetings(&progress);
      if (!problem_.empty()) return absl::OkStatus();
      const std::vector<int> missing = Missing();
      if (missing.empty()) return absl::OkStatus();
      // A rank that has given up will not come.
      for (const int peer : missing) {
        absl::StatusOr<bool> known = LookForVerdict(peer);
        if (!known.ok()) return known.status();
        if (*known && verdicts_[static_cast<size_t>(peer)] != kOk) {
          problem_ = absl::StrCat(kApart, "group rank ", peer, " gave up");
          return absl::OkStatus();
        }
      }
      if (absl::Now() >= deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat(RankList(missing), " did not open shared memory in time"));
      }
      pause = progress ? kFirstPause : std::min(2 * pause, kLongestPause);
      Sleep(pause);
    }
  }

  // Connects to each lower rank whose name is known.
  absl::Status CallLower(bool* progress) {
    for (int peer = 0; peer < rank_; ++peer) {
      TrackedFd& socket = peers_->sockets_[static_cast<size_t>(peer)];
      if (socket.valid()) continue;
      absl::StatusOr<bool> known = store_.Check(NameKey(peer));
      if (!known.ok()) return known.status();
      if (!*known) continue;
      absl::StatusOr<std::string> value = store_.Get(NameKey(peer));
      if (!value.ok()) return value.status();
      const size_t space = value->find(' ');
      std::string token;
      if (space == std::string::npos ||
          !absl::HexStringToBytes(std::string_view(*value).substr(space + 1), &token) ||
          token.size() != sizeof(Token)) {
        return absl::InternalError(
            absl::StrCat("group rank ", peer, " published '", *value, "' as its address"));
      }
      TrackedFd fresh = NewSocket();
      socklen_t length = 0;
      const sockaddr_un address = AbstractName(value->substr(0, space), &length);
      if (!fresh.valid() ||
          connect(fresh.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
        if (fresh.valid() && (errno == EAGAIN || errno == EINTR)) continue;  // a full queue
        problem_ = absl::StrCat(kApart, "cannot reach group rank ", peer, " by a Unix socket: ",
                                std::strerror(errno));
        return absl::OkStatus();
      }
      Token addressed;
      std::memcpy(addressed.data(), token.data(), token.size());
      if (!SendHello(fresh.get(), MakeHello(addressed), own_fd_.get())) {
        problem_ = absl::StrCat(kApart, "cannot hand a segment to group rank ", peer, ": ",
                                std::strerror(errno));
        return absl::OkStatus();
      }
      socket = std::move(fresh);
      *progress = true;
    }
    return absl::OkStatus();
  }

  void AcceptHigher(bool* progress) {
    while (true) {
      TrackedFd socket = TrackedFd::Open([&] {
        return accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      });
      if (!socket.valid()) return;
      strangers_.push_back(std::move(socket));
      *progress = true;
    }
  }

  void ReadGreetings(bool* progress) {
    Hello hello;
    TrackedFd fd;
    for (int peer = 0; peer < rank_; ++peer) {
      const size_t at = static_cast<size_t>(peer);
      if (!peers_->sockets_[at].valid() || greeted_[at]) continue;
      const Read read = ReadHello(peers_->sockets_[at].get(), &hello, &fd);
      if (read == Read::kNothing) continue;
      if (read == Read::kClosed || hello.rank != peer) {
        problem_ = absl::StrCat(kApart, "group rank ", peer, " hung up");
        return;
      }
      Take(peer, hello, std::move(fd));
      *progress = true;
    }
    for (TrackedFd& socket : strangers_) {
      const Read read = ReadHello(socket.get(), &hello, &fd);
      if (read == Read::kNothing) continue;
      const bool welcome = read == Read::kHello && hello.token == token_ &&
                           hello.rank > rank_ && hello.rank < size_ &&
                           !greeted_[static_cast<size_t>(hello.rank)];
      // The answer needs no token: the caller has connected to the name that this rank published.
      if (welcome && SendHello(socket.get(), MakeHello(Token{}), own_fd_.get())) {
        peers_->sockets_[static_cast<size_t>(hello.rank)] = std::move(socket);
        Take(hello.rank, hello, std::move(fd));
      } else {
        socket.Close();
      }
      *progress = true;
    }
    std::erase_if(strangers_, [](const TrackedFd& socket) { return !socket.valid(); });
  }

  // Maps the segment of `peer` and touches it.
  void Take(int peer, const Hello& hello, TrackedFd fd) {
    const size_t at = static_cast<size_t>(peer);
    if (hello.version != kVersion || hello.size != size_ ||
        hello.segment_bytes != peers_->geometry_.total()) {
      problem_ = absl::StrCat(kApart, "group rank ", peer, " has another layout of segments");
      return;
    }
    absl::StatusOr<Segment> segment = Segment::Map(fd.get(), peers_->geometry_.total());
    if (!segment.ok()) {
      problem_ = absl::StrCat(
          absl::IsResourceExhausted(segment.status()) ? kNoMemory : kApart, "segment of group rank ",
          peer, ": ", segment.status().message());
      return;
    }
    if (peers_->geometry_.header(segment->data()).word != hello.word) {
      problem_ = absl::StrCat(kApart, "the memory of group rank ", peer, " does not show its word");
      return;
    }
    peers_->segments_[at] = *std::move(segment);
    greeted_[at] = true;
  }

  absl::Status AwaitVerdicts() {
    absl::Duration pause = kFirstPause;
    while (true) {
      std::vector<int> missing;
      if (absl::Status status = poll_ ? poll_() : absl::OkStatus(); !status.ok()) return status;
      for (int peer = 0; peer < size_; ++peer) {
        absl::StatusOr<bool> known = LookForVerdict(peer);
        if (!known.ok()) return known.status();
        if (*known) continue;
        missing.push_back(peer);
        const TrackedFd& socket = peers_->sockets_[static_cast<size_t>(peer)];
        if (socket.valid() && HungUp(socket.get())) {
          // It may have spoken before it left.
          known = LookForVerdict(peer);
          if (!known.ok()) return known.status();
          if (!*known) {
            return absl::UnavailableError(
                absl::StrCat("group rank ", peer, " died while shared memory was opened"));
          }
        }
      }
      if (missing.empty()) return absl::OkStatus();
      if (absl::Now() >= deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat(RankList(missing), " did not open shared memory in time"));
      }
      absl::SleepFor(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  absl::StatusOr<bool> LookForVerdict(int peer) {
    std::string& verdict = verdicts_[static_cast<size_t>(peer)];
    if (!verdict.empty()) return true;
    absl::StatusOr<bool> known = store_.Check(VerdictKey(peer));
    if (!known.ok() || !*known) return known;
    absl::StatusOr<std::string> value = store_.Get(VerdictKey(peer));
    if (!value.ok()) return value.status();
    verdict = *std::move(value);
    return true;
  }

  // The same on all ranks, since all read the same verdicts.
  absl::Status Judge() const {
    std::vector<std::string> apart, without_memory;
    for (int peer = 0; peer < size_; ++peer) {
      std::string_view verdict = verdicts_[static_cast<size_t>(peer)];
      if (absl::ConsumePrefix(&verdict, kNoMemory)) {
        without_memory.push_back(absl::StrCat("group rank ", peer, ": ", verdict));
      } else if (absl::ConsumePrefix(&verdict, kApart)) {
        apart.push_back(absl::StrCat("group rank ", peer, ": ", verdict));
      }
    }
    if (!without_memory.empty()) {
      return absl::ResourceExhaustedError(absl::StrJoin(without_memory, "; "));
    }
    if (!apart.empty()) return absl::FailedPreconditionError(absl::StrJoin(apart, "; "));
    return absl::OkStatus();
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !greeted_[static_cast<size_t>(peer)]) missing.push_back(peer);
    }
    return missing;
  }

  // Sleeps until somebody comes or speaks, at most `pause`.
  void Sleep(absl::Duration pause) {
    std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0}};
    for (const TrackedFd& socket : strangers_) entries.push_back({socket.get(), POLLIN, 0});
    for (int peer = 0; peer < rank_; ++peer) {
      const size_t at = static_cast<size_t>(peer);
      if (peers_->sockets_[at].valid() && !greeted_[at]) {
        entries.push_back({peers_->sockets_[at].get(), POLLIN, 0});
      }
    }
    poll(entries.data(), static_cast<nfds_t>(entries.size()),
         static_cast<int>(absl::ToInt64Milliseconds(pause)));
  }

  Hello MakeHello(const Token& addressed) const {
    Hello hello{};
    std::memcpy(hello.magic, kMagic, sizeof kMagic);
    hello.version = kVersion;
    hello.rank = rank_;
    hello.size = size_;
    hello.segment_bytes = peers_->geometry_.total();
    hello.word = word_;
    hello.token = addressed;
    return hello;
  }

  KeyValueStore& store_;
  const int rank_;
  const int size_;
  const absl::Time deadline_;
  const MeetingPoll& poll_;
  TrackedFd* const kept_fd_;
  std::unique_ptr<Peers> peers_;
  std::string problem_;  // the verdict, unless it is "ok"
  TrackedFd own_fd_;
  TrackedFd listener_;
  std::string name_;
  Token token_{};
  uint64_t word_ = 0;
  std::vector<TrackedFd> strangers_;  // accepted, no HELLO yet
  std::vector<bool> greeted_;         // its segment is mapped
  std::vector<std::string> verdicts_;
};

absl::StatusOr<std::unique_ptr<Peers>> Peers::Connect(KeyValueStore& store, int rank,
                                                      const Geometry& geometry,
                                                      absl::Time deadline,
                                                      const MeetingPoll& poll, TrackedFd* own_fd) {
  return Meeting(store, rank, geometry, deadline, poll, own_fd).Run();
}

absl::StatusOr<std::vector<std::unique_ptr<Peers>>> Peers::InProcess(const Geometry& geometry) {
  std::vector<Segment> segments;
  for (int rank = 0; rank < geometry.ranks(); ++rank) {
    absl::StatusOr<Segment> segment = Segment::InProcess(geometry.total());
    if (!segment.ok()) return segment.status();
    segments.push_back(*std::move(segment));
  }
  std::vector<std::unique_ptr<Peers>> all;
  for (int rank = 0; rank < geometry.ranks(); ++rank) {
    all.push_back(std::unique_ptr<Peers>(new Peers(rank, geometry)));
    all.back()->segments_ = segments;
  }
  return all;
}

std::vector<int> Peers::Gone() const {
  std::vector<int> gone;
  for (int peer = 0; peer < size(); ++peer) {
    const TrackedFd& socket = sockets_[static_cast<size_t>(peer)];
    if (socket.valid() && HungUp(socket.get())) gone.push_back(peer);
  }
  return gone;
}

}  // namespace leafpack::shm
