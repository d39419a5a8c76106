#include "tensordict/bucket/buffer_pool.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace leafpack {
namespace {

// Capacities are multiples of an eighth of their size, and of a page, so that sizes that vary a
// little find the same buffers again.
int64_t Capacity(int64_t bytes) {
  int64_t step = 4096;
  while (step * 8 < bytes) step *= 2;
  return std::max<int64_t>((bytes + step - 1) / step * step, step);
}

// Views that a buffer remembers.
constexpr size_t kViews = 4;

}  // namespace

struct BufferPool::Slab {
  at::Tensor memory;  // bytes
  void* data = nullptr;
  int64_t capacity = 0;
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<at::Tensor> views;
  size_t next_view = 0;
};

struct BufferPool::State {
  explicit State(int64_t max) : max_free_bytes(max) {}

  const int64_t max_free_bytes;
  absl::Mutex mutex;
  std::vector<std::unique_ptr<Slab>> free ABSL_GUARDED_BY(mutex);  // the oldest first
  Stats stats ABSL_GUARDED_BY(mutex);

  void TakeBack(std::unique_ptr<Slab> slab) {
    // Memory is freed without the lock.
    std::vector<std::unique_ptr<Slab>> doomed;
    absl::MutexLock lock(&mutex);
    stats.in_use_bytes -= slab->capacity;
    stats.free_bytes += slab->capacity;
    free.push_back(std::move(slab));
    while (stats.free_bytes > max_free_bytes) {
      stats.free_bytes -= free.front()->capacity;
      doomed.push_back(std::move(free.front()));
      free.erase(free.begin());
    }
  }
};

BufferPool::Buffer::Buffer(Buffer&& other) noexcept
    : state_(std::move(other.state_)),
      slab_(std::move(other.slab_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (slab_ != nullptr) state_->TakeBack(std::move(slab_));
    state_ = std::move(other.state_);
    slab_ = std::move(other.slab_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

BufferPool::Buffer::~Buffer() {
  if (slab_ != nullptr) state_->TakeBack(std::move(slab_));
}

BufferPool::Buffer::Buffer() = default;

void* BufferPool::Buffer::data() const { return slab_ == nullptr ? nullptr : slab_->data; }

const at::Tensor& BufferPool::Buffer::AsTensor(at::ScalarType dtype, int64_t numel) {
  Slab& slab = *slab_;
  for (const at::Tensor& view : slab.views) {
    if (view.scalar_type() == dtype && view.numel() == numel) return view;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  at::Tensor view = slab.memory.narrow(0, 0, bytes).view(dtype);
  if (slab.views.size() < kViews) return slab.views.emplace_back(std::move(view));
  slab.next_view = (slab.next_view + 1) % kViews;
  return slab.views[slab.next_view] = std::move(view);
}

BufferPool::BufferPool(int64_t max_free_bytes) : state_(std::make_shared<State>(max_free_bytes)) {}

BufferPool::~BufferPool() = default;

absl::StatusOr<BufferPool::Buffer> BufferPool::Acquire(int64_t bytes, c10::Device device) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a buffer cannot have ", bytes, " bytes"));
  }
  const int64_t capacity = Capacity(bytes);
  std::unique_ptr<Slab> slab;
  {
    absl::MutexLock lock(&state_->mutex);
    // The smallest that fits and wastes at most half; the newest of these, as it is warm.
    auto best = state_->free.end();
    for (auto it = state_->free.begin(); it != state_->free.end(); ++it) {
      const Slab& candidate = **it;
      if (candidate.device != device || candidate.capacity < capacity ||
          candidate.capacity > 2 * capacity) {
        continue;
      }
      if (best == state_->free.end() || candidate.capacity <= (*best)->capacity) best = it;
    }
    if (best != state_->free.end()) {
      slab = std::move(*best);
      state_->free.erase(best);
      state_->stats.free_bytes -= slab->capacity;
    } else {
      ++state_->stats.allocations;
    }
    state_->stats.in_use_bytes += slab != nullptr ? slab->capacity : capacity;
    state_->stats.peak_in_use_bytes =
        std::max(state_->stats.peak_in_use_bytes, state_->stats.in_use_bytes);
  }
  if (slab == nullptr) {
    std::string error;
    try {
      const at::AutoDispatchBelowADInplaceOrView guard;
      slab = std::make_unique<Slab>();
      slab->memory = at::empty({capacity}, c10::TensorOptions().dtype(at::kByte).device(device));
      slab->data = slab->memory.mutable_data_ptr();
      slab->capacity = capacity;
      slab->device = device;
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
    } catch (const std::exception& e) {
      error = e.what();
    }
    if (!error.empty()) {
      absl::MutexLock lock(&state_->mutex);
      state_->stats.in_use_bytes -= capacity;
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a buffer of ", bytes,
                                                       " bytes on ", device.str(), ": ", error));
    }
  }
  Buffer buffer;
  buffer.state_ = state_;
  buffer.slab_ = std::move(slab);
  buffer.bytes_ = bytes;
  return buffer;
}

void BufferPool::Trim() {
  std::vector<std::unique_ptr<Slab>> doomed;
  absl::MutexLock lock(&state_->mutex);
  std::swap(doomed, state_->free);
  state_->stats.free_bytes = 0;
}

BufferPool::Stats BufferPool::stats() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->stats;
}

}  // namespace leafpack
