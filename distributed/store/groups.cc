#include "distributed/store/groups.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/store/c10d_errors.h"
#include "distributed/store/file_meeting.h"

namespace leafpack {
namespace {

// What no machine can hold is a mistake, and is told before memory is asked for.
constexpr int kMaxRanks = 1 << 20;
constexpr int kMaxLocalRanks = 4096;

absl::Status CheckRankAndSize(int rank, int size, int max_size = kMaxRanks) {
  if (size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a group of ", size, " ranks: want at least 1"));
  }
  if (size > max_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group of ", size, " ranks: want at most ", max_size));
  }
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " is not in a group of ", size, " ranks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Group> GroupFromStore(c10::intrusive_ptr<c10d::Store> store, std::string_view prefix,
                                     int rank, int size, std::vector<GlobalRank> global_ranks,
                                     GroupOptions options) {
  if (store == nullptr) return absl::InvalidArgumentError("a group needs a store");
  if (absl::Status status = CheckRankAndSize(rank, size); !status.ok()) return status;
  return store_internal::CatchC10d("making a group", [&]() -> absl::StatusOr<Group> {
    return Group::Create(std::move(store), prefix, GroupRank(rank), size, std::move(global_ranks),
                         std::move(options));
  });
}

absl::StatusOr<Group> GroupFromFile(const std::string& path, int rank, int size,
                                    GroupOptions options) {
  if (absl::Status status = CheckRankAndSize(rank, size); !status.ok()) return status;
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", absl::Utf8SafeCEscape(path), "' has a NUL byte, and no file's name has"));
  }
  const size_t slash = path.rfind('/');
  if (path.empty() || slash + 1 == path.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' does not name a file"));
  }
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the file '", path, "' cannot be made: its folder is missing or not writable"));
  }
  if (struct stat there; stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' exists and is no regular file"));
  }
  const absl::Time deadline = absl::Now() + std::max(options.timeout, absl::ZeroDuration());
  absl::StatusOr<std::shared_ptr<store_internal::FileMeeting>> meeting =
      store_internal::FileMeeting::Join(path, rank, size, deadline);
  if (!meeting.ok()) return meeting.status();
  absl::StatusOr<Group> group = absl::InternalError("not made");
  const absl::Status counted = (*meeting)->CountGroup(
      [&](int earlier) {
        group = store_internal::CatchC10d(
            absl::StrCat("the file store '", path, "'"), [&]() -> absl::StatusOr<Group> {
              return GroupFromStore(store_internal::FileMeeting::OpenStore(*meeting),
                                    absl::StrCat("leafpack/file/", earlier), rank, size, {},
                                    std::move(options));
            });
        return group.status();
      },
      deadline);
  if (!counted.ok()) return counted;
  return group;
}

absl::StatusOr<std::vector<Group>> LocalGroups(int size, GroupOptions options) {
  if (absl::Status status = CheckRankAndSize(0, size, kMaxLocalRanks); !status.ok()) return status;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Group> groups;
  for (int rank = 0; rank < size; ++rank) {
    absl::StatusOr<Group> group = GroupFromStore(store, "leafpack/local", rank, size, {}, options);
    if (!group.ok()) return group.status();
    groups.push_back(*std::move(group));
  }
  return groups;
}

}  // namespace leafpack
