// A job as torch sees it. Internal.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_SHM_WORK_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_SHM_WORK_H_

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/shm/torch/runner.h"

namespace leafpack::shm {

class ShmWork : public c10d::Work {
 public:
  // `who` is this rank, for errors.
  ShmWork(int rank, std::string who, c10d::OpType type, const char* title, std::shared_ptr<Runner> runner,
          std::shared_ptr<Job> job, std::vector<at::Tensor> outputs)
      : Work(rank, type, title),
        who_(std::move(who)),
        runner_(std::move(runner)),
        job_(std::move(job)),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  // To be called by the job, once it is over.
  void End() {
    std::exception_ptr failed = exception();
    finish(failed);
    if (failed) {
      future_->setError(failed);
    } else {
      future_->markCompleted(at::IValue(outputs_));
    }
  }

  bool isCompleted() override { return job_->over(); }
  bool isSuccess() const override { return job_->over() && job_->status.ok(); }
  std::exception_ptr exception() const override {
    if (!job_->over() || job_->status.ok()) return nullptr;
    return std::make_exception_ptr(c10::DistBackendError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        absl::StrCat(who_, ": ", job_->name, ": ", job_->status.message())));
  }
  int sourceRank() const override { return job_->source; }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void synchronize() override {}

  // With a time of its own it throws when that is over, and the work goes on.
  bool wait(std::chrono::milliseconds timeout) override {
    const bool forever = timeout <= kNoTimeout;  // the job has a deadline
    runner_->Wait(*job_, forever ? absl::InfiniteFuture() : absl::Now() + absl::FromChrono(timeout));
    if (!job_->over()) {
      C10_THROW_ERROR(DistBackendError, absl::StrCat(who_, ": ", job_->name, " was not over after ",
                                                     timeout.count(), " ms; it goes on"));
    }
    if (std::exception_ptr failed = exception()) std::rethrow_exception(failed);
    return true;
  }

 private:
  const std::string who_;
  const std::shared_ptr<Runner> runner_;
  const std::shared_ptr<Job> job_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_SHM_WORK_H_
