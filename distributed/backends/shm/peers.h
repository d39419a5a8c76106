// How the ranks of one host come to share their segments, and how one notices that another has died.
//
// Every rank listens on a Unix name of random bits, publishes it with a token in the store, and hands
// its segment (as a descriptor) to every other rank over a connection of their own. That a rank can be
// reached this way, and that the word that it says stands in its segment is read there, is the proof that both
// share memory: no host name is compared, and containers that share neither fall back. The connections
// stay open: their hang-up tells of a death.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PEERS_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PEERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/backends/shm/geometry.h"
#include "distributed/core/channel/segment.h"
#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/key_value_store.h"

namespace leafpack::shm {

using MeetingPoll = std::function<absl::Status()>;

// The segments of all ranks, mapped here. Thread-safe once made.
class Peers {
 public:
  // Collective over `geometry.ranks()` ranks that use `store` (for this meeting alone). All ranks get
  // the same kind of answer:
  //   FailedPrecondition  some ranks do not share memory; the text names them and says why
  //   ResourceExhausted   a rank could not have its memory; the text names it
  //   DeadlineExceeded    not all ranks came by `deadline`; the text names those that are missing
  //   Unavailable         a rank died meanwhile, or the store failed
  // `poll` is asked every few milliseconds; an error of it ends this rank's part with that error.
  // `own_fd`, if not null, takes the descriptor of this rank's own segment, which is closed otherwise.
  static absl::StatusOr<std::unique_ptr<Peers>> Connect(KeyValueStore& store, int rank,
                                                        const Geometry& geometry,
                                                        absl::Time deadline,
                                                        const MeetingPoll& poll = nullptr,
                                                        TrackedFd* own_fd = nullptr);

  // All ranks in this process, at the same addresses, without connections: for tests of what is
  // built on this, under tsan too. Element r is rank r's.
  static absl::StatusOr<std::vector<std::unique_ptr<Peers>>> InProcess(const Geometry& geometry);

  int rank() const { return rank_; }
  int size() const { return geometry_.ranks(); }
  const Geometry& geometry() const { return geometry_; }

  // By rank; they may outlive this object.
  const std::vector<Segment>& segments() const { return segments_; }
  char* base(int rank) const { return segments_[static_cast<size_t>(rank)].data(); }
  Progress& progress(int rank) const { return geometry_.progress(base(rank)); }
  Bed& bed(int rank) const { return geometry_.bed(base(rank)); }

  // Ranks whose connection hung up: they died, or let go of their Peers. What they wrote before is
  // seen by whoever reads after this call. Never blocks.
  std::vector<int> Gone() const;

 private:
  friend class Meeting;
  Peers(int rank, const Geometry& geometry) : rank_(rank), geometry_(geometry) {
    segments_.resize(static_cast<size_t>(geometry.ranks()));
    sockets_.resize(static_cast<size_t>(geometry.ranks()));
  }

  const int rank_;
  const Geometry geometry_;
  std::vector<Segment> segments_;
  std::vector<TrackedFd> sockets_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PEERS_H_
