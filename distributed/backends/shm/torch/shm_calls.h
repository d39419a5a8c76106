// How the calls of the backend "shm" become jobs. Internal: process_group_shm.cc is torch's face of it.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_SHM_CALLS_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_SHM_CALLS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/backends/shm/shared_memory.h"
#include "distributed/backends/shm/torch/collectives.h"
#include "distributed/backends/shm/torch/messages.h"
#include "distributed/backends/shm/torch/tensors.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::shm {

using TorchWork = c10::intrusive_ptr<c10d::Work>;

// What each rank gets from this one and gives to it: element p is for rank p.
struct Plan {
  explicit Plan(int size) : to(static_cast<size_t>(size)), from(static_cast<size_t>(size)) {}
  std::vector<Tensors> to, from;
};

// All methods throw c10::ValueError for what is wrong with their arguments, before anything is posted.
class ShmCalls : public c10d::Backend {
 protected:
  using OpType = c10d::OpType;

  ShmCalls(int rank, int size, std::shared_ptr<SharedMemory> collectives,
           std::shared_ptr<SharedMemory> messages, absl::Duration timeout);
  ~ShmCalls() override { Close(); }

  void Close();
  std::string Who() const;
  int Root(int64_t root) const;
  int Peer(int peer, const char* what) const;
  void CheckPerRank(size_t count, const char* what) const;
  absl::Time Deadline(std::chrono::milliseconds timeout) const;
  std::shared_ptr<Call> NewCall(Collective kind, std::chrono::milliseconds timeout, bool async) const;
  // Starts `call`; the tensors that it writes are `outputs`. What is not asynchronous is over then.
  TorchWork Launch(std::shared_ptr<Call> call, OpType type, const char* title, bool async,
                   Tensors outputs);
  TorchWork Post(OpType type, const char* title, const Tensors& tensors, int peer, int tag);
  // Fills in what ranks must agree on when they reduce `tensors`; returns the op.
  ReduceOp Reducing(Call& call, const c10d::ReduceOp& op, const Tensors& tensors,
                    const char* what) const;
  TorchWork AllReduce(OpType type, const char* title, const Tensors& tensors,
                      const c10d::AllreduceOptions& opts);
  // Moves what `plan` says. `typed` has the dtype that all ranks must have.
  TorchWork Exchange(std::shared_ptr<Call> call, Plan plan, OpType type, const char* title, bool async,
                     const Tensors& typed, Tensors outputs);
  static absl::StatusOr<std::unique_ptr<DataWork>> Move(const Plan& plan, size_t rank,
                                                        SharedMemory& memory);
  // The own parts must fit before anything is promised to the others.
  void CheckOwn(const Plan& plan, const char* what) const;
  TorchWork AllGather(OpType type, Plan plan, const Tensors& inputs, const Tensors& outputs,
                      const c10d::AllgatherOptions& opts);
  // Part `peer` of a tensor that holds one equal part for each rank.
  at::Tensor Part(const at::Tensor& whole, int peer) const;
  void CheckWhole(const at::Tensor& whole, const at::Tensor& part, const char* what) const;
  TorchWork GatherInto(OpType type, const Tensors& outputs, const Tensors& inputs,
                       const c10d::AllgatherOptions& opts);
  TorchWork ScatterFrom(OpType type, const Tensors& outputs, const Tensors& inputs,
                        const c10d::ReduceScatterOptions& opts);
  // Rank p gets the reduction of everybody's `parts[p]`, in the order of the ranks.
  TorchWork ReduceScatter(OpType type, const Tensors& outputs, std::vector<Tensors> parts,
                          const c10d::ReduceScatterOptions& opts);
  std::vector<Tensors> Split(const at::Tensor& tensor, const std::vector<int64_t>& splits) const;
  TorchWork AllToAll(OpType type, Plan plan, const Tensors& inputs, const Tensors& outputs,
                     const c10d::AllToAllOptions& opts);

  const std::shared_ptr<Collectives> collectives_;
  const std::shared_ptr<Messages> messages_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<uint64_t> number_{0};
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_SHM_CALLS_H_
