// Messages between the ranks of one data context over c10d's ProcessGroupGloo. The seam at which
// c10d's and Gloo's exceptions become absl::Status; nothing above it throws.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_LINK_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"

namespace c10d {
class ProcessGroupGloo;
class Work;
}  // namespace c10d

namespace leafpack::gloo_internal {

// A message under way. Dropping it before Wait returned loses the message.
class Message {
 public:
  Message();
  Message(Message&&) noexcept;
  Message& operator=(Message&&) noexcept;
  ~Message();

 private:
  friend class GlooLink;
  c10::intrusive_ptr<c10d::Work> work_;
  int peer_ = -1;
};

class GlooLink {
 public:
  // Tags of all-reduces are below this.
  static constexpr uint32_t kTagLimit = 1u << 30;
  // The tag of all messages of exchanges. Abort uses kTagLimit itself.
  static constexpr uint32_t kExchangeTag = kTagLimit + 1;

  // Connects all ranks of `options`; collective. DeadlineExceeded when not all are there by
  // `deadline`, InvalidArgument for an interface that does not exist (names those that do).
  static absl::StatusOr<std::unique_ptr<GlooLink>> Connect(const DataContextOptions& options,
                                                           absl::Time deadline);
  // Takes about 10 ms: connections are closed. No message is under way, or Abort was called.
  ~GlooLink();

  // Starts a message of `bytes` > 0 to or from `peer`. The memory must live until Wait returned, or
  // until Abort did and all messages are dropped. Messages match by peer and tag, those of one tag
  // in order. Both sides must give the same size. Thread-safe.
  absl::Status Send(int peer, uint32_t tag, const void* data, int64_t bytes, Message* message);
  absl::Status Receive(int peer, uint32_t tag, void* data, int64_t bytes, Message* message);

  // Waits for the message. Unavailable when the peer is gone, Cancelled after Abort,
  // DeadlineExceeded after the context's own timeout; the link takes no more messages after any of
  // these.
  absl::Status Wait(Message& message);

  // Ends every message, waiting ones too, within about 20 ms. Idempotent, thread-safe.
  void Abort();

 private:
  GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, const DataContextOptions& options);
  // What an exception of c10d means.
  absl::Status StatusOfText(const std::string& text, int peer) const;

  const absl::Duration timeout_;
  std::atomic<bool> aborted_{false};
  // c10d counts messages without a lock.
  absl::Mutex post_mutex_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_ ABSL_PT_GUARDED_BY(post_mutex_);
  // Works in Wait: Abort ends them one by one.
  absl::Mutex wait_mutex_;
  std::vector<c10::intrusive_ptr<c10d::Work>> waiting_ ABSL_GUARDED_BY(wait_mutex_);
};

}  // namespace leafpack::gloo_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_LINK_H_
