#include "distributed/backends/shm/torch/shm_calls.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/shm/torch/shm_work.h"
#include "distributed/core/reduce/reduce.h"
#include "distributed/store/c10d_reduce_op.h"

namespace leafpack::shm {

ShmCalls::ShmCalls(int rank, int size, std::shared_ptr<SharedMemory> collectives,
                   std::shared_ptr<SharedMemory> messages, absl::Duration timeout)
    : Backend(rank, size),
      collectives_(std::make_shared<Collectives>(std::move(collectives))),
      messages_(std::make_shared<Messages>(std::move(messages))),
      timeout_ms_(absl::ToInt64Milliseconds(timeout)) {}

void ShmCalls::Close() {
  collectives_->Close();
  messages_->Close();
}

std::string ShmCalls::Who() const {
  const std::string& name = getGroupUid();
  return absl::StrCat("shm: group rank ", rank_, " of ", size_,
                      name.empty() ? "" : absl::StrCat(" (group ", name, ")"));
}

int ShmCalls::Root(int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "shm: root ", root, " is not in a group of ", size_);
  return static_cast<int>(root);
}

int ShmCalls::Peer(int peer, const char* what) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_ && peer != rank_, "shm: ", what, " between rank ", rank_,
                    " and rank ", peer, " of ", size_);
  return peer;
}

void ShmCalls::CheckPerRank(size_t count, const char* what) const {
  TORCH_CHECK_VALUE(count == static_cast<size_t>(size_), "shm: ", what,
                    " takes a tensor for each of ", size_, " ranks, not ", count);
}

absl::Time ShmCalls::Deadline(std::chrono::milliseconds timeout) const {
  return absl::Now() + (timeout.count() > 0 ? absl::FromChrono(timeout)
                                            : absl::Milliseconds(timeout_ms_.load()));
}

std::shared_ptr<Call> ShmCalls::NewCall(Collective kind, std::chrono::milliseconds timeout,
                                        bool async) const {
  auto call = std::make_shared<Call>();
  call->kind = kind;
  call->deadline = Deadline(timeout);
  call->unattended = async ? Unattended::kNow : Unattended::kNever;
  return call;
}

TorchWork ShmCalls::Launch(std::shared_ptr<Call> call, OpType type, const char* title, bool async,
                           Tensors outputs) {
  call->name = absl::StrCat(title + 4, " number ", ++number_);
  auto work = c10::make_intrusive<ShmWork>(rank_, Who(), type, title, collectives_, call,
                                           std::move(outputs));
  call->on_end = [work] { work->End(); };
  collectives_->Add(call);
  if (!async) collectives_->Wait(*call, absl::InfiniteFuture());
  return work;
}

TorchWork ShmCalls::Post(OpType type, const char* title, const Tensors& tensors, int peer,
                         int tag) {
  auto message = std::make_shared<Message>();
  message->name = std::string(title + 4);
  if (peer >= 0) {
    absl::StrAppend(&message->name, type == OpType::SEND ? " to " : " from ", "group rank ", peer);
  }
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

ReduceOp ShmCalls::Reducing(Call& call, const c10d::ReduceOp& op, const Tensors& tensors,
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

TorchWork ShmCalls::AllReduce(OpType type, const char* title, const Tensors& tensors,
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

TorchWork ShmCalls::Exchange(std::shared_ptr<Call> call, Plan plan, OpType type, const char* title,
                             bool async, const Tensors& typed, Tensors outputs) {
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

absl::StatusOr<std::unique_ptr<DataWork>> ShmCalls::Move(const Plan& plan, size_t rank,
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

void ShmCalls::CheckOwn(const Plan& plan, const char* what) const {
  const Tensors &to = plan.to[static_cast<size_t>(rank_)], &from = plan.from[static_cast<size_t>(rank_)];
  for (size_t i = 0; i < from.size(); ++i) {
    TORCH_CHECK_VALUE(i < to.size() && to[i].numel() == from[i].numel(), "shm: ", what,
                      ": the own part has ", i < to.size() ? to[i].numel() : 0,
                      " elements, its place ", from[i].numel());
  }
}

TorchWork ShmCalls::AllGather(OpType type, Plan plan, const Tensors& inputs, const Tensors& outputs,
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

at::Tensor ShmCalls::Part(const at::Tensor& whole, int peer) const {
  const int64_t part = whole.numel() / size_;
  return whole.view({-1}).narrow(0, peer * part, part);
}

void ShmCalls::CheckWhole(const at::Tensor& whole, const at::Tensor& part, const char* what) const {
  Check(whole, what);
  Check(part, what);
  CheckContiguous(whole, what);
  CheckDtype({part}, whole.scalar_type(), what);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size_, "shm: ", what, " of ", part.numel(),
                    " elements a rank needs ", part.numel() * size_, " for ", size_, " ranks, not ",
                    whole.numel());
}

TorchWork ShmCalls::GatherInto(OpType type, const Tensors& outputs, const Tensors& inputs,
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

TorchWork ShmCalls::ScatterFrom(OpType type, const Tensors& outputs, const Tensors& inputs,
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

TorchWork ShmCalls::ReduceScatter(OpType type, const Tensors& outputs, std::vector<Tensors> parts,
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

std::vector<Tensors> ShmCalls::Split(const at::Tensor& tensor,
                                     const std::vector<int64_t>& splits) const {
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

TorchWork ShmCalls::AllToAll(OpType type, Plan plan, const Tensors& inputs, const Tensors& outputs,
                             const c10d::AllToAllOptions& opts) {
  Check(inputs, "all_to_all");
  CheckWritten(outputs, "all_to_all");
  CheckDtype(inputs, inputs[0].scalar_type(), "all_to_all");
  CheckDtype(outputs, inputs[0].scalar_type(), "all_to_all");
  CheckOwn(plan, "all_to_all");
  auto call = NewCall(Collective::kAllToAll, opts.timeout, opts.asyncOp);
  return Exchange(std::move(call), std::move(plan), type, "shm:all_to_all", opts.asyncOp, inputs, outputs);
}

}  // namespace leafpack::shm
