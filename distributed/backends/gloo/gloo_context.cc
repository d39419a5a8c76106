#include "distributed/backends/gloo/gloo_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/reduce/reduce.h"

namespace leafpack::gloo_internal {
namespace {

int64_t ElementCount(const LeafView& view) {
  int64_t count = 1;
  for (int64_t size : view.sizes) count *= size;
  return count;
}

// A view whose elements are not one block is an error of the caller: this backend does not pack.
absl::Status CheckContiguous(const LeafView& view) {
  if (view.sizes.size() != view.strides.size()) {
    return absl::InternalError(absl::StrCat("a view has ", view.sizes.size(), " sizes and ",
                                            view.strides.size(), " strides"));
  }
  int64_t expected = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    if (view.sizes[d] != 1 && view.strides[d] != expected) {
      if (ElementCount(view) == 0) return absl::OkStatus();
      return absl::InternalError("the gloo backend was given a view that is not contiguous");
    }
    expected *= view.sizes[d];
  }
  return absl::OkStatus();
}

// Work that was over when it was made: groups of one rank, empty views.
class DoneWork : public DataWork {
 public:
  bool IsDone() override { return true; }
  absl::StatusOr<bool> WaitFor(absl::Duration) override { return true; }
};

class PipelineWork : public DataWork {
 public:
  explicit PipelineWork(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  bool IsDone() override { return operation_->IsDone(); }
  absl::StatusOr<bool> WaitFor(absl::Duration slice) override { return operation_->WaitFor(slice); }

 private:
  const std::shared_ptr<Operation> operation_;
};

// Reductions by Gloo. AVG is divided by whoever first finds that the sums are here.
class NativeWork : public DataWork {
 public:
  struct Part {
    Message message;
    at::ScalarType dtype;
    void* data;
    int64_t count;
    std::shared_ptr<const void> keep_alive;
  };

  NativeWork(std::shared_ptr<GlooLink> link, std::vector<Part> parts, bool average, int size)
      : link_(std::move(link)), average_(average), size_(size), parts_(std::move(parts)) {}

  bool IsDone() override {
    // Somebody who holds the mutex is waiting, so it is not done.
    if (!mutex_.TryLock()) return false;
    bool done = true;
    for (const Part& part : parts_) done = done && link_->IsDone(part.message);
    if (done) Advance(absl::InfinitePast()).IgnoreError();
    mutex_.Unlock();
    return done;
  }

  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    const absl::Time until = absl::Now() + slice;
    absl::MutexLock lock(&mutex_);
    return Advance(until);
  }

 private:
  absl::StatusOr<bool> Advance(absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!failure_.ok()) return failure_;
    while (!parts_.empty()) {
      Part& part = parts_.back();
      absl::StatusOr<bool> done = link_->WaitFor(part.message, until - absl::Now());
      if (done.ok() && !*done) return false;
      absl::Status status = done.status();
      if (status.ok() && average_) {
        status = DivideByRanks(part.dtype, size_, part.data, part.count);
      }
      if (!status.ok()) {
        failure_ = status;
        parts_.clear();
        return failure_;
      }
      parts_.pop_back();
    }
    return true;
  }

  const std::shared_ptr<GlooLink> link_;
  const bool average_;
  const int size_;
  absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<Part> parts_ ABSL_GUARDED_BY(mutex_);  // not over yet
};

}  // namespace

bool NativelyExact(ReduceOpKind op, at::ScalarType dtype) {
  const bool is_sum = op == ReduceOpKind::kSum || op == ReduceOpKind::kAvg;
  switch (dtype) {
    case at::ScalarType::Byte:
    case at::ScalarType::Char:
    case at::ScalarType::Int:
    case at::ScalarType::Long:
      return true;
    case at::ScalarType::Float:
    case at::ScalarType::Double:
      return is_sum || op == ReduceOpKind::kProduct;
    case at::ScalarType::ComplexFloat:
    case at::ScalarType::ComplexDouble:
      return is_sum;
    default:
      return false;
  }
}

GlooContext::GlooContext(std::unique_ptr<GlooLink> link, int rank, int size)
    : rank_(rank), size_(size), link_(std::move(link)) {}

GlooContext::~GlooContext() {
  std::unique_ptr<AllReducePipeline> pipeline;
  {
    absl::MutexLock lock(&mutex_);
    pipeline = std::move(pipeline_);
  }
  pipeline.reset();
  if (link_ != nullptr && link_->HasPendingAllReduce()) link_->Abort();
}

absl::Status GlooContext::RunAlone(const std::vector<LeafView>& views, ReduceOpKind op) {
  for (const LeafView& view : views) {
    const void* inputs[] = {view.data};
    absl::Status status = ReduceInto(op, view.dtype, inputs, view.data, ElementCount(view));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DataWork>> GlooContext::StartNative(
    const std::vector<LeafView>& views, ReduceOpKind op) {
  std::vector<NativeWork::Part> parts;
  for (const LeafView& view : views) {
    int64_t count = ElementCount(view);
    if (count == 0) continue;
    at::ScalarType dtype = view.dtype;
    if (c10::isComplexType(dtype)) {  // a sum is a sum of the parts
      dtype = dtype == at::ScalarType::ComplexFloat ? at::ScalarType::Float
                                                    : at::ScalarType::Double;
      count *= 2;
    }
    NativeWork::Part& part = parts.emplace_back(
        NativeWork::Part{Message(), dtype, view.data, count, view.keep_alive});
    absl::Status status =
        link_->AllReduce(op, dtype, view.data, count, view.keep_alive, &part.message);
    if (!status.ok()) return status;
  }
  if (parts.empty()) return std::make_unique<DoneWork>();
  return std::make_unique<NativeWork>(link_, std::move(parts), op == ReduceOpKind::kAvg, size_);
}

absl::StatusOr<std::unique_ptr<DataWork>> GlooContext::AllReduce(std::vector<LeafView> views,
                                                                 const ReduceOp& op) {
  const ReduceOpKind kind =
      op.kind == ReduceOpKind::kPremulSum ? ReduceOpKind::kSum : op.kind;
  bool native = true;
  for (const LeafView& view : views) {
    if (absl::Status status = CheckOpAllowed(kind, view.dtype); !status.ok()) return status;
    if (absl::Status status = CheckContiguous(view); !status.ok()) return status;
    if (!view.device.is_cpu()) {
      return absl::UnimplementedError(
          absl::StrCat("the gloo backend reduces CPU memory, not ", view.device.str()));
    }
    native = native && NativelyExact(kind, view.dtype);
  }
  absl::MutexLock lock(&mutex_);
  if (aborted_) return absl::CancelledError("the data context was aborted");
  if (size_ == 1) {
    if (absl::Status status = RunAlone(views, kind); !status.ok()) return status;
    return std::make_unique<DoneWork>();
  }
  if (native) return StartNative(views, kind);
  if (pipeline_ == nullptr) {
    pipeline_ = std::make_unique<AllReducePipeline>(link_.get(), rank_, size_);
  }
  return std::make_unique<PipelineWork>(pipeline_->Submit(std::move(views), kind));
}

void GlooContext::Abort() {
  {
    absl::MutexLock lock(&mutex_);
    aborted_ = true;
  }
  // The pipeline's messages end with the link's.
  if (link_ != nullptr) link_->Abort();
}

}  // namespace leafpack::gloo_internal
