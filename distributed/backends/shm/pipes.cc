#include "distributed/backends/shm/pipes.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace leafpack::shm {
namespace {

// Bytes that are copied before the other side is told, so that both copy at the same time.
constexpr int64_t kPortion = 128 << 10;

}  // namespace

Pipes::Pipes(Peers& peers, Doorbell& doorbell)
    : peers_(peers), doorbell_(doorbell), pairs_(static_cast<size_t>(peers.size())) {}

void Pipes::Begin(std::shared_ptr<Operation> operation) {
  open_ = std::make_shared<Left>();
  open_->operation = std::move(operation);
}

void Pipes::Send(int peer, ViewBytes bytes) {
  if (bytes.size() == 0) return;
  ++open_->messages;
  pairs_[static_cast<size_t>(peer)].out.push_back({open_, std::move(bytes)});
}

void Pipes::Receive(int peer, ViewBytes bytes) {
  if (bytes.size() == 0) return;
  ++open_->messages;
  pairs_[static_cast<size_t>(peer)].in.push_back({open_, std::move(bytes)});
}

void Pipes::Commit() {
  if (open_->messages == 0) {
    open_->operation->Finish(absl::OkStatus());
  } else {
    left_.push_back(std::move(open_));
  }
  open_ = nullptr;
}

bool Pipes::Step() {
  if (left_.empty()) return false;
  bool any = false;
  for (int i = 1; i < peers_.size(); ++i) {
    const int peer = (peers_.rank() + i) % peers_.size();
    Pair& pair = pairs_[static_cast<size_t>(peer)];
    if (!pair.out.empty()) any = StepOut(peer, pair) || any;
    if (!pair.in.empty()) any = StepIn(peer, pair) || any;
  }
  return any;
}

bool Pipes::StepOut(int peer, Pair& pair) {
  const Geometry& geometry = peers_.geometry();
  const int64_t size = geometry.ring_bytes();
  const uint64_t read =
      geometry.read(peers_.base(peer), peers_.rank()).count.load(std::memory_order_acquire);
  const int64_t space = size - static_cast<int64_t>(pair.written - read);
  if (space == 0) return false;
  Message& message = pair.out.front();
  const int64_t at = static_cast<int64_t>(pair.written % static_cast<uint64_t>(size));
  const int64_t n = std::min({space, size - at, kPortion, message.bytes.size() - message.moved});
  message.bytes.Gather(message.moved, n, geometry.ring(peers_.base(peers_.rank()), peer) + at);
  message.moved += n;
  pair.written += static_cast<uint64_t>(n);
  geometry.written(peers_.base(peers_.rank()), peer)
      .count.store(pair.written, std::memory_order_release);
  doorbell_.RingOne(peer, Event::kRing);
  if (message.moved == message.bytes.size()) EndMessage(pair.out);
  return true;
}

bool Pipes::StepIn(int peer, Pair& pair) {
  const Geometry& geometry = peers_.geometry();
  const int64_t size = geometry.ring_bytes();
  const uint64_t written =
      geometry.written(peers_.base(peer), peers_.rank()).count.load(std::memory_order_acquire);
  const int64_t there = static_cast<int64_t>(written - pair.read);
  if (there == 0) return false;
  Message& message = pair.in.front();
  const int64_t at = static_cast<int64_t>(pair.read % static_cast<uint64_t>(size));
  const int64_t n = std::min({there, size - at, kPortion, message.bytes.size() - message.moved});
  message.bytes.Scatter(geometry.ring(peers_.base(peer), peers_.rank()) + at, message.moved, n);
  message.moved += n;
  pair.read += static_cast<uint64_t>(n);
  geometry.read(peers_.base(peers_.rank()), peer)
      .count.store(pair.read, std::memory_order_release);
  doorbell_.RingOne(peer, Event::kRing);
  if (message.moved == message.bytes.size()) EndMessage(pair.in);
  return true;
}

void Pipes::EndMessage(std::deque<Message>& queue) {
  const std::shared_ptr<Left> left = std::move(queue.front().left);
  queue.pop_front();
  if (--left->messages > 0) return;
  std::erase(left_, left);
  left->operation->Finish(absl::OkStatus());
}

bool Pipes::Needs(int peer) const {
  const Pair& pair = pairs_[static_cast<size_t>(peer)];
  return !pair.out.empty() || !pair.in.empty();
}

void Pipes::Fail(const absl::Status& status) {
  for (Pair& pair : pairs_) {
    pair.out.clear();
    pair.in.clear();
  }
  for (const std::shared_ptr<Left>& left : left_) left->operation->Finish(status);
  left_.clear();
}

}  // namespace leafpack::shm
