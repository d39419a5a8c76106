// Messages between two ranks of a group of torch.distributed, matched by rank and tag.
//
// A message is a header (tag, bytes, dtype) and its bytes. A rank reads what a peer sent in order, as long
// as it has a receive that may match; what matches none that is posted is kept until one comes.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_MESSAGES_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_MESSAGES_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "distributed/backends/shm/shared_memory.h"
#include "distributed/backends/shm/torch/runner.h"
#include "distributed/core/backend.h"

namespace leafpack::shm {

struct Message : Job {
  bool is_send = false;
  int peer = -1;  // -1: a receive from any rank
  int64_t tag = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  uint64_t bytes = 0;
  std::vector<LeafView> views;

 private:
  friend class Messages;
  std::unique_ptr<DataWork> work;  // of a send
};

// A receive that fits its message badly (bytes or dtype) fails with InvalidArgument and the message is
// lost; one to which no message came fails with DeadlineExceeded; the rest goes on. Any other error is
// the end of all messages. `memory` is for this object alone.
class Messages : public Runner {
 public:
  explicit Messages(std::shared_ptr<SharedMemory> memory)
      : memory_(std::move(memory)), inboxes_(static_cast<size_t>(memory_->size())) {}

  void Add(std::shared_ptr<Message> message);

 protected:
  std::vector<Ended> Move(absl::Time until) override;
  void Abort() override;

 private:
  using Header = std::array<uint64_t, 3>;
  // A message without a receive.
  struct Stray {
    int peer;
    Header header;
    std::shared_ptr<std::vector<char>> bytes;
  };
  struct Inbox {
    std::unique_ptr<DataWork> work;  // of the header, then of the bytes
    std::shared_ptr<Header> header;
    bool has_header = false;
    std::shared_ptr<Message> target;           // where the bytes go, or
    std::shared_ptr<std::vector<char>> stray;  // they are kept, or
    bool drop = false;                         // lost
  };

  absl::Status Step(std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mutex_);
  // Reads the next header of each peer from which a receive is posted.
  absl::Status ReadHeaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mutex_);
  absl::Status TakeHeader(int peer, Inbox& inbox, std::vector<Ended>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mutex_);
  void TakeBytes(int peer, Inbox& inbox, std::vector<Ended>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mutex_);
  void Deliver(const Stray& stray, std::shared_ptr<Message> to, std::vector<Ended>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mutex_);
  // The first receive that matches, taken out of the list, or null.
  std::shared_ptr<Message> TakePosted(int peer, int64_t tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mutex_);
  absl::Status Fits(const Message& receive, int peer, const Header& header) const;
  static LeafView Bytes(std::shared_ptr<const void> keep_alive, void* data, size_t count);

  const std::shared_ptr<SharedMemory> memory_;
  absl::Mutex jobs_mutex_;
  std::vector<std::shared_ptr<Message>> sends_ ABSL_GUARDED_BY(jobs_mutex_);
  std::deque<std::shared_ptr<Message>> posted_ ABSL_GUARDED_BY(jobs_mutex_);
  std::deque<Stray> strays_ ABSL_GUARDED_BY(jobs_mutex_);
  std::vector<Inbox> inboxes_ ABSL_GUARDED_BY(jobs_mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(jobs_mutex_);
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_MESSAGES_H_
