// What keeps a forked child away from the channel of its parent.
//
// A child that keeps a copy of a socket hides the death of its parent from the peers, and a child that
// writes to one would break the parent's stream. So every descriptor of the channel is owned by a
// TrackedFd, and a handler of pthread_atfork closes them all in the child and raises the fork
// generation. Code that starts processes by exec is covered by CLOEXEC.
//
// A group remembers ForkGeneration() when it is made; a call on it in another generation is
// FailedPrecondition (ForkedError). This test must come before any lock of the group is taken: in the
// child a mutex may be held by a thread that does not exist there.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_FORK_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_FORK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace leafpack {

// 0 in the first process, one more in every child. Never takes a lock.
uint64_t ForkGeneration();

// The error of a call on a group that was made before the fork, in the child.
absl::Status ForkedError();

// Owns one descriptor that must not live on in a forked child. Move-only; one thread at a time.
class TrackedFd {
 public:
  TrackedFd() = default;
  ~TrackedFd() { Close(); }
  TrackedFd(TrackedFd&& other) noexcept;
  TrackedFd& operator=(TrackedFd&& other) noexcept;

  // Runs `open`, which returns a descriptor (CLOEXEC) or -1 with errno, and takes ownership of the
  // result. No fork can come between the two. `open` must not block, fork or touch a TrackedFd.
  // errno is kept.
  static TrackedFd Open(absl::FunctionRef<int()> open);

  // -1 when empty, and in a child forked since Open: the number may mean another file there.
  int get() const;
  bool valid() const { return get() >= 0; }
  // Closes the descriptor (no shutdown: other holders keep the connection). Idempotent.
  void Close();

 private:
  int fd_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_FORK_H_
