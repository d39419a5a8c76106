// The handle of an asynchronous collective on a tree.
#ifndef LEAFPACK_DISTRIBUTED_TREE_TREE_WORK_H_
#define LEAFPACK_DISTRIBUTED_TREE_TREE_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "distributed/core/engine.h"
#include "distributed/tree/trees.h"

namespace leafpack {

// Where the time of a collective went, seconds on this rank's clock. Phases of different buckets
// overlap, so they may add up to more than `total`.
struct CollectiveStats {
  double prepare = 0;      // flatten, check, plan (near zero on a tree that was planned before)
  double agree = 0;        // until the ranks had agreed
  double pack = 0;         // copies into buckets
  double communicate = 0;  // waiting for the backend
  double unpack = 0;       // copies back
  double total = 0;
  int64_t leaves = 0;      // tensors that took part
  int64_t skipped = 0;     // leaves that are no tensors: compared, not reduced
  int64_t bytes = 0;       // of this rank's leaves that take part
  int64_t buckets = 0;     // messages; 0 when the tree rode with its digest
};
using AllReduceStats = CollectiveStats;

namespace internal {
class TreeWorkState;
}

// One message of a collective, seen from its TreeWork.
class BucketWork {
 public:
  int64_t bytes() const;
  std::vector<std::string> paths() const;  // printable, in wire order
  bool IsDone() const;                     // true when its leaves hold their result or it failed
  absl::Status Wait(absl::Duration timeout = absl::InfiniteDuration(),
                    const InterruptCheck& interrupt = nullptr) const;

 private:
  friend class TreeWork;
  BucketWork(std::shared_ptr<internal::TreeWorkState> state, size_t index)
      : state_(std::move(state)), index_(index) {}
  std::shared_ptr<internal::TreeWorkState> state_;
  size_t index_;
};

// Handle semantics; thread-safe. A handle that is dropped without Wait does not end the call: it is
// finished in the background, and an error is returned by the group's next call.
class TreeWork {
 public:
  // Returns when all leaves hold their result, or with the call's error (again at each Wait).
  // `timeout` bounds this wait only: DeadlineExceeded then says that the call still runs. The call
  // itself ends by its own deadline. `interrupt` true gives the call up.
  absl::Status Wait(absl::Duration timeout = absl::InfiniteDuration(),
                    const InterruptCheck& interrupt = nullptr) const;
  // True when Wait would not block. Never blocks.
  bool IsDone() const;
  // Asks to give the call up; Wait then tells what became of it.
  void Cancel() const;

  // Messages of the collective. Empty for a tree that rides with its digest: such a call has
  // no messages of its own.
  size_t size() const;
  BucketWork bucket(size_t index) const;

  // Printable paths of the leaves that are no tensors, in canonical order: the ranks agreed that their
  // values are equal, and they are left as they are. Where trees are moved they travel with new trees.
  std::vector<std::string> skipped_paths() const;

  // After Wait.
  CollectiveStats stats() const;
  // What the synchronous call returns. After Wait returned OK; empty before. Valid while a handle of
  // this call lives.
  const TreeResult& result() const;

 private:
  friend class internal::TreeWorkState;
  explicit TreeWork(std::shared_ptr<internal::TreeWorkState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::TreeWorkState> state_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_TREE_WORK_H_
