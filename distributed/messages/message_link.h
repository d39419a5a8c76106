// Messages between pairs of ranks: what a backend must be able to do for the data contexts of this folder.
#ifndef LEAFPACK_DISTRIBUTED_MESSAGES_MESSAGE_LINK_H_
#define LEAFPACK_DISTRIBUTED_MESSAGES_MESSAGE_LINK_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace leafpack::messages {

// Bytes that lie in a row.
struct Run {
  char* data = nullptr;
  int64_t bytes = 0;
};

// A message under way. Dropping it before Wait returned loses the message.
class Message {
 public:
  virtual ~Message() = default;
};

// What suits a link. Equal on all ranks.
struct Schedule {
  // An all-reduce is cut into stages of so many bytes, over all ranks' parts.
  int64_t stage_bytes = 0;
  // One of no more bytes takes its small leaves in one stage: with more ranks than cores each stage costs
  // a round of waking them all.
  int64_t one_stage_bytes = 0;
  size_t active = 1;   // stages under way: what is received and not reduced stays below both's product
  size_t started = 1;  // of these, stages that are not reduced yet
  // Receives are posted before sends.
  bool receive_first = true;
  // A message may have many runs, of at least so many bytes each on average; else it is copied into one.
  // 0: a message has one run.
  int64_t min_run_bytes = 0;
};

class MessageLink {
 public:
  // Tags of all-reduces are below this.
  static constexpr uint32_t kTagLimit = 1u << 30;
  // The tag of all messages of exchanges.
  static constexpr uint32_t kExchangeTag = kTagLimit + 1;

  // No message is under way, or Abort was called.
  virtual ~MessageLink() = default;

  virtual const Schedule& schedule() const = 0;

  // Starts a message of at least one byte to or from `peer`. The memory of the runs must live until Wait
  // returned, or until Abort did and all messages are dropped. Messages match by peer and tag, those of
  // one tag in order. Both sides must give the same number of bytes, cut into runs as each likes.
  // Thread-safe.
  virtual absl::StatusOr<std::unique_ptr<Message>> Send(int peer, uint32_t tag,
                                                        absl::Span<const Run> runs) = 0;
  virtual absl::StatusOr<std::unique_ptr<Message>> Receive(int peer, uint32_t tag,
                                                           absl::Span<const Run> runs) = 0;

  // Waits for the message. Unavailable when the peer is gone, Cancelled after Abort, DeadlineExceeded
  // after the context's own timeout; the link takes no more messages after any of these.
  virtual absl::Status Wait(Message& message) = 0;

  // Ends every message, waiting ones too, within about 20 ms. Idempotent, thread-safe.
  virtual void Abort() = 0;
};

}  // namespace leafpack::messages

#endif  // LEAFPACK_DISTRIBUTED_MESSAGES_MESSAGE_LINK_H_
