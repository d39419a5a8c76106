// Operation: what all collectives on trees have in common, from the check of their arguments to
// their end. A collective derives from it and says what is its own:
//
//   class Foo : public Operation {
//    protected:
//     absl::Status Prepare(CallSpec& spec) override;  // check, plan, digest; an error refuses
//     absl::Status FinishFrame(...) override;        // it rode in the control channel
//     std::unique_ptr<DataPhase> StartData(...) override;  // or: it has messages of its own
//   };
//   return RunNow(*std::make_shared<Foo>(...));             // or RunAsync(std::make_shared<Foo>(...))
#ifndef LEAFPACK_DISTRIBUTED_TREE_OPERATION_H_
#define LEAFPACK_DISTRIBUTED_TREE_OPERATION_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/tree_work.h"
#include "distributed/tree/tree_work_state.h"

namespace leafpack::internal {

// The messages of one call, once it was granted. Used by one thread.
class DataPhase {
 public:
  virtual ~DataPhase() = default;
  // Enqueues everything and waits for it in slices of kWaitSlice with Call::Poll between them.
  // Leaves the call's turnstile when all is enqueued. After an error nothing more is written.
  virtual absl::Status Run() = 0;
  // All ranks are through (with restore: have committed). What was staged is written now.
  virtual absl::Status Commit() { return absl::OkStatus(); }
  // Last. `ran`: Run returned OK; else the epoch was aborted, and this waits (bounded) until the backend
  // has let go of all memory. `ok`: how the call ended.
  virtual void Close(bool ran, bool ok) = 0;
  // Printable paths of the leaves that hold their result, and whether no leaf was touched.
  virtual std::vector<std::string> PathsDone() const { return {}; }
  virtual bool TreeUnchanged() const = 0;
};

class Operation : public TreeOperation {
 public:
  // Checks, plans and posts. On an error the other ranks have been told. Called once, first.
  absl::Status Post(bool async);

  std::optional<absl::Status> RunUntil(absl::Time until, const InterruptCheck& interrupt) final;
  void Cancel() final { call_->Cancel(); }
  CollectiveStats stats() const final { return stats_; }
  const TreeResult& result() const final { return result_; }

  // After Post: whether messages may go beside the control channel.
  bool may_have_data() const { return may_have_data_; }
  // Whom to tell of each bucket that is done; none for a synchronous call.
  void set_run(std::weak_ptr<OperationRun> run) { run_ = std::move(run); }

  // The result, for a synchronous call that is over.
  TreeResult TakeResult() { return std::move(result_); }

  const Group& group() const { return group_; }
  const CallOptions& options() const { return options_; }

 protected:
  // `kind_name`: as users know it ("broadcast"); begins the text of every error.
  Operation(Group group, CollectiveKind kind, std::string_view kind_name, CallOptions options);

  // Checks this rank's part, plans it, and fills of `spec`: digest, soft_digest, describe, restore
  // and what a frame needs. The rest is filled already. An error is this rank's own and refuses the call.
  virtual absl::Status Prepare(CallSpec& spec) = 0;
  // The call was decided as a frame (on a group of one: posted as one); `frame` is its result. Writes
  // leaves and result().
  virtual absl::Status FinishFrame(absl::Span<const char> frame) = 0;
  // The call was granted. References outlive the phase. Null only if Prepare always posts frames.
  virtual std::unique_ptr<DataPhase> StartData(DataContext& context,
                                               const InterruptCheck& interrupt) = 0;

  Call& call() { return *call_; }
  Engine& engine() const { return group_.engine(); }
  int size() const { return group_.size(); }
  int rank() const { return group_.rank().value(); }
  std::shared_ptr<OperationRun> run() const { return run_.lock(); }
  // "all_reduce 'name' on rank 3"
  const std::string& where() const { return where_; }

  CollectiveStats stats_;
  TreeResult result_;

 private:
  absl::Status CheckOptions() const;
  absl::Status RunData(const InterruptCheck& interrupt);

  const Group group_;
  const CollectiveKind kind_;
  const CallOptions options_;
  const std::string where_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::shared_ptr<Call> call_;
  std::weak_ptr<OperationRun> run_;
  bool may_have_data_ = true;
};

// Posts `operation` and drives it to its end in this thread; fills options().stats.
absl::Status RunNow(Operation& operation);

// Posts `operation`; an error of this rank's own is returned here. Operations that may have data are
// driven by the group's worker, others by whoever waits.
absl::StatusOr<TreeWork> RunAsync(std::shared_ptr<Operation> operation);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_OPERATION_H_
