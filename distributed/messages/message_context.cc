#include "distributed/messages/message_context.h"

#include <cstdint>
#include <utility>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/messages/view_sequence.h"
#include "distributed/core/reduce/reduce.h"

namespace leafpack::messages {
namespace {

// Work that was over when it was made: groups of one rank.
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

// Memory in which the elements of a strided view lie in a row, for an exchange.
LeafView MakeRow(const LeafView& view) {
  const int64_t numel = ElementCount(view);
  auto memory = std::make_shared<std::vector<char>>(static_cast<size_t>(numel) *
                                                    c10::elementSize(view.dtype));
  LeafView row;
  row.data = memory->data();
  row.dtype = view.dtype;
  row.sizes = {numel};
  row.strides = {1};
  row.keep_alive = std::move(memory);
  return row;
}

// An exchange of which some views were received into rows. Whoever learns of its end has them copied.
class RowsWork : public DataWork {
 public:
  struct Received {
    LeafView view;
    LeafView row;
  };
  RowsWork(std::unique_ptr<DataWork> work, std::vector<Received> received)
      : work_(std::move(work)), received_(std::move(received)) {}

  bool IsDone() override {
    if (!work_->IsDone()) return false;
    WaitFor(absl::ZeroDuration()).IgnoreError();  // copies; whoever waits is told of an error
    return true;
  }
  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    absl::StatusOr<bool> done = work_->WaitFor(slice);
    if (!done.ok() || !*done) return done;
    absl::MutexLock lock(&mutex_);
    for (const Received& received : received_) {
      const ViewSequence views(absl::MakeConstSpan(&received.view, 1));
      views.Scatter(views.segments()[0], 0, views.segments()[0].numel,
                    static_cast<const char*>(received.row.data));
    }
    received_.clear();
    return done;
  }

 private:
  const std::unique_ptr<DataWork> work_;
  absl::Mutex mutex_;
  std::vector<Received> received_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

MessageContext::MessageContext(std::string_view name, std::unique_ptr<MessageLink> link, int rank,
                               int size)
    : name_(name),
      rank_(rank),
      size_(size),
      link_(std::move(link)),
      pipeline_(size == 1 ? nullptr
                          : std::make_unique<AllReducePipeline>(link_.get(), rank, size)),
      exchanger_(size == 1 ? nullptr : std::make_unique<Exchanger>(link_.get())) {}

absl::Status MessageContext::CheckView(const LeafView& view) const {
  if (view.sizes.size() != view.strides.size()) {
    return absl::InternalError(absl::StrCat("a view has ", view.sizes.size(), " sizes and ",
                                            view.strides.size(), " strides"));
  }
  if (view.device.is_cpu()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("the ", name_, " backend takes CPU memory, not ", view.device.str()));
}

absl::Status MessageContext::RunAlone(absl::Span<const LeafView> leaves, ReduceOpKind op) {
  const ViewSequence views(leaves);
  std::vector<char> row;
  absl::Status status;
  for (const Segment& segment : views.segments()) {
    const auto reduce = [&](char* data, int64_t count) {
      const void* inputs[] = {data};
      status = ReduceInto(op, segment.dtype, inputs, data, count);
    };
    views.ForEachRun(segment, 0, segment.numel, [&](char* run, int64_t offset, int64_t count) {
      if (!status.ok()) return;
      if (run != nullptr) return reduce(run, count);
      row.resize(static_cast<size_t>(count * segment.element_bytes));
      views.Gather(segment, offset / segment.element_bytes, count, row.data());
      reduce(row.data(), count);
      if (status.ok()) {
        views.Scatter(segment, offset / segment.element_bytes, count, row.data());
      }
    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DataWork>> MessageContext::AllReduce(std::vector<LeafView> views,
                                                                 const ReduceOp& op) {
  const ReduceOpKind kind =
      op.kind == ReduceOpKind::kPremulSum ? ReduceOpKind::kSum : op.kind;
  for (const LeafView& view : views) {
    if (absl::Status status = CheckOpAllowed(kind, view.dtype); !status.ok()) return status;
    if (absl::Status status = CheckView(view); !status.ok()) return status;
  }
  if (aborted_.load()) return absl::CancelledError("the data context was aborted");
  if (size_ == 1) {
    if (absl::Status status = RunAlone(views, kind); !status.ok()) return status;
    return std::make_unique<DoneWork>();
  }
  return std::make_unique<PipelineWork>(pipeline_->Submit(views, kind));
}

absl::Status MessageContext::CheckTransfers(const std::vector<Transfer>& transfers) const {
  int last = -1;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer <= last || transfer.peer >= size_ || transfer.peer == rank_) {
      return absl::InternalError(absl::StrCat("group rank ", rank_, " of ", size_,
                                              " was given a transfer with ", transfer.peer,
                                              " after one with ", last));
    }
    last = transfer.peer;
    for (const LeafView& view : transfer.views) {
      if (absl::Status status = CheckView(view); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DataWork>> MessageContext::Exchange(std::vector<Transfer> sends,
                                                                std::vector<Transfer> receives) {
  for (const std::vector<Transfer>* transfers : {&sends, &receives}) {
    if (absl::Status status = CheckTransfers(*transfers); !status.ok()) return status;
  }
  if (aborted_.load()) return absl::CancelledError("the data context was aborted");
  if (size_ == 1) return std::make_unique<DoneWork>();
  std::vector<RowsWork::Received> received;
  for (std::vector<Transfer>* transfers : {&sends, &receives}) {
    for (Transfer& transfer : *transfers) {
      for (LeafView& view : transfer.views) {
        if (ElementCount(view) == 0 || IsContiguous(view)) continue;
        LeafView row = MakeRow(view);
        if (transfers == &receives) {
          received.push_back({view, row});
        } else {
          const ViewSequence views(absl::MakeConstSpan(&view, 1));
          views.Gather(views.segments()[0], 0, views.segments()[0].numel,
                       static_cast<char*>(row.data));
        }
        view = std::move(row);
      }
    }
  }
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      exchanger_->Start(std::move(sends), std::move(receives));
  if (!work.ok() || received.empty()) return work;
  return std::make_unique<RowsWork>(*std::move(work), std::move(received));
}

void MessageContext::Abort() {
  aborted_.store(true);
  if (pipeline_ != nullptr) pipeline_->Abort();
  if (exchanger_ != nullptr) exchanger_->Abort();
}

namespace {

absl::Status CheckCpu(std::string_view backend, std::string_view does, c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("the ", backend, " backend ", does,
                                               " CPU tensors, not ",
                                               c10::DeviceTypeName(device, true)));
}

}  // namespace

absl::Status SupportsAllReduce(std::string_view backend, at::ScalarType dtype, ReduceOpKind op,
                               c10::DeviceType device) {
  if (absl::Status status = CheckCpu(backend, "reduces", device); !status.ok()) return status;
  return CheckOpAllowed(op, dtype);
}

absl::Status SupportsExchange(std::string_view backend, c10::DeviceType device) {
  return CheckCpu(backend, "moves", device);
}

absl::StatusOr<std::shared_ptr<DataContext>> Open(
    std::string_view backend, const DataContextOptions& options,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<MessageLink>>()> connect) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a group of ", options.size));
  }
  std::unique_ptr<MessageLink> link;
  if (options.size > 1) {
    absl::StatusOr<std::unique_ptr<MessageLink>> connected = connect();
    if (!connected.ok()) return connected.status();
    link = *std::move(connected);
  }
  return std::make_shared<MessageContext>(backend, std::move(link), options.rank, options.size);
}

}  // namespace leafpack::messages
