#include "distributed/store/file_meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "absl/base/no_destructor.h"
#include "absl/log/absl_log.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "distributed/core/channel/fork.h"

namespace leafpack::store_internal {
namespace {

constexpr std::string_view kMagic = "leafpack-meeting 1\n";
// How long a rank that comes waits for the process that had its rank before, which may be ending.
constexpr absl::Duration kOldRunPatience = absl::Seconds(5);
constexpr absl::Duration kLeavePatience = absl::Seconds(5);
// What a store does when its file is gone: it must not wait for it.
constexpr std::chrono::milliseconds kStoreTimeout{10'000};
constexpr size_t kMaxCardBytes = size_t{64} << 20;

absl::Status FileError(int error, std::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat(what, " the file '", path, "': ", absl::ErrnoToStatus(error, "").message()));
}

std::string NewToken() {
  std::random_device random;
  const auto word = [&] { return static_cast<uint64_t>(random()) << 32 | random(); };
  return absl::StrFormat("%016x%016x", word(), word());
}

std::string HostName() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

struct flock Byte(short type, int64_t start) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = 1;
  return lock;
}

// Byte 0 guards the card; byte 1 + r says that rank r lives.
constexpr int64_t kCardByte = 0;
constexpr int64_t RankByte(int rank) { return int64_t{1} + rank; }

// 0, or errno.
int TryLock(int fd, int64_t byte) {
  struct flock lock = Byte(F_WRLCK, byte);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

void Unlock(int fd, int64_t byte) {
  struct flock lock = Byte(F_UNLCK, byte);
  fcntl(fd, F_OFD_SETLK, &lock);
}

// Whether another open file holds the byte.
bool IsHeld(int fd, int64_t byte) {
  struct flock lock = Byte(F_WRLCK, byte);
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// Whether a process of this host has been killed or exits: the kernel closes its connections before it lets
// its locks go, so its peers may look at the card in between. False where it cannot be seen.
bool IsExiting(const MeetingCard::Member& member) {
  if (member.host != HostName()) return false;
  const TrackedFd fd = TrackedFd::Open([&] {
    return open(absl::StrCat("/proc/", member.pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  });
  if (!fd.valid()) return false;
  char buffer[1024];
  const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
  const std::string_view text(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  // proc(5): PID (COMMAND) STATE and six numbers, the last of them the kernel's flags of the process.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return false;
  const std::vector<std::string_view> fields =
      absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr uint64_t kExiting = 4;  // PF_EXITING
  uint64_t flags = 0;
  return fields.size() > 6 && (fields[0] == "Z" || fields[0] == "X" ||
                               (absl::SimpleAtoi(fields[6], &flags) && (flags & kExiting) != 0));
}

// Holds the card's byte while it lives.
class CardLock {
 public:
  static absl::StatusOr<CardLock> Take(int fd, const std::string& path, absl::Time deadline) {
    absl::Duration pause = absl::Milliseconds(1);
    while (true) {
      const int error = TryLock(fd, kCardByte);
      if (error == 0) return CardLock(fd);
      if (error != EAGAIN && error != EACCES && error != EINTR) {
        return FileError(error, "cannot lock", path);
      }
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("the file '", path, "' stayed locked by another process"));
      }
      absl::SleepFor(pause);
      pause = std::min(pause * 2, absl::Milliseconds(20));
    }
  }
  CardLock(CardLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~CardLock() {
    if (fd_ >= 0) Unlock(fd_, kCardByte);
  }

 private:
  explicit CardLock(int fd) : fd_(fd) {}
  int fd_;
};

// True when `path` still names the file that is open.
bool IsAtPath(int fd, const std::string& path) {
  struct stat open_file, there;
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &there) == 0 &&
         open_file.st_ino == there.st_ino && open_file.st_dev == there.st_dev;
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t n = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "cannot read", path);
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxCardBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the file '", path, "' is too long for a card"));
    }
  }
}

// The end of a card is marked, so that what a longer one left behind it does no harm.
absl::Status WriteAll(int fd, std::string_view text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = pwrite(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "cannot write", path);
    done += static_cast<size_t>(n);
  }
  if (ftruncate(fd, static_cast<off_t>(text.size())) != 0) {
    return FileError(errno, "cannot write", path);
  }
  return absl::OkStatus();
}

TrackedFd OpenCard(const std::string& path, int flags) {
  return TrackedFd::Open([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600); });
}

// The places of this process, so that a second group over the same file finds the first one's.
struct Places {
  absl::Mutex mutex;
  std::map<std::string, std::weak_ptr<FileMeeting>> by_key ABSL_GUARDED_BY(mutex);
  uint64_t generation ABSL_GUARDED_BY(mutex) = ForkGeneration();
};

void LeaveAll();

Places& ThePlaces() {
  static absl::NoDestructor<Places> places;
  // Groups that are alive at exit are leaked by design; their places are not. Runs after the groups
  // were shut down, whose hook is set later.
  static const bool registered = std::atexit(LeaveAll) == 0;
  (void)registered;
  return *places;
}

void LeaveAll() {
  Places& places = ThePlaces();
  std::vector<std::shared_ptr<FileMeeting>> held;
  {
    absl::MutexLock lock(&places.mutex);
    if (places.generation != ForkGeneration()) return;
    for (const auto& [key, place] : places.by_key) {
      if (std::shared_ptr<FileMeeting> meeting = place.lock()) held.push_back(std::move(meeting));
    }
  }
  for (const std::shared_ptr<FileMeeting>& meeting : held) meeting->Leave();
}

// A FileStore that keeps its rank's place in the run.
// The place is a base, so that it goes after the store, whose destructor writes to the file.
struct Place {
  std::shared_ptr<FileMeeting> held;
};
class MeetingStore : private Place, public c10d::FileStore {
 public:
  MeetingStore(std::string path, std::shared_ptr<FileMeeting> meeting)
      : Place{std::move(meeting)}, c10d::FileStore(std::move(path), /*numWorkers=*/-1) {
    setTimeout(kStoreTimeout);
  }
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<MeetingStore>(path_, held);
  }
};

}  // namespace

std::string MeetingCard::ToText() const {
  std::string text = absl::StrCat(kMagic, "token ", token, "\nsize ", size, "\n");
  for (const Member& member : members) {
    absl::StrAppend(&text, "rank ", member.rank, " ", member.present ? 1 : 0, " ", member.groups, " ",
                    member.pid, " ", member.host, "\n");
  }
  return absl::StrCat(text, "end\n");
}

absl::StatusOr<MeetingCard> MeetingCard::Parse(std::string_view text) {
  if (!absl::StartsWith(text, kMagic)) {
    if (absl::StartsWith(kMagic, text)) return MeetingCard();  // begun, and not finished
    return absl::InvalidArgumentError("not a card of leafpack's");
  }
  MeetingCard card;
  for (std::string_view line : absl::StrSplit(text.substr(kMagic.size()), '\n')) {
    const std::vector<std::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 5));
    if (words[0] == "end") return card;
    if (words[0] == "token" && words.size() == 2) {
      card.token = std::string(words[1]);
    } else if (words[0] == "size" && words.size() == 2) {
      if (!absl::SimpleAtoi(words[1], &card.size)) return MeetingCard();
    } else if (words[0] == "rank" && words.size() == 6) {
      Member member;
      int present = 0;
      if (!absl::SimpleAtoi(words[1], &member.rank) || !absl::SimpleAtoi(words[2], &present) ||
          !absl::SimpleAtoi(words[3], &member.groups) || !absl::SimpleAtoi(words[4], &member.pid)) {
        return MeetingCard();
      }
      member.present = present != 0;
      member.host = std::string(words[5]);
      card.members.push_back(std::move(member));
    } else {
      return MeetingCard();
    }
  }
  return MeetingCard();  // no end: who wrote it was killed
}

MeetingCard::Member* MeetingCard::Find(int rank) {
  for (Member& member : members) {
    if (member.rank == rank) return &member;
  }
  return nullptr;
}

std::string FileMeeting::DataPath(const std::string& token) const {
  return absl::StrCat(path_, ".", token);
}

absl::StatusOr<std::shared_ptr<FileMeeting>> FileMeeting::Join(const std::string& path, int rank,
                                                               int size, absl::Time deadline) {
  Places& places = ThePlaces();
  const std::string key = absl::StrCat(rank, "/", size, " ", path);
  std::shared_ptr<FileMeeting> held;  // let go without the lock
  {
    absl::MutexLock lock(&places.mutex);
    if (places.generation != ForkGeneration()) {
      places.by_key.clear();  // the parent's
      places.generation = ForkGeneration();
    }
    std::erase_if(places.by_key, [](const auto& entry) { return entry.second.expired(); });
    if (auto found = places.by_key.find(key); found != places.by_key.end()) {
      held = found->second.lock();
    }
  }
  if (held != nullptr && held->IsSound(deadline)) return held;
  held.reset();
  std::shared_ptr<FileMeeting> meeting(new FileMeeting(path, rank, size));
  if (absl::Status status = meeting->Enter(deadline); !status.ok()) return status;
  absl::MutexLock lock(&places.mutex);
  places.by_key[key] = meeting;
  return meeting;
}

absl::Status FileMeeting::Enter(absl::Time deadline) {
  const absl::Time patience = std::min(deadline, absl::Now() + kOldRunPatience);
  while (true) {
    absl::StatusOr<bool> entered = TryEnter(deadline, patience);
    if (!entered.ok()) return entered.status();
    if (*entered) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the file '", path_, "' was replaced again and again"));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

// False: the file was replaced meanwhile, or an old run is ending; try again.
absl::StatusOr<bool> FileMeeting::TryEnter(absl::Time deadline, absl::Time patience) {
  TrackedFd fd = OpenCard(path_, O_CREAT);
  if (!fd.valid()) return FileError(errno, "cannot open", path_);
  absl::StatusOr<CardLock> lock = CardLock::Take(fd.get(), path_, deadline);
  if (!lock.ok()) return lock.status();
  if (!IsAtPath(fd.get(), path_)) return false;
  absl::StatusOr<std::string> text = ReadAll(fd.get(), path_);
  if (!text.ok()) return text.status();
  absl::StatusOr<MeetingCard> card = MeetingCard::Parse(*text);
  if (!card.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the file '", path_, "' exists and is ",
                                                   card.status().message(),
                                                   ": remove it, or name another"));
  }
  const MeetingCard::Member *living = nullptr, *died = nullptr;
  for (const MeetingCard::Member& member : card->members) {
    if (!member.present) continue;
    const bool lives = IsHeld(fd.get(), RankByte(member.rank));
    if (lives && IsExiting(member) && absl::Now() < patience) return false;
    (lives ? living : died) = &member;
  }
  const bool any_lives = living != nullptr, any_died = died != nullptr;
  if (!any_lives && !card->token.empty()) unlink(DataPath(card->token).c_str());
  if (!any_lives || any_died) {
    const absl::Status begun = Begin();
    if (!begun.ok()) return begun;
    if (any_lives) {
      ABSL_LOG(WARNING) << "leafpack: in the file '" << path_ << "' rank " << died->rank << ", process "
                   << died->pid << " on host " << died->host << ", has died; rank " << rank_
                   << " begins a new run there. Ranks that stay in the old one, such as rank "
                   << living->rank << ", process " << living->pid << ", are not in it";
    }
    return true;
  }
  MeetingCard::Member* me = card->Find(rank_);
  if (card->size != size_ || (me != nullptr && me->present)) {
    if (absl::Now() < patience) return false;
    const MeetingCard::Member& other = me != nullptr && me->present ? *me : card->members.front();
    return absl::FailedPreconditionError(absl::StrCat(
        "the file '", path_, "' is in use by a run of ", card->size, " ranks that is alive: rank ",
        other.rank, " is process ", other.pid, " on host ", other.host));
  }
  if (const int error = TryLock(fd.get(), RankByte(rank_)); error != 0) {
    return FileError(error, "cannot lock", path_);
  }
  if (me == nullptr) {
    card->members.push_back({.rank = rank_, .host = {}});
    me = &card->members.back();
  }
  me->present = true;
  me->pid = getpid();
  me->host = HostName();
  if (absl::Status status = WriteAll(fd.get(), card->ToText(), path_); !status.ok()) return status;
  token_ = card->token;
  fd_ = std::move(fd);
  return true;
}

// Puts a new card in the place of the one that is locked. A file of its own, since ranks of the old
// run may still hold their bytes of the old one.
absl::Status FileMeeting::Begin() {
  MeetingCard card;
  card.token = NewToken();
  card.size = size_;
  card.members.push_back(
      {.rank = rank_, .present = true, .groups = 0, .pid = getpid(), .host = HostName()});
  const std::string fresh = absl::StrCat(path_, ".", card.token, ".new");
  TrackedFd fd = OpenCard(fresh, O_CREAT | O_EXCL);
  if (!fd.valid()) return FileError(errno, "cannot make", fresh);
  absl::Status status = WriteAll(fd.get(), card.ToText(), fresh);
  if (const int error = TryLock(fd.get(), RankByte(rank_)); status.ok() && error != 0) {
    status = FileError(error, "cannot lock", fresh);
  }
  if (status.ok() && rename(fresh.c_str(), path_.c_str()) != 0) {
    status = FileError(errno, "cannot replace", path_);
  }
  if (!status.ok()) {
    unlink(fresh.c_str());
    return status;
  }
  token_ = card.token;
  fd_ = std::move(fd);
  return absl::OkStatus();
}

bool FileMeeting::IsSound(absl::Time deadline) {
  absl::MutexLock count(&count_mutex_);
  if (!fd_.valid()) return false;
  absl::StatusOr<CardLock> lock = CardLock::Take(fd_.get(), path_, deadline);
  if (!lock.ok() || !IsAtPath(fd_.get(), path_)) return false;
  absl::StatusOr<std::string> text = ReadAll(fd_.get(), path_);
  if (!text.ok()) return false;
  absl::StatusOr<MeetingCard> card = MeetingCard::Parse(*text);
  if (!card.ok() || card->token != token_) return false;
  for (const MeetingCard::Member& member : card->members) {
    if (member.rank != rank_ && member.present && !IsHeld(fd_.get(), RankByte(member.rank))) {
      return false;
    }
  }
  return true;
}

absl::Status FileMeeting::CountGroup(absl::FunctionRef<absl::Status(int earlier)> make,
                                     absl::Time deadline) {
  absl::MutexLock count(&count_mutex_);
  if (!fd_.valid()) return ForkedError();
  absl::StatusOr<CardLock> lock = CardLock::Take(fd_.get(), path_, deadline);
  if (!lock.ok()) return lock.status();
  absl::StatusOr<std::string> text = ReadAll(fd_.get(), path_);
  if (!text.ok()) return text.status();
  absl::StatusOr<MeetingCard> card = MeetingCard::Parse(*text);
  if (!card.ok()) return card.status();
  MeetingCard::Member* me = card->Find(rank_);
  if (me == nullptr) return absl::InternalError("this rank is not on its own card");
  if (absl::Status status = make(me->groups); !status.ok()) return status;
  ++me->groups;
  return WriteAll(fd_.get(), card->ToText(), path_);
}

void FileMeeting::Leave() {
  absl::MutexLock count(&count_mutex_);
  if (!fd_.valid()) return;
  StrikeOut();
  fd_.Close();
}

void FileMeeting::StrikeOut() {
  absl::StatusOr<CardLock> lock =
      CardLock::Take(fd_.get(), path_, absl::Now() + kLeavePatience);
  if (!lock.ok()) return;  // the kernel lets the byte go with the descriptor
  absl::StatusOr<std::string> text = ReadAll(fd_.get(), path_);
  if (!text.ok()) return;
  absl::StatusOr<MeetingCard> card = MeetingCard::Parse(*text);
  if (!card.ok()) return;
  const absl::Time patience = absl::Now() + kLeavePatience;
  const auto lives = [&](const MeetingCard::Member& member) {
    if (member.rank == rank_ || !member.present) return false;
    while (IsHeld(fd_.get(), RankByte(member.rank))) {
      if (!IsExiting(member) || absl::Now() >= patience) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  };
  if (std::none_of(card->members.begin(), card->members.end(), lives)) {
    if (IsAtPath(fd_.get(), path_)) unlink(path_.c_str());
    unlink(DataPath(token_).c_str());
    return;
  }
  if (MeetingCard::Member* me = card->Find(rank_); me != nullptr) me->present = false;
  WriteAll(fd_.get(), card->ToText(), path_).IgnoreError();
}

FileMeeting::~FileMeeting() { Leave(); }

c10::intrusive_ptr<c10d::Store> FileMeeting::OpenStore(std::shared_ptr<FileMeeting> meeting) {
  const std::string path = meeting->DataPath(meeting->token_);
  return c10::make_intrusive<MeetingStore>(path, std::move(meeting));
}

}  // namespace leafpack::store_internal
