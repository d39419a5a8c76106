#include "distributed/core/solo_engine.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/engine_registry.h"
#include "distributed/core/engine_worker.h"
#include "distributed/core/error.h"
#include "distributed/core/flight/dump.h"
#include "distributed/core/process_check.h"

namespace leafpack {
namespace {

class DoneWork : public DataWork {
 public:
  bool IsDone() override { return true; }
  absl::StatusOr<bool> WaitFor(absl::Duration) override { return true; }
};

// The reduction over one rank is the identity, whatever the op, and there is nobody to exchange with.
class IdentityContext : public DataContext {
 public:
  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView>,
                                                      const ReduceOp&) override {
    return std::make_unique<DoneWork>();
  }
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer>,
                                                     std::vector<Transfer>) override {
    return std::make_unique<DoneWork>();
  }
  void Abort() override {}
};

class SoloCall : public Call {
 public:
  SoloCall(uint64_t number, absl::Time deadline, std::string name, bool is_frame,
           std::string result, std::shared_ptr<FlightRecorder> flight,
           FlightRecorder::Ticket ticket)
      : number_(number),
        deadline_(deadline),
        name_(std::move(name)),
        is_frame_(is_frame),
        result_(std::move(result)),
        flight_(std::move(flight)),
        ticket_(ticket) {}
  ~SoloCall() override {
    // Ignored where it has ended. In a forked child the recorder may be locked for ever.
    if (!process_.forked()) flight_->EndWith(ticket_, /*ok=*/false, "the call was given up");
  }

  uint64_t number() const override { return number_; }
  absl::Time deadline() const override { return deadline_; }
  absl::Status AwaitDecision(const InterruptCheck&) override { return Status(); }
  absl::StatusOr<bool> AwaitDecisionUntil(absl::Time, const InterruptCheck&) override {
    if (absl::Status status = Status(); !status.ok()) return status;
    return true;
  }
  bool is_frame() const override { return is_frame_; }
  absl::Span<const char> frame_result() const override { return result_; }
  bool soft_digests_agree() const override { return true; }
  absl::StatusOr<std::shared_ptr<DataContext>> EnterData(const InterruptCheck&) override {
    if (absl::Status status = Status(); !status.ok()) return status;
    if (!process_.forked()) flight_->Advance(ticket_, FlightState::kInData);
    return std::make_shared<IdentityContext>();
  }
  void LeaveTurnstile() override {}
  absl::Status Poll() override { return Status(); }
  absl::Status FinishData(absl::Status status, std::vector<std::string> paths_done,
                          const InterruptCheck&) override {
    if (!process_.forked()) flight_->End(ticket_, status);
    if (status.ok()) return Status();
    NoteFlightError(status);
    ErrorDetails details = GetErrorDetails(status);
    details.paths_done = std::move(paths_done);
    return WithErrorDetails(AnnotateStatus(status, name_), details);
  }
  void Cancel() override { cancelled_ = true; }

 private:
  absl::Status Status() const {
    if (!cancelled_) return absl::OkStatus();
    return WithErrorDetails(absl::CancelledError(absl::StrCat(name_, ": the call was given up")),
                            {.kind = ErrorKind::kInterrupted});
  }

  const uint64_t number_;
  const absl::Time deadline_;
  const std::string name_;
  const bool is_frame_;
  const std::string result_;
  const std::shared_ptr<FlightRecorder> flight_;
  const FlightRecorder::Ticket ticket_;
  const ProcessCheck process_;
  std::atomic<bool> cancelled_{false};
};

class SoloEngine : public Engine {
 public:
  explicit SoloEngine(EngineConfig config)
      : config_(std::move(config)), fork_generation_(ForkGeneration()) {}

  GroupRank rank() const override { return config_.rank; }
  int size() const override { return 1; }
  GlobalRank global_rank(GroupRank) const override { return config_.global_ranks[0]; }
  const GroupOptions& options() const override { return config_.options; }
  Backend& backend() const override { return *config_.backend; }
  const std::shared_ptr<const StoreHolder>& store() const override { return config_.store; }
  const std::string& prefix() const override { return config_.prefix; }
  FlightRecorder& flight() const override { return *config_.flight; }

  absl::StatusOr<std::shared_ptr<Call>> Post(CallSpec spec) override {
    if (fork_generation_ != ForkGeneration()) return AnnotateStatus(ForkedError(), spec.name);
    uint64_t number = 0;
    absl::Status remembered;
    {
      absl::MutexLock lock(&mu_);
      if (closed_) {
        return AnnotateStatus(absl::FailedPreconditionError("the group was shut down"), spec.name);
      }
      number = ++issued_;
      remembered = std::exchange(remembered_, absl::OkStatus());
    }
    const FlightRecorder::Ticket ticket = Record(spec, number);
    if (!remembered.ok()) {
      config_.flight->End(ticket, remembered);
      NoteFlightError(remembered);
      return remembered;
    }
    std::string result;
    if (spec.is_frame && spec.join != nullptr) {
      const absl::Span<const char> payload(spec.payload);
      absl::StatusOr<std::optional<std::string>> joined =
          spec.join(absl::MakeConstSpan(&payload, 1));
      if (!joined.ok()) {
        const absl::Status status = AnnotateStatus(joined.status(), spec.name);
        config_.flight->End(ticket, status);
        NoteFlightError(status);
        return status;
      }
      spec.is_frame = joined->has_value();
      if (*joined) result = **std::move(joined);
    } else if (spec.is_frame) {
      result.resize(spec.payload.size());
      if (spec.reduce == nullptr) return absl::InternalError("a frame without its reduction");
      const absl::Span<const char> payload(spec.payload);
      spec.reduce(absl::MakeConstSpan(&payload, 1), absl::MakeSpan(result));
    }
    const absl::Time deadline = spec.deadline == absl::InfiniteFuture()
                                    ? absl::Now() + config_.options.timeout
                                    : spec.deadline;
    if (spec.is_frame) {
      config_.flight->EndWith(ticket, /*ok=*/true, {});
    } else {
      config_.flight->Advance(ticket, FlightState::kAgreed);
    }
    return std::make_shared<SoloCall>(number, deadline, std::move(spec.name), spec.is_frame,
                                      std::move(result), config_.flight, ticket);
  }

  absl::Status Refuse(CollectiveKind kind, absl::Status reason, absl::Time) override {
    if (fork_generation_ != ForkGeneration()) return reason;
    CallSpec spec;
    spec.kind = kind;
    uint64_t number = 0;
    {
      absl::MutexLock lock(&mu_);
      number = ++issued_;
    }
    config_.flight->End(Record(spec, number), reason);
    NoteFlightError(reason);
    return reason;
  }

  void RunInWorker(absl::AnyInvocable<void()> task) override { worker_.Run(std::move(task)); }

  void RememberError(absl::Status status) override {
    if (fork_generation_ != ForkGeneration()) return;
    absl::MutexLock lock(&mu_);
    remembered_.Update(status);
  }

  absl::Status Shutdown(absl::Duration timeout) override {
    if (fork_generation_ != ForkGeneration()) return ForkedError();
    absl::Status remembered;
    {
      absl::MutexLock lock(&mu_);
      closed_ = true;
      remembered = std::exchange(remembered_, absl::OkStatus());
    }
    worker_.Stop(absl::Now() + timeout);
    config_.flight->set_closed();
    FlushFlightErrors();
    return remembered;
  }

 private:
  FlightRecorder::Ticket Record(const CallSpec& spec, uint64_t number) {
    return config_.flight->Begin({.kind = CollectiveName(spec.kind),
                                  .name = spec.label,
                                  .number = number,
                                  .leaves = spec.leaves,
                                  .bytes = spec.bytes,
                                  .digest = spec.digest,
                                  .async = spec.async,
                                  .frame = spec.is_frame});
  }

  const EngineConfig config_;
  const uint64_t fork_generation_;
  absl::Mutex mu_;
  uint64_t issued_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status remembered_ ABSL_GUARDED_BY(mu_);
  WorkerQueue worker_;
};

}  // namespace

std::shared_ptr<Engine> NewSoloEngine(EngineConfig config) {
  const uint64_t generation = ForkGeneration();
  const std::shared_ptr<Engine> engine(new SoloEngine(std::move(config)), [generation](Engine* e) {
    std::unique_ptr<Engine> owned(e);
    if (generation != ForkGeneration()) KeepForever(std::shared_ptr<Engine>(std::move(owned)));
  });
  RegisterSoloEngine(engine);
  return engine;
}

}  // namespace leafpack
