// One connection of the control channel: a non-blocking stream socket (Unix or TCP) with a queue of
// records before it.
//
// A Link may exist before its connection does: records queue until Attach. Records go out in order,
// each as soon as the socket takes it. A failed write does not end reading: bytes that a peer sent
// before its death are delivered before its hang-up is.
//
// Between processes of one host records may take a Lane, shared memory beside the socket. The socket then
// carries frames: 4 bytes of length, in the host's byte order, and as many bytes. Length 0 wakes a reader that sleeps;
// 2^32 - 1 says that the stream goes on in the lane; a detour's mark in the lane, that it goes on in the
// socket. Each direction begins in the socket.
//
// Not thread-safe: the owner's mutex guards a Link. Nothing here blocks.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_LINK_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_LINK_H_

#include <cstddef>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/lane.h"

namespace leafpack {

struct LinkOptions {
  // Bytes that may wait for the socket: a whole description of differences and a full window of posts.
  size_t max_queued_bytes = size_t{72} << 20;
};

class Link {
 public:
  // Numbers the records given to Send: 1, 2, 3, ...
  using SendId = uint64_t;

  enum class ReadState {
    kDrained,  // the socket is empty for now; a hang-up right behind its last bytes shows next time
    kMore,     // the sink or the byte limit stopped the read; there may be more
    kHungUp,   // every byte before the end was delivered; nothing will follow. See hang_up_reason()
  };

  // Delivers bytes in order, as many as there are. Returns false to stop (bytes count as consumed).
  using Sink = absl::FunctionRef<bool(absl::Span<const char> bytes)>;

  explicit Link(LinkOptions options = {}) : options_(options) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Gives the link its connected, non-blocking socket and sends what is queued as far as it goes.
  // Called once. A write error shows later, in Send or read.
  void Attach(TrackedFd fd);
  // The same for a Unix socket on which a lane was offered. `lane` is null where this side could not open
  // it; the peer, which knows whether it could, must use this too.
  void AttachWithLane(TrackedFd fd, std::unique_ptr<Lane> lane);

  // Sends `parts` as one record: at once as far as the socket takes it, the rest is queued. Returns the
  // record's number. Unavailable once writing failed (known by an earlier Send or Flush, or by this
  // one if nothing was queued) or the link is closed; ResourceExhausted when the
  // queue would pass its bound (the record is not queued then, not even in part, unless its first
  // bytes have left: then it is queued in spite of the bound).
  absl::StatusOr<SendId> Send(absl::Span<const std::string_view> parts);
  absl::StatusOr<SendId> Send(std::string_view record);

  // True once a byte of the record may have left the process, or the record was dropped by an error.
  bool HasBegun(SendId id) const;

  // Sends queued bytes as far as the socket takes them. Unavailable when writing failed (once known,
  // always); the queue is dropped then. OK does not mean that the queue is empty.
  absl::Status Flush();

  // Reads until the socket is empty, the peer has hung up, the sink stops, or `max_bytes` were read.
  // `scratch` is the buffer to read into (not empty; 64 KiB serves well). Bytes that follow a write
  // error are still delivered. kDrained when there is no connection yet.
  ReadState ReadAvailable(absl::Span<char> scratch, Sink sink, size_t max_bytes = size_t{4} << 20);

  // With a lane: says whether the owner sleeps on the descriptor. Only then the peer's records make it readable;
  // otherwise ReadAvailable must be called again and again. True: there is something to read already, so do not
  // sleep. Asleep at first. Without a lane nothing happens.
  bool SetAsleep(bool asleep);
  bool has_lane() const { return lane_ != nullptr; }

  // Closes the socket and drops the queue; further reads give kHungUp. Idempotent. Queued bytes that
  // the kernel took are still delivered to the peer.
  void Close();

  bool attached() const { return attached_; }
  // -1 when not attached, closed, or in a forked child.
  int fd() const { return fd_.get(); }
  // Bytes wait for the socket: ask for POLLOUT and call Flush.
  bool wants_write() const { return attached_ && queued_bytes_ > 0; }
  size_t queued_bytes() const { return queued_bytes_; }
  // True after the read side ended. Writing may have failed before. The descriptor stays readable
  // (for poll and epoll) until Close.
  bool hung_up() const { return hung_up_; }
  // Why the peer is gone ("the peer closed the connection", "Connection reset by peer", ...); empty
  // before a failure.
  const std::string& hang_up_reason() const { return reason_; }

 private:
  struct Queued {
    std::string bytes;  // what is still to be sent
    size_t offset = 0;  // bytes of it that have left
    bool begun = false;
  };

  void FailWriting(int error);
  // Sends once; returns bytes taken (0: would block), or -1 after FailWriting.
  ssize_t SendSome(absl::Span<const std::string_view> parts);
  // Sends a frame that has a length only. False when the socket takes nothing or fails.
  bool SendMark(uint32_t length);
  // Sends a record by the lane. False: it must go by the socket.
  bool SendByLane(absl::Span<const std::string_view> parts, size_t size);
  // Takes bytes of a socket that carries frames: what belongs to records goes to the sink. False when it stops.
  bool TakeFramed(absl::Span<const char> bytes, Sink sink);
  ReadState ReadLane(Sink sink, size_t max_bytes, size_t& total);
  ReadState HangUp(std::string_view reason);

  LinkOptions options_;
  TrackedFd fd_;
  bool attached_ = false;
  bool hung_up_ = false;
  bool write_failed_ = false;
  std::string reason_;
  SendId next_id_ = 1;       // the queue holds next_id_ - queue_.size() .. next_id_ - 1
  std::deque<Queued> queue_;
  size_t queued_bytes_ = 0;  // without what has left

  bool framed_ = false;
  std::unique_ptr<Lane> lane_;
  bool sends_by_lane_ = false;
  bool reads_from_lane_ = false;
  bool socket_ended_ = false;   // what the lane holds still comes
  int quiet_reads_ = 0;         // of an empty lane since the socket was read
  char frame_header_[4];        // of the frame that is being read
  size_t header_bytes_ = 0;     // of it that are there
  size_t frame_left_ = 0;       // bytes of the frame that are still to come
  std::string lane_rest_;       // of a record that wraps, where the sink stopped
  std::string behind_;          // read from the socket, to be taken after a part of the lane
};

// Sets what every socket of the channel has: TCP_NODELAY, keepalive (5 s idle, then 5 probes 1 s
// apart) and TCP_USER_TIMEOUT 10 s for TCP; nothing for Unix sockets. Errors are ignored.
void SetChannelSocketOptions(int fd);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_LINK_H_
