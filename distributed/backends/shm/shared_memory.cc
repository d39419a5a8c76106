#include "distributed/backends/shm/shared_memory.h"

#include <algorithm>
#include <utility>

#include <c10/core/ScalarType.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/shm/view_bytes.h"

namespace leafpack::shm {
namespace {

constexpr int kSlots = 3;
constexpr int64_t kSlotBytes = 2 << 20;
// Of all rings that a rank writes to, together, within these bounds for each.
constexpr int64_t kRingsBytes = 2 << 20;
constexpr int64_t kLargestRing = 1 << 20;
constexpr int64_t kSmallestRing = 64 << 10;

}  // namespace

Geometry DefaultGeometry(int ranks) {
  const int64_t ring = std::clamp(kRingsBytes / std::max(ranks - 1, 1) / 4096 * 4096,
                                  kSmallestRing, kLargestRing);
  return Geometry(ranks, kSlots, kSlotBytes, ring);
}

class SharedMemory::Work : public DataWork {
 public:
  Work(std::shared_ptr<SharedMemory> memory, std::shared_ptr<Operation> operation)
      : memory_(std::move(memory)), operation_(std::move(operation)) {}

  bool IsDone() override { return memory_->IsDone(*operation_); }

  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    if (!operation_->done()) memory_->WaitUntil(*operation_, absl::Now() + slice);
    if (!operation_->done()) return false;
    if (!operation_->status().ok()) return operation_->status();
    return true;
  }

 private:
  const std::shared_ptr<SharedMemory> memory_;
  const std::shared_ptr<Operation> operation_;
};

SharedMemory::SharedMemory(std::unique_ptr<Peers> peers)
    : peers_(std::move(peers)),
      doorbell_(*peers_),
      stream_(*peers_, doorbell_),
      pipes_(*peers_, doorbell_) {}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Open(KeyValueStore& store, int rank,
                                                                 int size, absl::Time deadline) {
  absl::StatusOr<std::unique_ptr<Peers>> peers =
      Peers::Connect(store, rank, DefaultGeometry(size), deadline);
  if (!peers.ok()) return peers.status();
  return Make(*std::move(peers));
}

std::shared_ptr<SharedMemory> SharedMemory::Make(std::unique_ptr<Peers> peers) {
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(peers)));
}

absl::Status SharedMemory::CheckArenas(absl::Span<const LeafView> views,
                                       absl::Span<const Arena* const> arenas) const {
  if (!arenas.empty() && arenas.size() != views.size()) {
    return absl::InternalError(absl::StrCat(arenas.size(), " arenas for ", views.size(), " views"));
  }
  for (size_t i = 0; i < arenas.size(); ++i) {
    if (arenas[i] == nullptr) continue;
    const Arena& arena = *arenas[i];
    int64_t bytes = static_cast<int64_t>(c10::elementSize(views[i].dtype));
    for (const int64_t n : views[i].sizes) bytes *= n;
    const auto at = reinterpret_cast<uintptr_t>(views[i].data);
    const auto begin = reinterpret_cast<uintptr_t>(arena.bases[static_cast<size_t>(rank())]);
    const auto size = static_cast<uintptr_t>(arena.bytes);
    if (arena.rank != rank() || arena.bases.size() != static_cast<size_t>(this->size()) ||
        views[i].sizes.size() != 1 || views[i].strides[0] != 1 || at < begin ||
        at - begin > size || static_cast<uintptr_t>(bytes) > size - (at - begin)) {
      return absl::InternalError("a view does not stand in the arena that is said to have it");
    }
    if (arena.detached()) return DetachedError();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DataWork>> SharedMemory::AllReduce(
    std::vector<LeafView> views, ReduceOpKind op, std::vector<const Arena*> arenas) {
  at::ScalarType checked = at::ScalarType::Undefined;
  for (const LeafView& view : views) {
    if (view.dtype == checked) continue;
    if (absl::Status status = CheckOpAllowed(op, view.dtype); !status.ok()) return status;
    checked = view.dtype;
  }
  if (absl::Status status = Failure(); !status.ok()) return status;
  absl::StatusOr<ViewBytes> bytes = ViewBytes::Of(views);
  if (!bytes.ok()) return bytes.status();
  if (absl::Status status = CheckArenas(views, arenas); !status.ok()) return status;
  std::vector<Chunk> chunks = CutIntoChunks(views, peers_->geometry(), arenas);
  auto operation = std::make_shared<Operation>(std::move(views));
  {
    absl::MutexLock lock(&machines_mutex_);
    stream_.Add(operation, *std::move(bytes), std::move(chunks), op);
  }
  ++started_;
  doorbell_.RingSelf();  // who drives may be asleep
  return std::make_unique<Work>(shared_from_this(), std::move(operation));
}

absl::StatusOr<std::unique_ptr<DataWork>> SharedMemory::Exchange(std::vector<Transfer> sends,
                                                                 std::vector<Transfer> receives) {
  if (absl::Status status = Failure(); !status.ok()) return status;
  std::vector<LeafView> all;
  std::vector<std::pair<int, ViewBytes>> out, in;
  for (auto [transfers, messages] : {std::pair(&sends, &out), std::pair(&receives, &in)}) {
    for (Transfer& transfer : *transfers) {
      if (transfer.peer < 0 || transfer.peer >= size() || transfer.peer == rank()) {
        return absl::InternalError(absl::StrCat("an exchange of rank ", rank(), " with rank ",
                                                transfer.peer, " of ", size()));
      }
      absl::StatusOr<ViewBytes> bytes = ViewBytes::Of(transfer.views);
      if (!bytes.ok()) return bytes.status();
      messages->emplace_back(transfer.peer, *std::move(bytes));
      std::move(transfer.views.begin(), transfer.views.end(), std::back_inserter(all));
    }
  }
  auto operation = std::make_shared<Operation>(std::move(all));
  {
    absl::MutexLock lock(&machines_mutex_);
    pipes_.Begin(operation);
    for (auto& [peer, bytes] : out) pipes_.Send(peer, std::move(bytes));
    for (auto& [peer, bytes] : in) pipes_.Receive(peer, std::move(bytes));
    pipes_.Commit();
  }
  ++started_;
  doorbell_.RingSelf();
  return std::make_unique<Work>(shared_from_this(), std::move(operation));
}

void SharedMemory::Abort() { End(absl::CancelledError("the data context was aborted")); }

void SharedMemory::End(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!failed_.ok()) return;
    failed_ = std::move(status);
    ended_.store(true);
    changed_.SignalAll();
  }
  doorbell_.RingSelf();
}

absl::Status SharedMemory::Failure() {
  if (!ended_.load()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return failed_;
}

void SharedMemory::WaitUntil(const Operation& operation, absl::Time until) {
  ++waiters_;
  mutex_.Lock();
  while (!operation.done()) {
    if (!driving_) {
      driving_ = true;
      mutex_.Unlock();
      Drive(operation, until);
      mutex_.Lock();
      driving_ = false;
      changed_.SignalAll();
      if (absl::Now() >= until) break;
    } else if (changed_.WaitWithDeadline(&mutex_, until)) {
      break;
    }
  }
  mutex_.Unlock();
  --waiters_;
}

bool SharedMemory::IsDone(const Operation& operation) {
  if (operation.done()) return true;
  {
    absl::MutexLock lock(&mutex_);
    if (driving_) return false;
    driving_ = true;
  }
  Step();
  absl::MutexLock lock(&mutex_);
  driving_ = false;
  if (waiters_.load() > 0) changed_.SignalAll();
  return operation.done();
}

void SharedMemory::WaitForNews(absl::Time until) {
  const uint64_t seen = started_.load();
  ++waiters_;
  mutex_.Lock();
  if (driving_) {
    changed_.WaitWithDeadline(&mutex_, std::min(until, absl::Now() + Doorbell::kLook));
  } else {
    driving_ = true;
    mutex_.Unlock();
    const auto poll = [&] { return Step() || started_.load() != seen; };
    const auto want = [&] { return WaitsFor(); };
    if (!doorbell_.Wait(poll, want, HowLong(), until)) LookForDead();
    mutex_.Lock();
    driving_ = false;
    changed_.SignalAll();
  }
  mutex_.Unlock();
  --waiters_;
}

void SharedMemory::Drive(const Operation& operation, absl::Time until) {
  const auto poll = [&] { return Step() || operation.done(); };
  const auto want = [&] { return WaitsFor(); };
  while (!operation.done()) {
    const bool moved = doorbell_.Wait(poll, want, HowLong(), until);
    if (moved && waiters_.load() > 1) {
      // Somebody else's operation may be over.
      absl::MutexLock lock(&mutex_);
      changed_.SignalAll();
    }
    if (absl::Now() >= until) return;
    if (!moved) LookForDead();
  }
}

bool SharedMemory::Step() {
  if (ended_.load()) {
    const absl::Status status = Failure();
    absl::MutexLock lock(&machines_mutex_);
    stream_.Fail(status);
    pipes_.Fail(status);
    return true;
  }
  absl::MutexLock lock(&machines_mutex_);
  const bool reduced = stream_.Step();
  return pipes_.Step() || reduced;
}

Want SharedMemory::WaitsFor() {
  absl::MutexLock lock(&machines_mutex_);
  // With both under way either may have to go on for the other rank's sake.
  return pipes_.idle() && !stream_.idle() ? stream_.WaitsFor() : Want::Anything();
}

Patience SharedMemory::HowLong() {
  absl::MutexLock lock(&machines_mutex_);
  return stream_.bulky() || !pipes_.idle() ? Patience::kLong : Patience::kShort;
}

void SharedMemory::LookForDead() {
  for (const int peer : peers_->Gone()) {
    {
      absl::MutexLock lock(&machines_mutex_);
      // What it did before it died is seen here.
      while (stream_.Step() || pipes_.Step()) {
      }
      if (!stream_.Needs(peer) && !pipes_.Needs(peer)) continue;
    }
    // It may have left because of another one, whose death is not the news of this rank yet.
    int dead = peer;
    for (int hops = 0; hops < size(); ++hops) {
      const uint32_t blamed = peers_->bed(dead).blamed.load(std::memory_order_acquire);
      if (blamed == 0 || blamed > static_cast<uint32_t>(size())) break;
      dead = static_cast<int>(blamed) - 1;
    }
    peers_->bed(rank()).blamed.store(static_cast<uint32_t>(dead) + 1, std::memory_order_release);
    End(absl::UnavailableError(
        absl::StrCat("group rank ", dead, " is gone: its end of the shared memory was closed")));
    return;
  }
}

}  // namespace leafpack::shm
