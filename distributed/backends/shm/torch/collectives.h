// The collectives of a group of torch.distributed, in the order in which they were called: before data
// moves, every rank tells all others what it calls and with how many bytes.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_COLLECTIVES_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_COLLECTIVES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "distributed/backends/shm/shared_memory.h"
#include "distributed/backends/shm/torch/runner.h"
#include "distributed/core/backend.h"

namespace leafpack::shm {

enum class Collective : uint8_t {
  kAllReduce = 1, kReduce, kReduceScatter, kBroadcast, kAllGather, kGather, kScatter, kAllToAll,
  kBarrier,
};

struct Call : Job {
  // What must be equal on all ranks.
  Collective kind = Collective::kBarrier;
  ReduceOpKind op = ReduceOpKind::kSum;  // of those that reduce
  at::ScalarType dtype = at::ScalarType::Undefined;
  int root = -1;
  uint64_t bytes = 0;   // of those that reduce
  uint64_t layout = 0;  // a hash of further things
  // Bytes to and from each rank, the own one too; empty: none. What a sends to b, b must expect.
  std::vector<uint64_t> sends, receives;

  // Starts moving data; called once, when the ranks agreed, in the order of the calls. Null: nothing
  // to move.
  std::function<absl::StatusOr<std::unique_ptr<DataWork>>(SharedMemory&)> start;
  // Afterwards; may be null.
  std::function<absl::Status()> finish;

 private:
  friend class Collectives;
  enum class Phase : uint8_t { kNew, kAgreeing, kMoving };
  Phase phase = Phase::kNew;
  std::shared_ptr<std::vector<uint64_t>> headers;
  std::unique_ptr<DataWork> work;
};

// A call that the ranks disagree about fails with InvalidArgument on all of them, no memory changed; the
// next calls go on. Any other error (a dead rank, a deadline) is the end: all later calls fail too.
class Collectives : public Runner {
 public:
  explicit Collectives(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  void Add(std::shared_ptr<Call> call);

 protected:
  std::vector<Ended> Move(absl::Time until) override;
  void Abort() override;

 private:
  // OK(true) when `call` is over.
  absl::StatusOr<bool> Advance(Call& call, absl::Time until);
  absl::Status Begin(Call& call);
  absl::Status Compare(const Call& call) const;
  // What a header says, for a person.
  std::string Describe(const uint64_t* header) const;
  // Ranks whose header has not come.
  std::string Missing(const Call& call) const;

  size_t words() const { return 4 + 2 * static_cast<size_t>(memory_->size()); }

  const std::shared_ptr<SharedMemory> memory_;
  absl::Mutex queue_mutex_;
  std::deque<std::shared_ptr<Call>> queue_ ABSL_GUARDED_BY(queue_mutex_);
  uint64_t number_ = 0;  // of calls that began; whoever moves
  absl::Status broken_;  // whoever moves
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_COLLECTIVES_H_
