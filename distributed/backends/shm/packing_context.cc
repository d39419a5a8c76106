#include "distributed/backends/shm/packing_context.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "distributed/backends/shm/view_bytes.h"

namespace leafpack::shm {
namespace {

// A contiguous view of so many bytes is not worth a copy.
constexpr int64_t kDirectBytes = 256 << 10;
// What goes in one message, so that several are under way.
constexpr int64_t kMessageBytes = 16 << 20;

// Views in one buffer.
struct Packed {
  std::vector<LeafView> views;
  ViewBytes bytes;
  LeafView buffer;
};

absl::StatusOr<Packed> Pack(std::vector<LeafView> views, bool fill) {
  Packed packed;
  absl::StatusOr<ViewBytes> bytes = ViewBytes::Of(views);
  if (!bytes.ok()) return bytes.status();
  packed.views = std::move(views);
  packed.bytes = *std::move(bytes);
  const size_t size = static_cast<size_t>(packed.bytes.size());
  std::shared_ptr<void> memory(std::malloc(size), &std::free);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a buffer of ", size, " bytes"));
  }
  if (fill) packed.bytes.Gather(0, packed.bytes.size(), static_cast<char*>(memory.get()));
  const at::ScalarType dtype = packed.views.front().dtype;
  packed.buffer.data = memory.get();
  packed.buffer.dtype = dtype;
  packed.buffer.sizes = {packed.bytes.size() / static_cast<int64_t>(c10::elementSize(dtype))};
  packed.buffer.strides = {1};
  packed.buffer.keep_alive = std::move(memory);
  return packed;
}

class PackedWork : public DataWork {
 public:
  PackedWork(std::unique_ptr<DataWork> work, std::vector<Packed> targets)
      : work_(std::move(work)), targets_(std::move(targets)) {}

  bool IsDone() override {
    if (!work_->IsDone()) return false;
    const absl::StatusOr<bool> done = work_->WaitFor(absl::ZeroDuration());
    if (done.ok() && *done) Scatter();
    return true;
  }
  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    absl::StatusOr<bool> done = work_->WaitFor(slice);
    if (done.ok() && *done) Scatter();
    return done;
  }

 private:
  void Scatter() {
    absl::MutexLock lock(&mutex_);
    for (const Packed& packed : targets_) {
      packed.bytes.Scatter(static_cast<const char*>(packed.buffer.data), 0, packed.bytes.size());
    }
    targets_.clear();
  }

  const std::unique_ptr<DataWork> work_;
  absl::Mutex mutex_;
  std::vector<Packed> targets_ ABSL_GUARDED_BY(mutex_);
};

// One contiguous view in place of `views` (not empty): the only one itself, if it is contiguous, else a
// buffer, which comes into `buffers`.
absl::StatusOr<LeafView> Join(std::vector<LeafView> views, bool fill,
                              std::vector<Packed>& buffers) {
  if (views.size() == 1) {
    const absl::StatusOr<ViewBytes> bytes = ViewBytes::Of(views);
    if (!bytes.ok()) return bytes.status();
    if (bytes->size() == 0 || bytes->PieceAt(0, bytes->size()).data != nullptr) {
      return std::move(views.front());
    }
  }
  absl::StatusOr<Packed> packed = Pack(std::move(views), fill);
  if (!packed.ok()) return packed.status();
  LeafView buffer = packed->buffer;
  buffers.push_back(*std::move(packed));
  return buffer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataWork>> PackingContext::AllReduce(std::vector<LeafView> views,
                                                                    const ReduceOp& op) {
  // What is joined must be the same on all ranks, whose strides may differ: so joining looks at sizes
  // only, and a large strided view goes alone as a large contiguous one does.
  std::vector<std::vector<LeafView>> runs;
  int64_t run_bytes = 0;
  for (LeafView& view : views) {
    int64_t bytes = static_cast<int64_t>(c10::elementSize(view.dtype));
    for (const int64_t size : view.sizes) bytes *= size;
    if (bytes == 0) continue;
    const bool alone = bytes >= kDirectBytes;
    if (runs.empty() || alone || run_bytes + bytes > kMessageBytes ||
        runs.back().front().dtype != view.dtype) {
      runs.emplace_back();
      run_bytes = 0;
    }
    runs.back().push_back(std::move(view));
    run_bytes += alone ? kMessageBytes : bytes;
  }
  std::vector<LeafView> messages;
  std::vector<Packed> buffers;
  for (std::vector<LeafView>& run : runs) {
    absl::StatusOr<LeafView> message = Join(std::move(run), /*fill=*/true, buffers);
    if (!message.ok()) return message.status();
    messages.push_back(*std::move(message));
  }
  absl::StatusOr<std::unique_ptr<DataWork>> work = context_->AllReduce(std::move(messages), op);
  if (!work.ok()) return work.status();
  return std::make_unique<PackedWork>(*std::move(work), std::move(buffers));
}

absl::StatusOr<std::unique_ptr<DataWork>> PackingContext::Exchange(std::vector<Transfer> sends,
                                                                   std::vector<Transfer> receives) {
  std::vector<Packed> sources, targets;
  for (auto [transfers, buffers] : {std::pair(&sends, &sources), std::pair(&receives, &targets)}) {
    for (Transfer& transfer : *transfers) {
      // View by view: the partner's list has as many.
      for (LeafView& view : transfer.views) {
        absl::StatusOr<LeafView> message = Join({view}, buffers == &sources, *buffers);
        if (!message.ok()) return message.status();
        view = *std::move(message);
      }
    }
  }
  // What is sent from a buffer is kept by the views.
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      context_->Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  return std::make_unique<PackedWork>(*std::move(work), std::move(targets));
}

}  // namespace leafpack::shm
