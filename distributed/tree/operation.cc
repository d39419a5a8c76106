#include "distributed/tree/operation.h"

#include <cstddef>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/device_traits.h"
#include "distributed/core/error.h"
#include "distributed/tree/stopwatch.h"

namespace leafpack::internal {
namespace {

constexpr size_t kMaxNameBytes = 256;

std::string Where(std::string_view kind_name, std::string_view name, const Group& group) {
  // Of a name that is too long, so that there is room for the text which says so.
  if (name.size() > kMaxNameBytes) name = name.substr(0, 32);
  const std::string call =
      name.empty() ? std::string(kind_name) : absl::StrCat(kind_name, " '", absl::Utf8SafeCEscape(name), "'");
  return absl::StrCat(call, " on rank ", group.global_rank().value());
}

// `status` ended the call before this rank began to move data, whatever became of others' leaves.
absl::Status OfUnchangedTree(absl::Status status) {
  ErrorDetails details = GetErrorDetails(status);
  details.tree_unchanged = true;
  return WithErrorDetails(std::move(status), details);
}

// Host backends die of what an unchecked call lets through, so theirs are always checked.
bool NeedsChecks(const Backend& backend) {
  const DeviceTraits* const traits = DeviceTraits::Of(backend);
  return traits != nullptr ? traits->NeedsChecks() : !backend.MustEnqueueInCallerThread();
}

}  // namespace

Operation::Operation(Group group, CollectiveKind kind, std::string_view kind_name,
                     CallOptions options)
    : group_(std::move(group)),
      kind_(kind),
      options_(std::move(options)),
      where_(Where(kind_name, options_.name, group_)) {}

absl::Status Operation::CheckOptions() const {
  if (options_.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout must be > 0, got ", absl::FormatDuration(options_.timeout)));
  }
  if (options_.max_in_flight_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_in_flight_bytes must be > 0, got ",
                                                   options_.max_in_flight_bytes));
  }
  if (options_.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("name has ", options_.name.size(),
                                                   " bytes; at most ", kMaxNameBytes,
                                                   " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status Operation::Post(bool async) {
  const bool own_timeout =
      options_.timeout > absl::ZeroDuration() && options_.timeout != absl::InfiniteDuration();
  CallSpec spec;
  spec.kind = kind_;
  spec.name = where_;  // begins the text of every error of the call
  spec.label = options_.name;
  spec.deadline = absl::Now() + (own_timeout ? options_.timeout : group_.options().timeout);
  spec.check = NeedsChecks(engine().backend()) ? CheckMode::kAlways : options_.check;
  spec.async = async;
  {
    ScopedStopwatch watch(stats_.prepare);
    absl::Status status = CheckOptions();
    if (status.ok()) status = Prepare(spec);
    if (!status.ok()) {
      return engine().Refuse(kind_, AnnotateStatus(status, where_), spec.deadline);
    }
  }
  spec.leaves = stats_.leaves;
  spec.bytes = stats_.bytes;
  may_have_data_ = !spec.is_frame || (spec.is_open && size() > 1);
  absl::StatusOr<std::shared_ptr<Call>> call = engine().Post(std::move(spec));
  if (!call.ok()) return call.status();
  call_ = *std::move(call);
  return absl::OkStatus();
}

std::optional<absl::Status> Operation::RunUntil(absl::Time until,
                                                const InterruptCheck& interrupt) {
  absl::StatusOr<bool> decided = true;
  {
    ScopedStopwatch watch(stats_.agree);
    if (until == absl::InfiniteFuture()) {
      if (absl::Status status = call_->AwaitDecision(interrupt); !status.ok()) decided = status;
    } else {
      decided = call_->AwaitDecisionUntil(until, interrupt);
    }
  }
  if (decided.ok() && !*decided) return std::nullopt;
  absl::Status status = decided.status();
  if (!status.ok()) {
    // Also of a call that was granted and failed elsewhere while this rank looked away.
    status = OfUnchangedTree(std::move(status));
  } else if (!call_->is_frame()) {
    status = RunData(interrupt);
  } else {
    ScopedStopwatch watch(stats_.unpack);
    status = FinishFrame(call_->frame_result());
    if (!status.ok()) status = AnnotateStatus(status, where_);
  }
  stats_.total =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return status;
}

absl::Status Operation::RunData(const InterruptCheck& interrupt) {
  absl::StatusOr<std::shared_ptr<DataContext>> context = call_->EnterData(interrupt);
  if (!context.ok()) return OfUnchangedTree(context.status());
  const std::unique_ptr<DataPhase> phase = StartData(**context, interrupt);
  if (phase == nullptr) return absl::InternalError(absl::StrCat(where_, ": has no data phase"));
  absl::Status status = phase->Run();
  const bool ran = status.ok();
  status = call_->FinishData(std::move(status),
                             ran ? std::vector<std::string>() : phase->PathsDone(), interrupt);
  if (status.ok()) status = phase->Commit();
  phase->Close(ran, status.ok());
  if (status.ok()) return status;
  ErrorDetails details = GetErrorDetails(status);
  details.tree_unchanged = phase->TreeUnchanged();
  // Also where this rank had got through and the call failed elsewhere.
  if (!details.tree_unchanged) details.paths_done = phase->PathsDone();
  return WithErrorDetails(std::move(status), details);
}

absl::Status RunNow(Operation& operation) {
  if (absl::Status status = operation.Post(/*async=*/false); !status.ok()) return status;
  const std::optional<absl::Status> status =
      operation.RunUntil(absl::InfiniteFuture(), operation.options().interrupt);
  if (operation.options().stats != nullptr) *operation.options().stats = operation.stats();
  return status.value_or(absl::InternalError("a wait without end came back without a result"));
}

absl::StatusOr<TreeWork> RunAsync(std::shared_ptr<Operation> operation) {
  if (absl::Status status = operation->Post(/*async=*/true); !status.ok()) return status;
  const bool in_worker = operation->may_have_data();
  auto run = std::make_shared<OperationRun>(operation->group(), operation);
  operation->set_run(run);
  return TreeWorkState::Start(std::move(run), in_worker);
}

}  // namespace leafpack::internal
