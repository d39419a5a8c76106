// What a group's control channel learns of ranks that are gone, for layers that have connections of
// their own: a rank that died before it made one is known to the channel alone.
#ifndef LEAFPACK_DISTRIBUTED_CORE_LOST_RANKS_H_
#define LEAFPACK_DISTRIBUTED_CORE_LOST_RANKS_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace leafpack {

// Grows only. Thread-safe; nobody waits under its lock.
class LostRanks {
 public:
  struct Loss {
    int rank = 0;  // in the group
    std::string why;
  };

  // A rank that is there already changes nothing.
  void Add(int rank, std::string_view why) {
    absl::MutexLock lock(&mutex_);
    for (const Loss& loss : losses_) {
      if (loss.rank == rank) return;
    }
    losses_.push_back({rank, std::string(why)});
    count_.store(losses_.size(), std::memory_order_release);
  }
  size_t count() const { return count_.load(std::memory_order_acquire); }
  // Those behind the first `known`, in the order in which they were learnt.
  std::vector<Loss> After(size_t known) const {
    absl::MutexLock lock(&mutex_);
    if (known >= losses_.size()) return {};
    return {losses_.begin() + static_cast<std::ptrdiff_t>(known), losses_.end()};
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<Loss> losses_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

// The engine of a group of two or more ranks is one.
class KnowsLostRanks {
 public:
  virtual ~KnowsLostRanks() = default;
  // Opens the control channel if no call did so far. Never blocks.
  virtual std::shared_ptr<const LostRanks> WatchLostRanks() = 0;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_LOST_RANKS_H_
