#include "distributed/backends/shm/open_arena.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/log/absl_log.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "distributed/backends/shm/geometry.h"
#include "distributed/core/channel/segment.h"
#include "distributed/core/channel/fork.h"

namespace leafpack::shm {
namespace {

constexpr std::string_view kRoom = "ok";
constexpr absl::Duration kPause = absl::Milliseconds(1);
constexpr int64_t kPage = 4096;

// The ranks look before any of them reserves: otherwise they would count each other's pages, or all take
// the same last ones.
absl::Status AgreeOnRoom(KeyValueStore& store, int rank, int size, int64_t bytes,
                         absl::Time deadline, const MeetingPoll& poll) {
  const uint64_t needed = static_cast<uint64_t>(bytes) * static_cast<uint64_t>(size);
  const uint64_t available = Segment::Available();
  const std::string own =
      needed <= available
          ? std::string(kRoom)
          : absl::StrCat("sharing of ", bytes, " bytes by each of ", size, " ranks: only ",
                         available, " are available");
  absl::Status status = store.Set(absl::StrCat("room/", rank), own);
  std::vector<std::string> without;
  for (int peer = 0; status.ok() && peer < size;) {
    const std::string key = absl::StrCat("room/", peer);
    absl::StatusOr<bool> known = store.Check(key);
    if (!known.ok()) return known.status();
    if (*known) {
      absl::StatusOr<std::string> said = store.Get(key);
      if (!said.ok()) return said.status();
      if (*said != kRoom) without.push_back(absl::StrCat("group rank ", peer, ": ", *said));
      ++peer;
      continue;
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("group rank ", peer, " did not come to share memory in time"));
    }
    absl::SleepFor(kPause);
    if (poll) status = poll();
  }
  if (!status.ok() || without.empty()) return status;
  return absl::ResourceExhaustedError(absl::StrJoin(without, "; "));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Arena>> OpenArena(KeyValueStore& store, int rank, int size,
                                                       int64_t bytes, absl::Time deadline,
                                                       const MeetingPoll& poll) {
  if (absl::Status room = AgreeOnRoom(store, rank, size, bytes, deadline, poll); !room.ok()) {
    return room;
  }
  const int64_t pages = (bytes + kPage - 1) / kPage * kPage;
  const Geometry geometry(size, /*slots=*/1, pages, /*ring_bytes=*/0);
  TrackedFd fd;
  absl::StatusOr<std::unique_ptr<Peers>> peers =
      Peers::Connect(store, rank, geometry, deadline, poll, &fd);
  if (!peers.ok()) return peers.status();
  auto arena = std::make_shared<Arena>();
  arena->rank = rank;
  arena->bytes = bytes;
  for (int peer = 0; peer < size; ++peer) {
    arena->bases.push_back(geometry.slot((*peers)->base(peer), 0));
  }
  // The mappings alone: who dies is seen by the connections of the data context.
  arena->memory = std::make_shared<const std::vector<Segment>>((*peers)->segments());
  const auto offset = static_cast<size_t>(arena->bases[static_cast<size_t>(rank)] - (*peers)->base(rank));
  arena->take_away = [own = (*peers)->segments()[static_cast<size_t>(rank)], offset, bytes,
                      fd = std::make_shared<const TrackedFd>(std::move(fd))] {
    const absl::Status parted = own.Part(fd->get(), offset, static_cast<size_t>(bytes));
    ABSL_LOG_IF(ERROR, !parted.ok())
        << "leaves in shared memory whose all_reduce failed may still be written by "
           "ranks that have not ended it: " << parted;
  };
  return arena;
}

}  // namespace leafpack::shm
