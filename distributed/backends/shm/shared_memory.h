// Collectives between ranks of one host over shared memory, on raw views of leaves. Needs a store to
// meet and nothing else: no group, no engine, no threads of its own.
//
//   ASSIGN_OR_RETURN(auto memory, shm::SharedMemory::Open(*store, rank, size, deadline));
//   ASSIGN_OR_RETURN(auto work, memory->AllReduce(std::move(views), ReduceOpKind::kSum));
//   while (true) {
//     ASSIGN_OR_RETURN(bool done, work->WaitFor(absl::Milliseconds(50)));
//     if (done) break;
//   }
//
// Operations are driven by who waits for them or asks IsDone: one thread at a time moves all that is
// under way. Several objects over the same ranks do not disturb each other.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_SHARED_MEMORY_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_SHARED_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/backends/shm/doorbell.h"
#include "distributed/backends/shm/operation.h"
#include "distributed/backends/shm/peers.h"
#include "distributed/backends/shm/pipes.h"
#include "distributed/backends/shm/reduce_stream.h"
#include "distributed/core/arena.h"
#include "distributed/core/backend.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::shm {

// The geometry that Open uses: about 8 MiB for each rank and object.
Geometry DefaultGeometry(int ranks);

class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  // Meets the other ranks; collective. `store` is for this meeting alone. Errors as Peers::Connect;
  // with FailedPrecondition all ranks know that some do not share memory, and may go another way.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Open(KeyValueStore& store, int rank,
                                                            int size, absl::Time deadline);
  // Over ranks that have met.
  static std::shared_ptr<SharedMemory> Make(std::unique_ptr<Peers> peers);

  int rank() const { return peers_->rank(); }
  int size() const { return peers_->size(); }

  // Starts the in-place reduction of `views` over all ranks: strided, of several dtypes, as many as
  // there are. Every dtype and op of CheckOpAllowed; kPremulSum is kSum. All ranks start the same
  // all-reduces (dtypes and numbers of elements; strides may differ) in the same order; from any thread. The
  // memory must not be touched until the work is over. Errors: what CheckOpAllowed says,
  // Unimplemented for memory of a device, and how this object failed if it did.
  // `arenas`: see ArenaContext::AllReduceShared, or empty.
  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      ReduceOpKind op,
                                                      std::vector<const Arena*> arenas = {});

  // Starts messages between pairs of ranks, see DataContext::Exchange. Here only the two ranks of a
  // pair need call: what a sends to b in its n-th call for b, b receives in its n-th for a.
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives);

  // Moves what can be moved, then waits until something moved, an operation was started, or `until`,
  // for about 20 ms at most. For who follows several operations at once and asks IsDone of each.
  void WaitForNews(absl::Time until);

  // Ends all operations with Cancelled at the next look of who drives them, within milliseconds.
  // Idempotent, any thread. Nothing can be started afterwards. Other ranks are not told.
  void Abort();

 private:
  class Work;
  explicit SharedMemory(std::unique_ptr<Peers> peers);

  absl::Status CheckArenas(absl::Span<const LeafView> views,
                           absl::Span<const Arena* const> arenas) const;
  // Drives until `operation` is over or `until` has passed.
  void WaitUntil(const Operation& operation, absl::Time until);
  // Whether it is over, after going as far as can be gone without waiting.
  bool IsDone(const Operation& operation);
  void Drive(const Operation& operation, absl::Time until);
  // One turn of the machines: false if nothing moved.
  bool Step();
  Want WaitsFor();
  Patience HowLong();
  // Ends everything if a rank died that is still needed.
  void LookForDead();
  void End(absl::Status status);
  absl::Status Failure();

  const std::unique_ptr<Peers> peers_;
  Doorbell doorbell_;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> waiters_{0};
  std::atomic<bool> ended_{false};  // failed_ is an error
  std::atomic<uint64_t> started_{0};  // operations, ever

  // Held while the machines move or are fed, never while `mutex_` is.
  absl::Mutex machines_mutex_;
  ReduceStream stream_ ABSL_GUARDED_BY(machines_mutex_);
  Pipes pipes_ ABSL_GUARDED_BY(machines_mutex_);
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_SHARED_MEMORY_H_
