#include "distributed/backends/shm/torch/process_group_shm.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/shm/peers.h"
#include "distributed/backends/shm/shared_memory.h"
#include "distributed/backends/shm/torch/collectives.h"
#include "distributed/backends/shm/torch/messages.h"
#include "distributed/backends/shm/torch/shm_work.h"
#include "distributed/core/channel/c10d_key_value_store.h"
#include "distributed/core/reduce/reduce.h"
#include "distributed/core/reduce_op.h"
#include "distributed/store/c10d_reduce_op.h"

namespace leafpack {
namespace shm {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using TorchWork = c10::intrusive_ptr<c10d::Work>;

LeafView ViewOf(const at::Tensor& tensor) {
  LeafView view;
  view.data = tensor.data_ptr();
  view.dtype = tensor.scalar_type();
  view.sizes = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.keep_alive = std::make_shared<at::Tensor>(tensor);
  return view;
}

std::vector<LeafView> ViewsOf(const Tensors& tensors) {
  std::vector<LeafView> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(ViewOf(tensor));
  return views;
}

uint64_t BytesOf(const Tensors& tensors) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// Of the dtypes and numbers of elements, so that each element meets its like.
uint64_t LayoutOf(const Tensors& tensors) {
  uint64_t hash = 14695981039346656037u;
  for (const at::Tensor& tensor : tensors) {
    for (const uint64_t word : {static_cast<uint64_t>(tensor.scalar_type()),
                                static_cast<uint64_t>(tensor.numel())}) {
      hash = (hash ^ word) * 1099511628211u;
    }
  }
  return hash;
}

void Check(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.defined(), "shm: ", what, " got an undefined tensor");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "shm: ", what, " takes CPU tensors, not ",
                    tensor.device());
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "shm: ", what, " takes dense tensors, not ",
                    tensor.layout());
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "shm: ", what,
                    " takes no lazily conjugated or negated tensor: call resolve_conj() or resolve_neg()");
}

void Check(const Tensors& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) Check(tensor, what);
}

void CheckWritten(const Tensors& tensors, const char* what) {
  Check(tensors, what);
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "shm: ", what,
                      " cannot write a tensor whose elements share memory (expanded?)");
  }
}

void CheckDtype(const Tensors& tensors, at::ScalarType dtype, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "shm: ", what, " got tensors of ", dtype,
                      " and of ", tensor.scalar_type());
  }
}

void CheckContiguous(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "shm: ", what, " takes contiguous tensors");
}

void CheckOne(size_t count, const char* what) {
  TORCH_CHECK_VALUE(count == 1, "shm: ", what, " takes one tensor, not ", count);
}

// What libtorch throws, as a Status.
template <typename Body>
absl::Status Caught(Body body) {
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    body();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

void Scale(const at::Tensor& tensor, double factor) {
  if (tensor.is_contiguous()) {
    const absl::Status status = ApplyFactor(tensor.scalar_type(), factor, tensor.data_ptr(),
                                            tensor.numel());
    TORCH_CHECK(status.ok(), status.message());
  } else {
    tensor.mul_(factor);
  }
}

// What each rank gets from this one and gives to it: element p is for rank p.
struct Plan {
  explicit Plan(int size) : to(static_cast<size_t>(size)), from(static_cast<size_t>(size)) {}
  std::vector<Tensors> to, from;
};

class ProcessGroupShm : public c10d::Backend {
 public:
  ProcessGroupShm(int rank, int size, std::shared_ptr<SharedMemory> collectives,
                  std::shared_ptr<SharedMemory> messages, absl::Duration timeout)
      : Backend(rank, size),
        collectives_(std::make_shared<Collectives>(std::move(collectives))),
        messages_(std::make_shared<Messages>(std::move(messages))),
        timeout_ms_(absl::ToInt64Milliseconds(timeout)) {}

  ~ProcessGroupShm() override { Close(); }

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

 private:
  void Close() {
    collectives_->Close();
    messages_->Close();
  }

  std::string Who() const {
    const std::string& name = getGroupUid();
    return absl::StrCat("shm: group rank ", rank_, " of ", size_,
                        name.empty() ? "" : absl::StrCat(" (group ", name, ")"));
  }

  int Root(int64_t root) const {
    TORCH_CHECK_VALUE(root >= 0 && root < size_, "shm: root ", root, " is not in a group of ", size_);
    return static_cast<int>(root);
  }
  int Peer(int peer, const char* what) const {
    TORCH_CHECK_VALUE(peer >= 0 && peer < size_ && peer != rank_, "shm: ", what, " between rank ", rank_,
                      " and rank ", peer, " of ", size_);
    return peer;
  }
  void CheckPerRank(size_t count, const char* what) const {
    TORCH_CHECK_VALUE(count == static_cast<size_t>(size_), "shm: ", what,
                      " takes a tensor for each of ", size_, " ranks, not ", count);
  }

  absl::Time Deadline(std::chrono::milliseconds timeout) const {
    return absl::Now() + (timeout.count() > 0 ? absl::FromChrono(timeout)
                                              : absl::Milliseconds(timeout_ms_.load()));
  }

  std::shared_ptr<Call> NewCall(Collective kind, std::chrono::milliseconds timeout, bool async) const {
    auto call = std::make_shared<Call>();
    call->kind = kind;
    call->deadline = Deadline(timeout);
    call->unattended = async ? Unattended::kNow : Unattended::kNever;
    return call;
  }

  // Starts `call`; the tensors that it writes are `outputs`. What is not asynchronous is over then.
  TorchWork Launch(std::shared_ptr<Call> call, OpType type, const char* title, bool async,
                   Tensors outputs) {
    call->name = absl::StrCat(title + 4, " number ", ++number_);
    auto work = c10::make_intrusive<ShmWork>(rank_, Who(), type, title, collectives_, call,
                                             std::move(outputs));
    call->on_end = [work] { work->End(); };
    collectives_->Add(call);
    if (!async) collectives_->Wait(*call, absl::InfiniteFuture());
    return work;
  }

  TorchWork Post(OpType type, const char* title, const Tensors& tensors, int peer, int tag) {
    auto message = std::make_shared<Message>();
    message->name = absl::StrCat(title + 4, peer < 0 ? "" : absl::StrCat(type == OpType::SEND ? " to " : " from ", "group rank ", peer));
    message->deadline = Deadline(c10d::kUnsetTimeout);
    message->unattended = Unattended::kSoon;
    message->is_send = type == OpType::SEND;
    message->peer = peer;
    message->tag = tag;
    message->dtype = tensors[0].scalar_type();
    message->bytes = tensors[0].nbytes();
    message->views = ViewsOf(tensors);
    auto work = c10::make_intrusive<ShmWork>(rank_, Who(), type, title, messages_, message, tensors);
    message->on_end = [work] { work->End(); };
    messages_->Add(message);
    return work;
  }

  // Fills in what ranks must agree on when they reduce `tensors`; returns the op.
  ReduceOp Reducing(Call& call, const c10d::ReduceOp& op, const Tensors& tensors,
                    const char* what) const {
    const absl::StatusOr<ReduceOp> ours = ReduceOpFromC10d(op);
    TORCH_CHECK_VALUE(ours.ok(), "shm: ", what, ": ", ours.status().message());
    for (const at::Tensor& tensor : tensors) {
      const absl::Status allowed = CheckOpAllowed(ours->kind, tensor.scalar_type());
      TORCH_CHECK_VALUE(allowed.ok(), "shm: ", what, ": ", allowed.message());
    }
    call.op = ours->kind;
    call.bytes = BytesOf(tensors);
    call.layout = LayoutOf(tensors);
    if (!tensors.empty()) call.dtype = tensors[0].scalar_type();
    return *ours;
  }

  TorchWork AllReduce(OpType type, const char* title, const Tensors& tensors,
                      const c10d::AllreduceOptions& opts) {
    CheckWritten(tensors, "all_reduce");
    auto call = NewCall(Collective::kAllReduce, opts.timeout, opts.asyncOp);
    const ReduceOp op = Reducing(*call, opts.reduceOp, tensors, "all_reduce");
    call->start = [=](SharedMemory& memory) -> absl::StatusOr<std::unique_ptr<DataWork>> {
      if (op.kind == ReduceOpKind::kPremulSum) {
        const absl::Status status = Caught([&] {
          for (const at::Tensor& tensor : tensors) Scale(tensor, op.factor);
        });
        if (!status.ok()) return status;
      }
      if (memory.size() == 1 || BytesOf(tensors) == 0) return nullptr;
      return memory.AllReduce(ViewsOf(tensors), op.kind);
    };
    return Launch(std::move(call), type, title, opts.asyncOp, tensors);
  }

  // Moves what `plan` says. `typed` has the dtype that all ranks must have.
  TorchWork Exchange(std::shared_ptr<Call> call, Plan plan, OpType type, const char* title, bool async,
                     const Tensors& typed, Tensors outputs) {
    if (!typed.empty()) call->dtype = typed[0].scalar_type();
    for (size_t peer = 0; peer < plan.to.size(); ++peer) {
      call->sends.push_back(BytesOf(plan.to[peer]));
      call->receives.push_back(BytesOf(plan.from[peer]));
    }
    const auto moved = std::make_shared<const Plan>(std::move(plan));
    const size_t rank = static_cast<size_t>(rank_);
    call->start = [moved, rank](SharedMemory& memory) { return Move(*moved, rank, memory); };
    call->finish = [moved, rank] {
      return Caught([&] {
        const Tensors &to = moved->to[rank], &from = moved->from[rank];
        for (size_t i = 0; i < from.size(); ++i) {
          from[i].copy_(to[i].reshape(from[i].sizes()));
        }
      });
    };
    return Launch(std::move(call), type, title, async, std::move(outputs));
  }

  static absl::StatusOr<std::unique_ptr<DataWork>> Move(const Plan& plan, size_t rank,
                                                        SharedMemory& memory) {
    std::vector<Transfer> sends, receives;
    for (size_t peer = 0; peer < plan.to.size(); ++peer) {
      if (peer == rank) continue;
      if (BytesOf(plan.to[peer]) > 0) {
        sends.push_back({static_cast<int>(peer), ViewsOf(plan.to[peer])});
      }
      if (BytesOf(plan.from[peer]) > 0) {
        receives.push_back({static_cast<int>(peer), ViewsOf(plan.from[peer])});
      }
    }
    if (sends.empty() && receives.empty()) return nullptr;
    return memory.Exchange(std::move(sends), std::move(receives));
  }

  // The own parts must fit before anything is promised to the others.
  void CheckOwn(const Plan& plan, const char* what) const {
    const Tensors &to = plan.to[static_cast<size_t>(rank_)], &from = plan.from[static_cast<size_t>(rank_)];
    for (size_t i = 0; i < from.size(); ++i) {
      TORCH_CHECK_VALUE(i < to.size() && to[i].numel() == from[i].numel(), "shm: ", what,
                        ": the own part has ", i < to.size() ? to[i].numel() : 0,
                        " elements, its place ", from[i].numel());
    }
  }

  TorchWork AllGather(OpType type, Plan plan, const Tensors& inputs, const Tensors& outputs,
                      const c10d::AllgatherOptions& opts) {
    Check(inputs, "all_gather");
    CheckWritten(outputs, "all_gather");
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const Tensors& from : plan.from) CheckDtype({from[i]}, inputs[i].scalar_type(), "all_gather");
    }
    CheckOwn(plan, "all_gather");
    auto call = NewCall(Collective::kAllGather, opts.timeout, opts.asyncOp);
    call->layout = LayoutOfDtypes(inputs);
    return Exchange(std::move(call), std::move(plan), type, "shm:all_gather", opts.asyncOp, inputs, outputs);
  }

  static uint64_t LayoutOfDtypes(const Tensors& tensors) {
    uint64_t hash = tensors.size();
    for (const at::Tensor& tensor : tensors) {
      hash = hash * 1099511628211u + static_cast<uint64_t>(tensor.scalar_type());
    }
    return hash;
  }

  // Part `peer` of a tensor that holds one equal part for each rank.
  at::Tensor Part(const at::Tensor& whole, int peer) const {
    const int64_t part = whole.numel() / size_;
    return whole.view({-1}).narrow(0, peer * part, part);
  }

  void CheckWhole(const at::Tensor& whole, const at::Tensor& part, const char* what) const {
    Check(whole, what);
    Check(part, what);
    CheckContiguous(whole, what);
    CheckDtype({part}, whole.scalar_type(), what);
    TORCH_CHECK_VALUE(whole.numel() == part.numel() * size_, "shm: ", what, " of ", part.numel(),
                      " elements a rank needs ", part.numel() * size_, " for ", size_, " ranks, not ",
                      whole.numel());
  }

  TorchWork GatherInto(OpType type, const Tensors& outputs, const Tensors& inputs,
                       const c10d::AllgatherOptions& opts) {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "shm: all_gather of ", inputs.size(),
                      " tensors into ", outputs.size());
    Plan plan(size_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckWhole(outputs[i], inputs[i], "all_gather");
      for (int peer = 0; peer < size_; ++peer) {
        plan.to[static_cast<size_t>(peer)].push_back(inputs[i]);
        plan.from[static_cast<size_t>(peer)].push_back(Part(outputs[i], peer));
      }
    }
    return AllGather(type, std::move(plan), inputs, outputs, opts);
  }

  TorchWork ScatterFrom(OpType type, const Tensors& outputs, const Tensors& inputs,
                        const c10d::ReduceScatterOptions& opts) {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "shm: reduce_scatter of ", inputs.size(),
                      " tensors into ", outputs.size());
    std::vector<Tensors> parts(static_cast<size_t>(size_));
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckWhole(inputs[i], outputs[i], "reduce_scatter");
      for (int peer = 0; peer < size_; ++peer) {
        parts[static_cast<size_t>(peer)].push_back(Part(inputs[i], peer));
      }
    }
    return ReduceScatter(type, outputs, std::move(parts), opts);
  }

  // Rank p gets the reduction of everybody's `parts[p]`, in the order of the ranks.
  TorchWork ReduceScatter(OpType type, const Tensors& outputs, std::vector<Tensors> parts,
                          const c10d::ReduceScatterOptions& opts) {
    constexpr const char* kWhat = "reduce_scatter";
    CheckWritten(outputs, kWhat);
    Tensors all;
    for (const Tensors& part : parts) {
      Check(part, kWhat);
      for (size_t i = 0; i < part.size(); ++i) CheckDtype({part[i]}, outputs[i].scalar_type(), kWhat);
      all.insert(all.end(), part.begin(), part.end());
    }
    const size_t rank = static_cast<size_t>(rank_), size = static_cast<size_t>(size_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      TORCH_CHECK_VALUE(parts[rank][i].numel() == outputs[i].numel(), "shm: reduce_scatter of ",
                        parts[rank][i].numel(), " elements into ", outputs[i].numel());
    }
    auto call = NewCall(Collective::kReduceScatter, opts.timeout, opts.asyncOp);
    const ReduceOp op = Reducing(*call, opts.reduceOp, all, kWhat);
    for (size_t peer = 0; peer < size; ++peer) {
      call->sends.push_back(BytesOf(parts[peer]));
      call->receives.push_back(BytesOf(outputs));
    }
    const auto plan = std::make_shared<Plan>(size_);
    plan->to = std::move(parts);
    call->start = [=](SharedMemory& memory) -> absl::StatusOr<std::unique_ptr<DataWork>> {
      const absl::Status status = Caught([&] {
        for (size_t peer = 0; peer < size; ++peer) {
          for (at::Tensor& part : plan->to[peer]) {
            if (op.kind == ReduceOpKind::kPremulSum) {
              part = part.clone(at::MemoryFormat::Contiguous);
              Scale(part, op.factor);
            }
            if (peer == rank) part = part.contiguous();
          }
          for (const at::Tensor& output : outputs) {
            if (peer != rank) plan->from[peer].push_back(at::empty(output.sizes(), output.options()));
          }
        }
      });
      if (!status.ok()) return status;
      return Move(*plan, rank, memory);
    };
    call->finish = [=] {
      return Caught([&] {
        for (size_t i = 0; i < outputs.size(); ++i) {
          std::vector<const void*> inputs(size);
          for (size_t peer = 0; peer < size; ++peer) {
            inputs[peer] = (peer == rank ? plan->to : plan->from)[peer][i].const_data_ptr();
          }
          const at::Tensor& output = outputs[i];
          // Whatever it overlaps has been read: but for the own part, at the same place or elsewhere.
          const bool direct = output.is_contiguous();
          const at::Tensor result = direct ? output : at::empty(output.sizes(), output.options());
          const absl::Status status = ReduceInto(op.kind, output.scalar_type(), inputs,
                                                 result.data_ptr(), output.numel());
          TORCH_CHECK(status.ok(), status.message());
          if (!direct) output.copy_(result);
        }
      });
    };
    return Launch(std::move(call), type, "shm:reduce_scatter", opts.asyncOp, outputs);
  }

  std::vector<Tensors> Split(const at::Tensor& tensor, const std::vector<int64_t>& splits) const {
    constexpr const char* kWhat = "all_to_all";
    Check(tensor, kWhat);
    CheckContiguous(tensor, kWhat);
    TORCH_CHECK_VALUE(tensor.dim() > 0, "shm: all_to_all splits a dimension, got none");
    std::vector<int64_t> rows = splits;
    if (rows.empty()) {
      TORCH_CHECK_VALUE(tensor.size(0) % size_ == 0, "shm: all_to_all of ", tensor.size(0),
                        " rows over ", size_, " ranks needs split sizes");
      rows.assign(static_cast<size_t>(size_), tensor.size(0) / size_);
    }
    CheckPerRank(rows.size(), "all_to_all");
    std::vector<Tensors> parts;
    int64_t begin = 0;
    for (const int64_t count : rows) {
      TORCH_CHECK_VALUE(count >= 0 && begin + count <= tensor.size(0), "shm: all_to_all: the split sizes",
                        " do not add up to the ", tensor.size(0), " rows of the tensor");
      parts.push_back({tensor.narrow(0, begin, count)});
      begin += count;
    }
    TORCH_CHECK_VALUE(begin == tensor.size(0), "shm: all_to_all: the split sizes add up to ", begin,
                      ", the tensor has ", tensor.size(0), " rows");
    return parts;
  }

  TorchWork AllToAll(OpType type, Plan plan, const Tensors& inputs, const Tensors& outputs,
                     const c10d::AllToAllOptions& opts) {
    Check(inputs, "all_to_all");
    CheckWritten(outputs, "all_to_all");
    CheckDtype(inputs, inputs[0].scalar_type(), "all_to_all");
    CheckDtype(outputs, inputs[0].scalar_type(), "all_to_all");
    CheckOwn(plan, "all_to_all");
    auto call = NewCall(Collective::kAllToAll, opts.timeout, opts.asyncOp);
    return Exchange(std::move(call), std::move(plan), type, "shm:all_to_all", opts.asyncOp, inputs, outputs);
  }

  const std::shared_ptr<Collectives> collectives_;
  const std::shared_ptr<Messages> messages_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<uint64_t> number_{0};
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
