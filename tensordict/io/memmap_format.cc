#include "tensordict/io/memmap_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace leafpack::internal {
namespace {

constexpr int64_t kMaxMetadataBytes = 100'000'000;

}  // namespace

bool IsMemmapName(std::string_view name) {
  constexpr std::string_view kNames[] = {"shape",           "device", "_type",
                                         "_format_version", "_class", "_names"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

std::string MemmapFileName(std::string_view key) {
  if (key.empty()) return "%";
  if (key == "." || key == "..") return key.size() == 1 ? "%2E" : "%2E%2E";
  constexpr std::string_view kUnsafe = "/<>:\"|?*\\ %\x7f";
  std::string name;
  for (const char c : key) {
    if (static_cast<unsigned char>(c) < 32 || kUnsafe.find(c) != std::string_view::npos) {
      absl::StrAppendFormat(&name, "%%%02X", static_cast<unsigned char>(c));
    } else {
      name.push_back(c);
    }
  }
  return name;
}

absl::StatusOr<std::string> ReadMemmapText(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return MemmapErrnoError(path, "cannot be opened", errno);
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0) return MemmapErrnoError(path, "cannot be read", errno);
  if (!S_ISREG(info.st_mode)) return MemmapError(path, "is no regular file");
  if (info.st_size > kMaxMetadataBytes) {
    return MemmapError(path, absl::StrCat("has ", info.st_size, " bytes; at most ",
                                        kMaxMetadataBytes, " are allowed"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t got = read(fd, text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return MemmapErrnoError(path, "cannot be read", errno);
    if (got == 0) break;
    at += static_cast<size_t>(got);
  }
  text.resize(at);
  return text;
}

absl::Status MemmapError(std::string_view path, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("file ", path, ": ", text));
}

absl::Status MemmapErrnoError(std::string_view path, std::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("file ", path, ": ", what));
}

}  // namespace leafpack::internal
