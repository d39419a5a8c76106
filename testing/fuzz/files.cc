#include "testing/fuzz/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace leafpack::testing {
namespace {

constexpr int kMostFiles = 32;
constexpr size_t kLongestName = 1000;

std::string MakeFolder() {
  const char* place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::getenv("TEST_TMPDIR");
  std::string folder = absl::StrCat(place == nullptr ? "/tmp" : place, "/leafpack_fuzz.XXXXXX");
  Require(mkdtemp(folder.data()) != nullptr);
  return folder;
}

// One thing of an archive; `name` is relative and may be anything.
void Make(std::string_view name, std::string_view content, const std::string& folder) {
  char kind = 0;
  std::string target;
  if (const size_t arrow = name.find('>'); arrow != std::string_view::npos) {
    kind = '>';
    target = std::string(name.substr(arrow + 1));
    name = name.substr(0, arrow);
  } else if (!name.empty() && (name.back() == '/' || name.back() == '|')) {
    kind = name.back();
    name.remove_suffix(1);
  }
  if (name.empty() || name.size() > kLongestName || name.find('\0') != std::string_view::npos) return;
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  std::string path = folder;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty() || parts[i] == "." || parts[i] == "..") return;
    absl::StrAppend(&path, "/", parts[i]);
    if (i + 1 == parts.size()) break;
    mkdir(path.c_str(), 0700);
    // A link on the way could lead anywhere.
    struct stat info {};
    if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return;
  }
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) return;
  if (kind == '/') {
    mkdir(path.c_str(), 0700);
  } else if (kind == '|') {
    mkfifo(path.c_str(), 0600);
  } else if (kind == '>') {
    (void)!symlink(target.c_str(), path.c_str());
  } else {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    Require(write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    close(fd);
  }
}

}  // namespace

void Require(bool holds) {
  if (!holds) std::abort();
}

const std::string& Folder() {
  static const std::string* const folder = [] {
    const auto* made = new std::string(MakeFolder());
    std::atexit([] { Remove(Folder()); });
    return made;
  }();
  return *folder;
}

void Remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void WriteFile(const std::string& path, std::string_view bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  Require(fd >= 0);
  Require(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(fd);
}

void Unpack(std::string_view archive, const std::string& folder) {
  Require(mkdir(folder.c_str(), 0700) == 0);
  for (int made = 0; made < kMostFiles && !archive.empty() && archive[0] == '@'; ++made) {
    const size_t line = archive.find('\n');
    const std::string_view name = archive.substr(1, line == archive.npos ? line : line - 1);
    archive.remove_prefix(line == archive.npos ? archive.size() : line);
    const size_t next = archive.find("\n@", archive.empty() ? 0 : 1);
    // Without the newline before it and, if something follows, the one behind it.
    std::string_view content = archive.substr(0, next);
    if (!content.empty()) content.remove_prefix(1);
    archive.remove_prefix(next == archive.npos ? archive.size() : next + 1);
    Make(name, content, folder);
  }
}

}  // namespace leafpack::testing
