#include "distributed/backends/shm/torch/process_group_shm.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/shm/peers.h"
#include "distributed/backends/shm/shared_memory.h"
#include "distributed/backends/shm/torch/shm_calls.h"
#include "distributed/core/channel/c10d_key_value_store.h"

namespace leafpack {
namespace shm {
namespace {

class ProcessGroupShm : public ShmCalls {
 public:
  ProcessGroupShm(int rank, int size, std::shared_ptr<SharedMemory> collectives,
                  std::shared_ptr<SharedMemory> messages, absl::Duration timeout)
      : ShmCalls(rank, size, std::move(collectives), std::move(messages), timeout) {}

  const std::string getBackendName() const override { return "shm"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("shm", std::chrono::milliseconds(timeout_ms_.load()));
  }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ms_ = timeout.count(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }
  void abort() override { Close(); }
  void shutdown() override { Close(); }

  TorchWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    CheckOne(tensors.size(), "all_reduce");
    return AllReduce(OpType::ALLREDUCE, "shm:all_reduce", tensors, opts);
  }
  TorchWork allreduce_coalesced(Tensors& tensors,
                                const c10d::AllreduceCoalescedOptions& opts) override {
    return AllReduce(OpType::ALLREDUCE_COALESCED, "shm:all_reduce", tensors, opts);
  }

  TorchWork reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    CheckOne(tensors.size(), "reduce");
    CheckWritten(tensors, "reduce");
    auto call = NewCall(Collective::kReduce, opts.timeout, opts.asyncOp);
    call->root = Root(opts.rootRank);
    const ReduceOp op = Reducing(*call, opts.reduceOp, tensors, "reduce");
    if (size_ > 1 || op.kind == ReduceOpKind::kPremulSum) {
      // Only the root's tensor changes.
      const at::Tensor own = tensors[0];
      const bool is_root = call->root == rank_;
      call->start = [=](SharedMemory& memory) -> absl::StatusOr<std::unique_ptr<DataWork>> {
        at::Tensor work = own;
        const absl::Status status = Caught([&] {
          if (!is_root) work = own.clone();
          if (op.kind == ReduceOpKind::kPremulSum) Scale(work, op.factor);
        });
        if (!status.ok()) return status;
        if (memory.size() == 1) return nullptr;
        return memory.AllReduce({ViewOf(work)}, op.kind);
      };
    }
    return Launch(std::move(call), OpType::REDUCE, "shm:reduce", opts.asyncOp, tensors);
  }

  TorchWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    CheckOne(tensors.size(), "broadcast");
    const int root = Root(opts.rootRank);
    Plan plan(size_);
    if (rank_ == root) {
      Check(tensors, "broadcast");
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) plan.to[static_cast<size_t>(peer)] = tensors;
      }
    } else {
      CheckWritten(tensors, "broadcast");
      plan.from[static_cast<size_t>(root)] = tensors;
    }
    auto call = NewCall(Collective::kBroadcast, opts.timeout, opts.asyncOp);
    call->root = root;
    return Exchange(std::move(call), std::move(plan), OpType::BROADCAST, "shm:broadcast", opts.asyncOp,
                    tensors, tensors);
  }

  TorchWork allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                      const c10d::AllgatherOptions& opts) override {
    CheckOne(inputs.size(), "all_gather");
    CheckOne(outputs.size(), "all_gather");
    CheckPerRank(outputs[0].size(), "all_gather");
    Plan plan(size_);
    for (size_t peer = 0; peer < outputs[0].size(); ++peer) {
      plan.to[peer] = inputs;
      plan.from[peer] = {outputs[0][peer]};
    }
    return AllGather(OpType::ALLGATHER, std::move(plan), inputs, outputs[0], opts);
  }

  TorchWork _allgather_base(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& opts) override {
    Tensors outputs = {output}, inputs = {input};
    return GatherInto(OpType::_ALLGATHER_BASE, outputs, inputs, opts);
  }
  TorchWork allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) override {
    return GatherInto(OpType::COALESCED, outputs, inputs, opts);
  }

  TorchWork allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::AllgatherOptions& opts) override {
    CheckPerRank(outputs.size(), "all_gather");
    Plan plan(size_);
    Tensors all;
    for (size_t peer = 0; peer < outputs.size(); ++peer) {
      TORCH_CHECK_VALUE(outputs[peer].size() == inputs.size(), "shm: all_gather of ", inputs.size(),
                        " tensors into a list of ", outputs[peer].size());
      plan.to[peer] = inputs;
      plan.from[peer] = outputs[peer];
      all.insert(all.end(), outputs[peer].begin(), outputs[peer].end());
    }
    return AllGather(OpType::ALLGATHER_COALESCED, std::move(plan), inputs, all, opts);
  }

  TorchWork gather(std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::GatherOptions& opts) override {
    CheckOne(inputs.size(), "gather");
    const int root = Root(opts.rootRank);
    Plan plan(size_);
    plan.to[static_cast<size_t>(root)] = inputs;
    Tensors written;
    if (rank_ == root) {
      CheckOne(outputs.size(), "gather");
      CheckPerRank(outputs[0].size(), "gather");
      written = outputs[0];
      for (size_t peer = 0; peer < written.size(); ++peer) plan.from[peer] = {written[peer]};
    } else {
      TORCH_CHECK_VALUE(outputs.empty(), "shm: gather has outputs at its root only");
    }
    Check(inputs, "gather");
    CheckWritten(written, "gather");
    CheckDtype(written, inputs[0].scalar_type(), "gather");
    auto call = NewCall(Collective::kGather, opts.timeout, opts.asyncOp);
    call->root = root;
    return Exchange(std::move(call), std::move(plan), OpType::GATHER, "shm:gather", opts.asyncOp, inputs,
                    written);
  }

  TorchWork scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                    const c10d::ScatterOptions& opts) override {
    CheckOne(outputs.size(), "scatter");
    CheckWritten(outputs, "scatter");
    const int root = Root(opts.rootRank);
    Plan plan(size_);
    plan.from[static_cast<size_t>(root)] = outputs;
    if (rank_ == root) {
      CheckOne(inputs.size(), "scatter");
      CheckPerRank(inputs[0].size(), "scatter");
      Check(inputs[0], "scatter");
      CheckDtype(inputs[0], outputs[0].scalar_type(), "scatter");
      for (size_t peer = 0; peer < inputs[0].size(); ++peer) plan.to[peer] = {inputs[0][peer]};
    } else {
      TORCH_CHECK_VALUE(inputs.empty(), "shm: scatter has inputs at its root only");
    }
    auto call = NewCall(Collective::kScatter, opts.timeout, opts.asyncOp);
    call->root = root;
    return Exchange(std::move(call), std::move(plan), OpType::SCATTER, "shm:scatter", opts.asyncOp, outputs,
                    outputs);
  }

  TorchWork reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                           const c10d::ReduceScatterOptions& opts) override {
    CheckOne(outputs.size(), "reduce_scatter");
    CheckOne(inputs.size(), "reduce_scatter");
    CheckPerRank(inputs[0].size(), "reduce_scatter");
    std::vector<Tensors> parts;
    for (const at::Tensor& input : inputs[0]) parts.push_back({input});
    return ReduceScatter(OpType::REDUCE_SCATTER, outputs, std::move(parts), opts);
  }
  TorchWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::ReduceScatterOptions& opts) override {
    Tensors outputs = {output}, inputs = {input};
    return ScatterFrom(OpType::_REDUCE_SCATTER_BASE, outputs, inputs, opts);
  }
  TorchWork reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const c10d::ReduceScatterOptions& opts) override {
    return ScatterFrom(OpType::REDUCE_SCATTER_TENSOR_COALESCED, outputs, inputs, opts);
  }

  TorchWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                          std::vector<int64_t>& input_splits,
                          const c10d::AllToAllOptions& opts) override {
    Plan plan(size_);
    plan.to = Split(input, input_splits);
    plan.from = Split(output, output_splits);
    return AllToAll(OpType::ALLTOALL_BASE, std::move(plan), {input}, {output}, opts);
  }
  TorchWork alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    CheckPerRank(inputs.size(), "all_to_all");
    CheckPerRank(outputs.size(), "all_to_all");
    Plan plan(size_);
    for (size_t peer = 0; peer < inputs.size(); ++peer) {
      plan.to[peer] = {inputs[peer]};
      plan.from[peer] = {outputs[peer]};
    }
    return AllToAll(OpType::ALLTOALL, std::move(plan), inputs, outputs, opts);
  }

  TorchWork barrier(const c10d::BarrierOptions& opts) override {
    return Launch(NewCall(Collective::kBarrier, opts.timeout, opts.asyncOp), OpType::BARRIER,
                  "shm:barrier", opts.asyncOp, {});
  }

  TorchWork send(Tensors& tensors, int to, int tag) override {
    CheckOne(tensors.size(), "send");
    Check(tensors, "send");
    return Post(OpType::SEND, "shm:send", tensors, Peer(to, "send"), tag);
  }
  TorchWork recv(Tensors& tensors, int from, int tag) override {
    CheckOne(tensors.size(), "recv");
    CheckWritten(tensors, "recv");
    return Post(OpType::RECV, "shm:recv", tensors, Peer(from, "recv"), tag);
  }
  TorchWork recvAnysource(Tensors& tensors, int tag) override {
    CheckOne(tensors.size(), "recv");
    CheckWritten(tensors, "recv");
    TORCH_CHECK_VALUE(size_ > 1, "shm: recv from any rank in a group of one");
    return Post(OpType::RECVANYSOURCE, "shm:recvAnySource", tensors, -1, tag);
  }
};

}  // namespace
}  // namespace shm

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeShmProcessGroup(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, absl::Duration timeout) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not in a group of ", size));
  }
  if (timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the timeout must be more than zero");
  }
  // Messages need rings and no slots.
  const shm::Geometry whole = shm::DefaultGeometry(size);
  const shm::Geometry rings(size, 2, 4096, whole.ring_bytes());
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<std::shared_ptr<shm::SharedMemory>> memories;
  for (const auto& [prefix, geometry] : {std::pair("collectives", whole), std::pair("messages", rings)}) {
    const std::unique_ptr<KeyValueStore> meeting = WrapC10dStore(store, absl::StrCat("shm/", prefix));
    absl::StatusOr<std::unique_ptr<shm::Peers>> peers =
        shm::Peers::Connect(*meeting, rank, geometry, deadline);
    if (!peers.ok()) return peers.status();
    memories.push_back(shm::SharedMemory::Make(*std::move(peers)));
  }
  return c10::make_intrusive<shm::ProcessGroupShm>(rank, size, memories[0], memories[1], timeout);
}

}  // namespace leafpack
