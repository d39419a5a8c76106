#include "distributed/core/channel/lane.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

namespace leafpack {
namespace {

// A record is 8 bytes that say how long it is, its bytes, and bytes up to the next multiple of 8, so
// that what says the length never wraps.
constexpr uint64_t kHeaderBytes = 8;
constexpr uint64_t kDetourMark = ~uint64_t{0};
static_assert(Lane::kCapacity % kHeaderBytes == 0);

uint64_t Padded(uint64_t bytes) { return (bytes + kHeaderBytes - 1) / kHeaderBytes * kHeaderBytes; }

}  // namespace

// Lines of their own for what each side writes.
struct Lane::Direction {
  alignas(64) std::atomic<uint64_t> filled{0};  // by the writer
  alignas(64) std::atomic<uint64_t> freed{0};   // by the reader
  alignas(64) std::atomic<uint32_t> asleep{1};  // by the reader
};

struct Lane::Memory {
  Direction from_maker;
  Direction to_maker;
  alignas(64) std::atomic<uint32_t> peer_is_in{0};
  alignas(64) char bytes[2 * kCapacity];
};

Lane::Lane(Segment segment, bool maker) : segment_(std::move(segment)), maker_(maker) {}

Lane::Memory& Lane::memory() const {
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
  return *std::launder(reinterpret_cast<Memory*>(segment_.data()));
}
Lane::Direction& Lane::out() const { return maker_ ? memory().from_maker : memory().to_maker; }
Lane::Direction& Lane::in() const { return maker_ ? memory().to_maker : memory().from_maker; }
char* Lane::out_bytes() const { return memory().bytes + (maker_ ? 0 : kCapacity); }
const char* Lane::in_bytes() const { return memory().bytes + (maker_ ? kCapacity : 0); }

absl::StatusOr<Lane::Made> Lane::Make() {
  absl::StatusOr<Segment::Created> created = Segment::Create(sizeof(Memory));
  if (!created.ok()) return created.status();
  new (created->segment.data()) Memory;
  Made made;
  made.lane.reset(new Lane(std::move(created->segment), /*maker=*/true));
  made.fd = std::move(created->fd);
  return made;
}

absl::StatusOr<std::unique_ptr<Lane>> Lane::Open(const TrackedFd& fd) {
  absl::StatusOr<Segment> segment = Segment::Map(fd.get(), sizeof(Memory));
  if (!segment.ok()) return segment.status();
  std::unique_ptr<Lane> lane(new Lane(*std::move(segment), /*maker=*/false));
  lane->memory().peer_is_in.store(1, std::memory_order_release);
  return lane;
}

size_t Lane::MemoryBytes() { return sizeof(Memory); }

bool Lane::PeerIsIn() const { return !maker_ || memory().peer_is_in.load(std::memory_order_acquire) != 0; }

bool Lane::Write(absl::Span<const std::string_view> parts) {
  uint64_t size = 0;
  for (const std::string_view part : parts) size += part.size();
  // The room of a detour's mark is never given away.
  const uint64_t needed = kHeaderBytes + Padded(size) + kHeaderBytes;
  if (needed > kCapacity) return false;
  if (needed > kCapacity - (written_ - freed_)) {
    freed_ = out().freed.load(std::memory_order_acquire);
    if (needed > kCapacity - (written_ - freed_)) return false;
  }
  char* const bytes = out_bytes();
  std::memcpy(bytes + written_ % kCapacity, &size, kHeaderBytes);
  uint64_t at = (written_ + kHeaderBytes) % kCapacity;
  for (std::string_view part : parts) {
    const size_t head = std::min<size_t>(part.size(), kCapacity - at);
    if (head > 0) std::memcpy(bytes + at, part.data(), head);
    if (head < part.size()) std::memcpy(bytes, part.data() + head, part.size() - head);
    at = (at + part.size()) % kCapacity;
  }
  written_ += kHeaderBytes + Padded(size);
  out().filled.store(written_, std::memory_order_release);
  return true;
}

void Lane::WriteDetour() {
  std::memcpy(out_bytes() + written_ % kCapacity, &kDetourMark, kHeaderBytes);
  written_ += kHeaderBytes;
  out().filled.store(written_, std::memory_order_release);
}

bool Lane::IsEmpty() const { return out().freed.load(std::memory_order_acquire) == written_; }

bool Lane::PeerSleeps() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return out().asleep.load(std::memory_order_relaxed) != 0;
}

Lane::Next Lane::Peek(absl::Span<const char>& first, absl::Span<const char>& second) {
  if (read_ == filled_) {
    filled_ = in().filled.load(std::memory_order_acquire);
    if (read_ == filled_) return Next::kNothing;
  }
  const uint64_t held = filled_ - read_;
  if (held > kCapacity || held < kHeaderBytes) return Next::kBroken;
  const char* const bytes = in_bytes();
  uint64_t size;
  std::memcpy(&size, bytes + read_ % kCapacity, kHeaderBytes);
  if (size == kDetourMark) {
    next_read_ = read_ + kHeaderBytes;
    Release();
    return Next::kDetour;
  }
  if (size > held - kHeaderBytes || Padded(size) > held - kHeaderBytes) return Next::kBroken;
  const uint64_t at = (read_ + kHeaderBytes) % kCapacity;
  const uint64_t head = std::min(size, kCapacity - at);
  first = {bytes + at, head};
  second = {bytes, size - head};
  next_read_ = read_ + kHeaderBytes + Padded(size);
  return Next::kRecord;
}

void Lane::Release() {
  read_ = next_read_;
  in().freed.store(read_, std::memory_order_release);
}

bool Lane::SetAsleep(bool asleep) {
  in().asleep.store(asleep ? 1 : 0, std::memory_order_relaxed);
  if (!asleep) return false;
  // As PeerSleeps: either the writer sees the flag, or its record is seen here.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return in().filled.load(std::memory_order_relaxed) != read_;
}

}  // namespace leafpack
