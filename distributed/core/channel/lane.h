// Shared memory beside a Unix socket of the control channel: a byte ring in each direction, so that ranks of one
// host agree without a system call.
//
// A Lane is one end. What is written shows in the peer's end in order; the socket stays what wakes a peer that
// sleeps and what tells that a peer is gone. A writer that finds no room marks the ring and goes on over the
// socket (Link does both, and says how it comes back). The memory has no name and goes with the last mapping; what a
// process wrote before it was killed can still be read.
//
// One thread at a time may use an end.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_LANE_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/segment.h"

namespace leafpack {

class Lane {
 public:
  // What one direction holds, with 8 bytes for each record: two frames of the largest size.
  static constexpr size_t kCapacity = size_t{160} << 10;

  // What both directions take; the last 2 * kCapacity bytes are the rings, the maker's first.
  static size_t MemoryBytes();

  // Makes the memory: the maker's end, and the descriptor for the peer. As Segment::Create.
  struct Made;
  static absl::StatusOr<Made> Make();
  // The peer's end. As Segment::Map.
  static absl::StatusOr<std::unique_ptr<Lane>> Open(const TrackedFd& fd);

  // Whether the peer has opened its end: what is written before that may never be read.
  bool PeerIsIn() const;

  // Writes `parts` as one record, or nothing and returns false when there is no room.
  bool Write(absl::Span<const std::string_view> parts);
  // Marks the place behind which the stream goes on over the socket. There is always room for it.
  void WriteDetour();
  // Everything that was written has been read.
  bool IsEmpty() const;
  // Whether the peer asks for a sign on the socket. Ordered behind what was written: either it sees that, or
  // this is true.
  bool PeerSleeps() const;

  enum class Next {
    kNothing,
    kRecord,  // `first` and `second` (it may wrap) hold it until Release
    kDetour,  // released already
    kBroken,  // no such thing can have been written: the peer is not one of ours, or mad
  };
  Next Peek(absl::Span<const char>& first, absl::Span<const char>& second);
  // Gives the room of the record that Peek showed back.
  void Release();

  // Says whether this end is to be woken over the socket. Returns whether there is something to read already, which nobody
  // will wake it for.
  bool SetAsleep(bool asleep);

 private:
  struct Direction;
  struct Memory;
  Lane(Segment segment, bool maker);
  Memory& memory() const;
  Direction& out() const;
  Direction& in() const;
  char* out_bytes() const;
  const char* in_bytes() const;

  Segment segment_;
  bool maker_;
  // Positions in bytes since the beginning; the ring has them modulo kCapacity.
  uint64_t written_ = 0;    // ours
  uint64_t freed_ = 0;      // as last seen
  uint64_t read_ = 0;       // ours
  uint64_t next_read_ = 0;  // behind what Peek showed
  uint64_t filled_ = 0;     // as last seen
};

struct Lane::Made {
  std::unique_ptr<Lane> lane;
  TrackedFd fd;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_LANE_H_
