#include "distributed/backends/shm/reduce_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "distributed/core/reduce/reduce.h"

namespace leafpack::shm {
namespace {

// Up to here a chunk is reduced whole by every rank: all ranks together read so many bytes.
constexpr int64_t kOneShotBytes = 256 << 10;
// What is reduced at a time, so that the result is still in the nearest cache when it is copied on.
constexpr int64_t kBlockBytes = 16 << 10;
// Steps before whoever drives looks whether it is to stop.
constexpr int kStepsAtOnce = 8;
// A piece of a leaf that stands together is reduced where it is, without a copy, from here on.
constexpr int64_t kDirectBytes = 1 << 10;
// A chunk that stands in an arena: so much, then whoever drives looks whether it is to stop.
constexpr int64_t kArenaChunkBytes = 8 << 20;

int64_t ElementBytes(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

}  // namespace

absl::Status DetachedError() {
  return absl::FailedPreconditionError(
      "the leaves were taken out of the memory that ranks share when an all_reduce of them failed");
}

std::vector<Chunk> CutIntoChunks(absl::Span<const LeafView> views, const Geometry& geometry,
                                 absl::Span<const Arena* const> arenas) {
  std::vector<Chunk> chunks;
  int64_t begin = 0;
  for (size_t i = 0; i < views.size();) {
    const at::ScalarType dtype = views[i].dtype;
    const auto arena_of = [&](size_t view) { return arenas.empty() ? nullptr : arenas[view]; };
    const Arena* arena = arena_of(i);
    int64_t bytes = 0;
    for (; i < views.size() && views[i].dtype == dtype && arena_of(i) == arena; ++i) {
      int64_t leaf = ElementBytes(dtype);
      for (const int64_t size : views[i].sizes) leaf *= size;
      bytes += leaf;
    }
    const bool one_shot = bytes * geometry.ranks() <= kOneShotBytes;
    // A copy of so little costs less than one more wait for the others.
    if (one_shot) arena = nullptr;
    const int64_t most = arena == nullptr ? geometry.slot_bytes() : kArenaChunkBytes;
    // Every chunk but the last is full: a multiple of the cache line, so of every element size.
    for (int64_t done = 0; done < bytes; done += most) {
      chunks.push_back({begin + done, std::min(bytes - done, most), dtype, one_shot, arena});
    }
    begin += bytes;
  }
  return chunks;
}

Slice SliceOf(const Chunk& chunk, int rank, int ranks) {
  constexpr int64_t kLine = static_cast<int64_t>(kCacheLine);
  const int64_t lines = (chunk.bytes + kLine - 1) / kLine;
  const auto begin = [&](int64_t r) { return std::min(lines * r / ranks * kLine, chunk.bytes); };
  return {begin(rank), begin(rank + 1) - begin(rank)};
}

void ReduceStream::Add(std::shared_ptr<Operation> operation, ViewBytes bytes,
                       std::vector<Chunk> chunks, ReduceOpKind op) {
  if (chunks.empty()) return operation->Finish(absl::OkStatus());
  const uint64_t first = end_;
  end_ += chunks.size();
  entries_.push_back({std::move(operation), std::move(bytes), std::move(chunks), op, first});
  while (PacksInArena()) Pack();  // the others need not wait until this one is driven
}

ReduceStream::Entry& ReduceStream::EntryOf(uint64_t number) {
  for (Entry& entry : entries_) {
    if (number < entry.end()) return entry;
  }
  return entries_.back();
}

uint64_t ReduceStream::StretchEnd(uint64_t number) {
  const Entry& entry = EntryOf(number);
  uint64_t end = number + 1;
  if (entry.chunk(number).arena == nullptr) return end;
  while (end < entry.end() && entry.chunk(end).arena != nullptr) ++end;
  return end;
}

std::optional<int> ReduceStream::Behind(Counter counter, uint64_t count) const {
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (peer == peers_.rank()) continue;
    if ((peers_.progress(peer).*counter).load(std::memory_order_acquire) < count) return peer;
  }
  return std::nullopt;
}

bool ReduceStream::PacksInArena() {
  return packed_ < end_ && EntryOf(packed_).chunk(packed_).arena != nullptr;
}

bool ReduceStream::CanPack() const {
  const uint64_t slots = static_cast<uint64_t>(peers_.geometry().slots());
  // The slot was used by a chunk that all must be through with.
  return packed_ < slots || !Behind(&Progress::drained, packed_ - slots + 1).has_value();
}

bool ReduceStream::Step() {
  if (entries_.empty()) return false;
  bool any = false;
  // The oldest first: what it leaves is still in the caches, and others wait for it. But for what costs nothing.
  for (int steps = 0; steps < kStepsAtOnce && !entries_.empty(); ++steps) {
    if (PacksInArena()) {
      Pack();
    } else if (DrainsNext() && !Behind(&Progress::reduced, StretchEnd(drained_)).has_value()) {
      if (absl::Status status = Drain(); !status.ok()) {
        Fail(status);
        return true;
      }
    } else if (reduced_ < packed_ && !Behind(&Progress::packed, reduced_ + 1).has_value()) {
      if (absl::Status status = Reduce(); !status.ok()) {
        Fail(status);
        return true;
      }
    } else if (packed_ < end_ && CanPack()) {
      Pack();
    } else {
      break;
    }
    any = true;
  }
  return any;
}

void ReduceStream::Pack() {
  const Entry& entry = EntryOf(packed_);
  const Chunk& chunk = entry.chunk(packed_);
  const uint64_t end = StretchEnd(packed_);
  char* slot = peers_.geometry().slot(peers_.base(peers_.rank()), packed_);
  if (chunk.arena != nullptr) {
    // Nothing to copy: from here on the others read and write their slices of the leaves.
  } else if (chunk.one_shot) {
    entry.bytes.Gather(chunk.begin, chunk.bytes, slot);
  } else {
    // The own slice stays in the leaves until it is reduced: two copies in place of one.
    const Slice own = SliceOf(chunk, peers_.rank(), peers_.size());
    const int64_t behind = own.begin + own.bytes;
    entry.bytes.Gather(chunk.begin, own.begin, slot);
    entry.bytes.Gather(chunk.begin + behind, chunk.bytes - behind, slot + behind);
  }
  packed_ = end;
  peers_.progress(peers_.rank()).packed.store(packed_, std::memory_order_release);
  doorbell_.Ring(Event::kPacked, packed_);
}

absl::Status ReduceStream::Reduce() {
  const Entry& entry = EntryOf(reduced_);
  const Chunk& chunk = entry.chunk(reduced_);
  const absl::Status status = chunk.arena != nullptr ? ReduceInArena(entry, chunk)
                              : chunk.one_shot       ? ReduceOneShot(entry, chunk)
                                                     : ReduceSlice(entry, chunk);
  if (!status.ok()) return status;
  const bool last = StretchEnd(reduced_) == reduced_ + 1;
  ++reduced_;
  if (!last) return absl::OkStatus();
  Progress& own = peers_.progress(peers_.rank());
  own.reduced.store(reduced_, std::memory_order_release);
  doorbell_.Ring(Event::kReduced, reduced_);
  return absl::OkStatus();
}

absl::Status ReduceStream::ReduceOneShot(const Entry& entry, const Chunk& chunk) {
  alignas(kCacheLine) char scratch[kBlockBytes];
  inputs_.resize(static_cast<size_t>(peers_.size()));
  // In the same blocks on all ranks, whatever their strides: which of two NaN is kept may depend on the
  // place in a block, and here every rank computes the result for itself.
  int64_t n = 0;
  for (int64_t done = 0; done < chunk.bytes; done += n) {
    n = std::min(kBlockBytes, chunk.bytes - done);
    const ViewBytes::Piece piece = entry.bytes.PieceAt(chunk.begin + done, n);
    const bool direct = piece.data != nullptr && piece.bytes == n;
    for (int rank = 0; rank < peers_.size(); ++rank) {
      inputs_[static_cast<size_t>(rank)] =
          peers_.geometry().slot(peers_.base(rank), reduced_) + done;
    }
    absl::Status status = ReduceInto(entry.op, chunk.dtype, inputs_, direct ? piece.data : scratch,
                                     n / ElementBytes(chunk.dtype));
    if (!status.ok()) return status;
    if (!direct) entry.bytes.Scatter(scratch, chunk.begin + done, n);
  }
  return absl::OkStatus();
}

absl::Status ReduceStream::ReduceSlice(const Entry& entry, const Chunk& chunk) {
  const Slice slice = SliceOf(chunk, peers_.rank(), peers_.size());
  const int64_t end = slice.begin + slice.bytes;
  inputs_.resize(static_cast<size_t>(peers_.size()));
  for (int64_t at = slice.begin; at < end;) {
    const int64_t most = std::min(kBlockBytes, end - at);
    const ViewBytes::Piece piece = entry.bytes.PieceAt(chunk.begin + at, most);
    const bool direct = piece.data != nullptr && piece.bytes >= kDirectBytes;
    const int64_t n = direct ? piece.bytes : most;
    for (int rank = 0; rank < peers_.size(); ++rank) {
      inputs_[static_cast<size_t>(rank)] =
          peers_.geometry().slot(peers_.base(rank), reduced_) + at;
    }
    char* result = peers_.geometry().slot(peers_.base(peers_.rank()), reduced_) + at;
    if (direct) {
      inputs_[static_cast<size_t>(peers_.rank())] = piece.data;
    } else {
      entry.bytes.Gather(chunk.begin + at, n, result);
    }
    absl::Status status =
        ReduceInto(entry.op, chunk.dtype, inputs_, result, n / ElementBytes(chunk.dtype));
    if (!status.ok()) return status;
    entry.bytes.Scatter(result, chunk.begin + at, n);
    at += n;
  }
  return absl::OkStatus();
}

absl::Status ReduceStream::ReduceInArena(const Entry& entry, const Chunk& chunk) {
  const Slice slice = SliceOf(chunk, peers_.rank(), peers_.size());
  const int64_t end = slice.begin + slice.bytes;
  inputs_.resize(static_cast<size_t>(peers_.size()));
  for (int64_t at = slice.begin; at < end;) {
    const ViewBytes::Piece piece = entry.bytes.PieceAt(chunk.begin + at, end - at);
    for (int64_t done = 0, n; done < piece.bytes; done += n) {
      n = std::min(kBlockBytes, piece.bytes - done);
      char* const own = piece.data + done;
      for (int rank = 0; rank < peers_.size(); ++rank) {
        inputs_[static_cast<size_t>(rank)] = chunk.arena->At(own, rank);
      }
      absl::Status status =
          ReduceInto(entry.op, chunk.dtype, inputs_, own, n / ElementBytes(chunk.dtype));
      if (!status.ok()) return status;
      for (int i = 1; i < peers_.size(); ++i) {
        const int peer = (peers_.rank() + i) % peers_.size();
        std::memcpy(chunk.arena->At(own, peer), own, static_cast<size_t>(n));
      }
    }
    at += piece.bytes;
  }
  return absl::OkStatus();
}

absl::Status ReduceStream::Drain() {
  const Entry& entry = EntryOf(drained_);
  const Chunk& chunk = entry.chunk(drained_);
  const uint64_t end = StretchEnd(drained_);
  if (chunk.arena != nullptr) {
    // Who reduced a slice has written it here too, unless an operation of an older context failed meanwhile.
    for (uint64_t number = drained_; number < end; ++number) {
      if (entry.chunk(number).arena->detached()) return DetachedError();
    }
  } else if (!chunk.one_shot) {
    for (int i = 1; i < peers_.size(); ++i) {
      // Each rank begins with another one.
      const int peer = (peers_.rank() + i) % peers_.size();
      const Slice slice = SliceOf(chunk, peer, peers_.size());
      entry.bytes.Scatter(peers_.geometry().slot(peers_.base(peer), drained_) + slice.begin,
                          chunk.begin + slice.begin, slice.bytes);
    }
  }
  drained_ = end;
  peers_.progress(peers_.rank()).drained.store(drained_, std::memory_order_release);
  doorbell_.Ring(Event::kDrained, drained_);
  FinishEntries();
  return absl::OkStatus();
}

void ReduceStream::FinishEntries() {
  while (!entries_.empty() && drained_ >= entries_.front().end()) {
    const std::shared_ptr<Operation> operation = std::move(entries_.front().operation);
    entries_.pop_front();
    operation->Finish(absl::OkStatus());
  }
}

Want ReduceStream::WaitsFor() {
  if (DrainsNext()) {
    const uint64_t count = StretchEnd(drained_);
    if (const auto peer = Behind(&Progress::reduced, count)) {
      return Want::Of(Event::kReduced, *peer, count);
    }
  } else if (reduced_ < packed_) {
    if (const auto peer = Behind(&Progress::packed, reduced_ + 1)) {
      return Want::Of(Event::kPacked, *peer, reduced_ + 1);
    }
  } else if (!CanPack()) {
    const uint64_t count = packed_ + 1 - static_cast<uint64_t>(peers_.geometry().slots());
    if (const auto peer = Behind(&Progress::drained, count)) {
      return Want::Of(Event::kDrained, *peer, count);
    }
  }
  return Want::Anything();  // it has come meanwhile
}

bool ReduceStream::bulky() const {
  return !entries_.empty() && !entries_.front().chunks.front().one_shot;
}

void ReduceStream::Fail(const absl::Status& status) {
  for (Entry& entry : entries_) {
    // A rank that was stopped may write the slices of this rank later, when they are the user's again.
    const Arena* seen = nullptr;
    for (const Chunk& chunk : entry.chunks) {
      if (chunk.arena == nullptr || chunk.arena == seen || entry.first >= packed_) continue;
      seen = chunk.arena;
      seen->Detach();
    }
    entry.operation->Finish(status);
  }
  entries_.clear();
}

}  // namespace leafpack::shm
