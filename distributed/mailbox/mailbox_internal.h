// What the files of the mailbox share. For this folder only.
#ifndef LEAFPACK_DISTRIBUTED_MAILBOX_MAILBOX_INTERNAL_H_
#define LEAFPACK_DISTRIBUTED_MAILBOX_MAILBOX_INTERNAL_H_

#include <cstddef>
#include <cstdint>

namespace leafpack::mailbox {

// Nanoseconds of the steady clock.
int64_t SteadyNow();

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr size_t kReadBufferBytes = size_t{256} << 10;
inline constexpr size_t kScratchBytes = size_t{64} << 10;

// What the mailbox's epoll instance watches: the kind in the upper half, an index in the lower.
enum class Watched : uint32_t { kListener = 1, kBook, kUnproven, kAttempt, kOut, kIn };
constexpr uint64_t What(Watched kind, uint64_t index) {
  return static_cast<uint64_t>(kind) << 32 | index;
}

}  // namespace leafpack::mailbox

#endif  // LEAFPACK_DISTRIBUTED_MAILBOX_MAILBOX_INTERNAL_H_
