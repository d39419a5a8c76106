#include "distributed/backends/nccl/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/backends/nccl/nccl_backend.h"

namespace leafpack::nccl_internal {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("nccl", [] { return NcclBackend::Make(MakeCudaDevice()); });

// c10d takes int milliseconds in places; a day is longer than any call.
std::chrono::milliseconds ToC10dTimeout(absl::Duration timeout) {
  const absl::Duration bounded = std::clamp(timeout, absl::Milliseconds(1), absl::Hours(24));
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(absl::Ceil(bounded, absl::Milliseconds(1))));
}

// The first line: c10 appends stack traces and source positions.
std::string FirstLine(std::string_view what) { return std::string(what.substr(0, what.find('\n'))); }

// Runs what may throw.
template <typename F>
absl::Status Guarded(std::string_view what, F f) {
  try {
    f();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what, " failed: ", FirstLine(e.what())));
  }
}

c10d::ReduceOp ToC10d(ReduceOpKind op) {
  switch (op) {
    case ReduceOpKind::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOpKind::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOpKind::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOpKind::kAvg:
      return c10d::ReduceOp::AVG;
    default:
      return c10d::ReduceOp::SUM;
  }
}

// By default c10d's watchdog ends the process when a communicator fails. Here the works report it, and the
// group goes on without the context.
class ReportingGroup : public c10d::ProcessGroupNCCL {
 public:
  ReportingGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 const c10::intrusive_ptr<Options>& options)
      : ProcessGroupNCCL(store, rank, size, options) {
    asyncErrorHandling_ = c10d::NoHandling;
  }
};

class CudaMark : public Mark {
 public:
  explicit CudaMark(const c10::cuda::CUDAStream& stream) : device_(stream.device_index()) {
    event_.record(stream);
  }
  absl::StatusOr<bool> IsReached() override {
    bool reached = false;
    if (absl::Status status = Guarded("asking for a CUDA event", [&] { reached = event_.query(); });
        !status.ok()) {
      return status;
    }
    return reached;
  }
  absl::Status HoldCurrentStream() override {
    return Guarded("waiting for a CUDA event",
                   [&] { event_.block(c10::cuda::getCurrentCUDAStream(device_)); });
  }

 private:
  const c10::DeviceIndex device_;
  at::cuda::CUDAEvent event_{cudaEventDisableTiming};
};

class CudaCommunicator : public Communicator {
 public:
  CudaCommunicator(c10::intrusive_ptr<ReportingGroup> group, c10::Device device)
      : device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        group_(std::move(group)) {}

  // An orderly end would wait for the other ranks.
  ~CudaCommunicator() override {
    Abort();
    Guarded("closing NCCL", [&] {
      {
        absl::MutexLock lock(&mutex_);
        work_.reset();
      }
      group_.reset();
    }).IgnoreError();
  }

  absl::Status FollowCurrentStream() override {
    return Guarded("ordering CUDA streams", [&] {
      const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device_.index());
      if (current == stream_) return;
      at::cuda::CUDAEvent event(cudaEventDisableTiming);
      event.record(current);
      event.block(stream_);
    });
  }

  absl::StatusOr<at::Tensor> Allocate(int64_t numel, at::ScalarType dtype) override {
    at::Tensor memory;
    absl::Status status = Guarded("allocating memory", [&] {
      const c10::cuda::CUDAStreamGuard on_stream(stream_);  // the allocator reuses it in this stream's order
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      memory = at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_));
    });
    if (status.ok()) return memory;
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", numel, " elements of ", c10::toString(dtype), " on ", device_.str(),
                     ": ", status.message()));
  }

  absl::Status Run(std::function<void()> work) override {
    return Guarded("copying on the device", [&] {
      const c10::cuda::CUDAStreamGuard on_stream(stream_);
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      work();
    });
  }

  absl::Status AllReduce(const std::vector<Reduction>& reductions) override {
    bool open = false;
    const absl::Status status = Guarded("NCCL's all-reduce", [&] {
      const c10::cuda::CUDAStreamGuard on_stream(stream_);
      group_->startCoalescing();
      open = true;
      for (const Reduction& reduction : reductions) {
        std::vector<at::Tensor> tensors = {reduction.tensor};
        c10d::AllreduceOptions options;
        options.reduceOp = ToC10d(reduction.op);
        options.asyncOp = false;  // on the current stream, which is ours
        group_->allreduce(tensors, options);
      }
      open = false;
      c10::intrusive_ptr<c10d::Work> work = group_->endCoalescing();
      absl::MutexLock lock(&mutex_);
      work_ = std::move(work);
    });
    // The group of NCCL calls belongs to this thread, and must not stay open.
    if (open) Guarded("closing a group of NCCL calls", [&] { group_->endCoalescing(); }).IgnoreError();
    return status;
  }

  absl::StatusOr<std::unique_ptr<Mark>> MarkStream() override {
    std::unique_ptr<Mark> mark;
    absl::Status status =
        Guarded("recording a CUDA event", [&] { mark = std::make_unique<CudaMark>(stream_); });
    if (!status.ok()) return status;
    return mark;
  }

  absl::Status Check() override {
    c10::intrusive_ptr<c10d::Work> work;
    {
      absl::MutexLock lock(&mutex_);
      work = work_;
    }
    if (work == nullptr) return absl::OkStatus();
    try {
      if (work->isCompleted()) {  // asks NCCL for errors too
        if (const std::exception_ptr failed = work->exception(); failed != nullptr) {
          std::rethrow_exception(failed);
        }
      }
      return absl::OkStatus();
    } catch (const std::exception& e) {
      return absl::UnavailableError(absl::StrCat("NCCL failed: ", FirstLine(e.what())));
    }
  }

  void Abort() override {
    if (aborted_.exchange(true)) return;
    Guarded("aborting NCCL", [&] { group_->abort(); }).IgnoreError();
  }

 private:
  const c10::Device device_;
  const c10::cuda::CUDAStream stream_;
  c10::intrusive_ptr<ReportingGroup> group_;
  std::atomic<bool> aborted_{false};
  absl::Mutex mutex_;
  c10::intrusive_ptr<c10d::Work> work_ ABSL_GUARDED_BY(mutex_);  // the latest
};

class CudaDevice : public Device {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }

  absl::StatusOr<c10::Device> Current() override {
    if (c10::cuda::device_count() == 0) {
      return absl::FailedPreconditionError("this machine has no GPU that CUDA can use");
    }
    c10::DeviceIndex index = 0;
    absl::Status status = Guarded("asking for the current device", [&] { index = c10::cuda::current_device(); });
    if (!status.ok()) return status;
    return c10::Device(c10::DeviceType::CUDA, index);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const DataContextOptions& options,
                                                        c10::Device device, absl::Time deadline) override {
    try {
      const c10::cuda::CUDAGuard on_device(device);
      options.store->setTimeout(ToC10dTimeout(deadline - absl::Now()));
      auto group_options = c10d::ProcessGroupNCCL::Options::create();
      group_options->timeout = ToC10dTimeout(options.timeout);
      auto group = c10::make_intrusive<ReportingGroup>(options.store, options.rank, options.size,
                                                       group_options);
      group->eagerConnectSingleDevice(device);
      return std::make_unique<CudaCommunicator>(std::move(group), device);
    } catch (const std::exception& e) {
      const std::string text = absl::StrCat("NCCL could not connect rank ", options.rank, " of ", options.size,
                                            " on ", device.str(), ": ", FirstLine(e.what()));
      if (absl::Now() >= deadline) return absl::DeadlineExceededError(text);
      return absl::UnavailableError(text);
    }
  }
};

}  // namespace

std::shared_ptr<Device> MakeCudaDevice() { return std::make_shared<CudaDevice>(); }

}  // namespace leafpack::nccl_internal
