#include "tensordict/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace leafpack::internal {
namespace {

absl::Status Error(const std::string& path, std::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("file ", path, ": ", what));
}

constexpr time_t kLeftoverSeconds = 600;
constexpr int kTries = 1000;  // names that others may have taken

std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> next{0};
  return absl::StrCat(path, ".", getpid(), ".", next.fetch_add(1), ".tmp");
}

// Takes one number and the dot behind it off the front of `text`.
bool TakeNumber(std::string_view& text, int64_t& number) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
  if (digits == 0 || !text.substr(digits).starts_with('.')) return false;
  if (!absl::SimpleAtoi(text.substr(0, digits), &number)) return false;
  text.remove_prefix(digits + 1);
  return true;
}

// Whether `name` is that of a temporary of `base`, made by a process that is not here any more.
bool IsOfTheDead(std::string_view name, std::string_view base) {
  if (!name.starts_with(base) || !name.substr(base.size()).starts_with('.')) return false;
  name.remove_prefix(base.size() + 1);
  int64_t process = 0;
  int64_t number = 0;
  if (!TakeNumber(name, process) || !TakeNumber(name, number) || name != "tmp") return false;
  const auto pid = static_cast<pid_t>(process);
  if (pid <= 0 || pid != process) return false;
  return pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH);
}

bool IsOld(const struct stat& info) { return time(nullptr) - info.st_mtime >= kLeftoverSeconds; }

// Whether there is nothing in a folder but what writers of memory-mapped trees make, and all of it is old.
bool IsOldTree(const std::string& folder) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(folder, error);
  for (const std::filesystem::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
    struct stat info {};
    if (lstat(at->path().c_str(), &info) != 0 || !IsOld(info)) return false;
    if (S_ISDIR(info.st_mode)) continue;
    const std::string name = at->path().filename().string();
    if (!S_ISREG(info.st_mode) || (name != "meta.json" && !name.ends_with(".memmap"))) return false;
  }
  return !error;
}

// So that a new name in it survives a power cut. Not all file systems can do it.
void SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (const int dir = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
    (void)fsync(dir);
    close(dir);
  }
}

}  // namespace

absl::Status CheckPath(std::string_view path) {
  if (path.find('\0') == std::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("file ", absl::Utf8SafeCHexEscape(path), ": a path cannot have a zero byte"));
}

int LockTemporary(const std::string& path) {
  // For a lock of one's own some file systems want a file that can be written; a folder cannot.
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == EISDIR) fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

absl::StatusOr<std::string> MakeTemporaryFolder(const std::string& path) {
  for (int tries = 0; tries < kTries; ++tries) {
    std::string folder = TemporaryName(path);
    if (mkdir(folder.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST) break;
  }
  return Error(path, "cannot be made", errno);
}

void RemoveLeftovers(const std::string& path, TemporaryKind kind) {
  const size_t slash = path.rfind('/');
  const std::string above = slash == std::string::npos ? "./" : path.substr(0, slash + 1);
  const std::string base = slash == std::string::npos ? path : path.substr(slash + 1);
  std::vector<std::string> leftovers;
  std::error_code error;
  for (std::filesystem::directory_iterator at(above, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (IsOfTheDead(name, base)) leftovers.push_back(above + name);
  }
  for (const std::string& leftover : leftovers) {
    struct stat info {};
    if (lstat(leftover.c_str(), &info) != 0) continue;
    if (kind == TemporaryKind::kFile ? !S_ISREG(info.st_mode) : !S_ISDIR(info.st_mode)) continue;
    if (!IsOld(info) || (S_ISDIR(info.st_mode) && !IsOldTree(leftover))) continue;
    const int lock = LockTemporary(leftover);
    if (lock < 0) continue;
    std::filesystem::remove_all(leftover, error);
    close(lock);
  }
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, std::string())),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& given) {
  if (absl::Status s = CheckPath(given); !s.ok()) return s;
  std::string path = given;
  struct stat old {};
  const bool replaces = stat(path.c_str(), &old) == 0;
  if (replaces && !S_ISREG(old.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("file ", path, ": is there, is no regular file, and is not replaced"));
  }
  struct stat itself {};
  if (lstat(path.c_str(), &itself) == 0 && S_ISLNK(itself.st_mode)) {
    const std::unique_ptr<char, decltype(&std::free)> behind(realpath(path.c_str(), nullptr), &std::free);
    if (behind == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("file ", path, ": is a symbolic link to nothing, and is not replaced"));
    }
    path = behind.get();
  }
  std::string temporary;
  int fd = -1;
  for (int tries = 0; tries < kTries && fd < 0; ++tries) {
    temporary = TemporaryName(path);
    fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) return Error(path, "cannot be created", errno);
  (void)flock(fd, LOCK_EX | LOCK_NB);  // as LockTemporary
  AtomicFile file(path, std::move(temporary), fd);
  // The rights of the file that is replaced.
  if (replaces && fchmod(fd, old.st_mode & 0777) != 0) {
    return Error(path, "cannot be given its rights", errno);
  }
  return file;
}

absl::Status AtomicFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error(path_, "cannot be written", errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return Error(path_, "cannot be brought to the disk", errno);
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) return Error(path_, "cannot be closed", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return Error(path_, "cannot be put in its place", errno);
  }
  temporary_.clear();
  SyncFolderOf(path_);
  return absl::OkStatus();
}

absl::Status PutFolder(const std::string& made, const std::string& path, bool overwrite) {
  for (const std::string* name : {&made, &path}) {
    if (absl::Status s = CheckPath(*name); !s.ok()) return s;
  }
  int error = 0;
  if (renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) error = errno;
  // File systems that know no such flag: a folder takes the place of nothing or of an empty one.
  if (error == EINVAL) error = rename(made.c_str(), path.c_str()) == 0 ? 0 : errno;
  if (error != 0) {
    if (error != EEXIST && error != ENOTEMPTY) {
      return Error(path, "cannot be put in its place", error);
    }
    if (!overwrite) {
      return absl::AlreadyExistsError(absl::StrCat("file ", path, ": is there already"));
    }
    if (renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
      return Error(path, "cannot be put in its place", errno);
    }
  }
  SyncFolderOf(path);
  return absl::OkStatus();
}

}  // namespace leafpack::internal
