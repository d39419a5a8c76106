#include "distributed/core/channel/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace leafpack {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
static_assert(sizeof(size_t) == sizeof(uint64_t));
constexpr size_t kPageBytes = 4096;
constexpr std::align_val_t kPage{kPageBytes};
#ifndef MADV_POPULATE_WRITE  // headers older than the kernel
constexpr int MADV_POPULATE_WRITE = 23;
#endif

absl::Status OutOfMemory(const char* what, size_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " of ", bytes, " bytes of shared memory: ", std::strerror(error)));
}

// The number behind `key` in a file of lines "key number", or nothing.
std::optional<uint64_t> NumberIn(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  uint64_t number;
  while (file >> word) {
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

std::optional<uint64_t> FirstNumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number;
  if (file >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

// Bytes that can be had without making the system kill somebody: reserving pages of a memfd does not
// fail before it does that.
uint64_t AvailableBytes() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  if (const auto kibibytes = NumberIn("/proc/meminfo", "MemAvailable:")) {
    available = *kibibytes * 1024;
  }
  // The limit of each control group (version 2) from this process's up to the root.
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (!absl::StartsWith(line, "0::/")) continue;
    std::string group = line.substr(3);
    while (!group.empty()) {
      const std::string folder = "/sys/fs/cgroup" + (group == "/" ? std::string() : group);
      const auto limit = FirstNumberIn(folder + "/memory.max");
      const auto used = FirstNumberIn(folder + "/memory.current");
      if (limit.has_value() && used.has_value()) {
        const uint64_t cache =
            NumberIn(folder + "/memory.stat", "inactive_file").value_or(0);
        const uint64_t kept = *used > cache ? *used - cache : 0;
        available = std::min(available, *limit > kept ? *limit - kept : 0);
      }
      group.resize(group.rfind('/'));
    }
  }
  return available;
}

absl::StatusOr<std::shared_ptr<char>> MapShared(int fd, size_t bytes) {
  // Populated, so that no page fault comes in the midst of a reduction.
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return OutOfMemory("mapping", bytes, errno);
  return std::shared_ptr<char>(static_cast<char*>(memory),
                               [bytes](char* begin) { munmap(begin, bytes); });
}

}  // namespace

uint64_t Segment::Available() { return AvailableBytes(); }

absl::StatusOr<Segment::Created> Segment::Create(size_t bytes) {
  if (const uint64_t available = AvailableBytes(); bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat("reserving of ", bytes,
                                                     " bytes of shared memory: only ", available,
                                                     " are available"));
  }
  TrackedFd fd = TrackedFd::Open(
      [] { return memfd_create("leafpack", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      return OutOfMemory("memfd_create", bytes, errno);
    }
    return absl::UnimplementedError(absl::StrCat("memfd_create: ", std::strerror(errno)));
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return OutOfMemory("ftruncate", bytes, errno);
  }
  int reserved;
  do {
    reserved = fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes));
  } while (reserved != 0 && errno == EINTR);
  if (reserved != 0) return OutOfMemory("reserving", bytes, errno);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    return absl::UnimplementedError(absl::StrCat("sealing a memfd: ", std::strerror(errno)));
  }
  absl::StatusOr<std::shared_ptr<char>> memory = MapShared(fd.get(), bytes);
  if (!memory.ok()) return memory.status();
  Created created;
  created.segment.memory_ = *std::move(memory);
  created.segment.bytes_ = bytes;
  created.fd = std::move(fd);
  return created;
}

absl::StatusOr<Segment> Segment::Map(int fd, size_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError("the descriptor is no sealed segment");
  }
  struct stat file;
  if (fstat(fd, &file) != 0 || file.st_size != static_cast<off_t>(bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the segment does not have the agreed size of ", bytes, " bytes"));
  }
  // A hole would be filled on touch, and that can fail; the maker has none.
  if (static_cast<size_t>(file.st_blocks) * 512 < bytes) {
    return absl::InvalidArgumentError("the pages of the segment are not reserved");
  }
  absl::StatusOr<std::shared_ptr<char>> memory = MapShared(fd, bytes);
  if (!memory.ok()) return memory.status();
  Segment segment;
  segment.memory_ = *std::move(memory);
  segment.bytes_ = bytes;
  return segment;
}

absl::Status Segment::Part(int fd, size_t offset, size_t bytes) const {
  const size_t pages = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  char* const begin = data() + offset;
  // A private mapping of the same file: a page is copied when it is first written. It is made elsewhere first, since a
  // failure must leave the memory as it is, and then moved here in one step.
  void* const elsewhere = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd,
                               static_cast<off_t>(offset));
  if (elsewhere == MAP_FAILED) return OutOfMemory("parting", bytes, errno);
  if (mremap(elsewhere, pages, pages, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED) {
    const int error = errno;
    munmap(elsewhere, pages);
    return OutOfMemory("parting", bytes, error);
  }
  // Until it is copied a page shows what others write. The kernel copies each as if it were written, so what
  // other threads of this process write meanwhile is kept.
  if (madvise(begin, pages, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return OutOfMemory("parting", bytes, errno);
  // Linux before 5.14.
  for (size_t at = 0; at < pages; at += kPageBytes) {
    char value = __atomic_load_n(begin + at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(begin + at, &value, value, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Segment> Segment::InProcess(size_t bytes) {
  void* memory = ::operator new(bytes, kPage, std::nothrow);
  if (memory == nullptr) return OutOfMemory("allocating", bytes, ENOMEM);
  std::memset(memory, 0, bytes);
  Segment segment;
  segment.memory_ = std::shared_ptr<char>(static_cast<char*>(memory), [](char* begin) {
    ::operator delete(begin, kPage);
  });
  segment.bytes_ = bytes;
  return segment;
}

}  // namespace leafpack
