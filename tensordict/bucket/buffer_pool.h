// BufferPool: buffers that are used again, with a bound on what is kept.
#ifndef LEAFPACK_TENSORDICT_BUCKET_BUFFER_POOL_H_
#define LEAFPACK_TENSORDICT_BUCKET_BUFFER_POOL_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace leafpack {

// Buffers begin at multiples of this many bytes.
inline constexpr size_t kBufferAlignment = 64;

// Threads: any. Outlives its buffers' users: a Buffer keeps what it needs alive.
class BufferPool {
  struct Slab;
  struct State;

 public:
  // A buffer on loan; its destructor gives it back. Move-only.
  class Buffer {
   public:
    Buffer();
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();

    explicit operator bool() const { return slab_ != nullptr; }
    // Address of the first byte, a multiple of kBufferAlignment; null for an empty buffer.
    void* data() const;
    // As many bytes as were asked for.
    int64_t bytes() const { return bytes_; }
    // The first bytes as a 1-d tensor of `numel` elements of `dtype`, without autograd. Kept with the
    // memory, so that asking again for the same dtype and size makes no new tensor. The tensor must
    // not be used after the buffer was given back.
    const at::Tensor& AsTensor(at::ScalarType dtype, int64_t numel);

   private:
    friend class BufferPool;
    std::shared_ptr<State> state_;
    std::unique_ptr<Slab> slab_;
    int64_t bytes_ = 0;
  };

  // What the pool holds, in bytes.
  struct Stats {
    int64_t free_bytes = 0;     // kept for later
    int64_t in_use_bytes = 0;   // on loan
    int64_t peak_in_use_bytes = 0;
    int64_t allocations = 0;    // calls of the device's allocator so far
  };

  // Keeps at most `max_free_bytes` of buffers that are not on loan; the oldest go first.
  explicit BufferPool(int64_t max_free_bytes = int64_t{256} << 20);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of `bytes` >= 0 on `device`, its contents undefined. ResourceExhausted if the device has
  // no memory left.
  absl::StatusOr<Buffer> Acquire(int64_t bytes, c10::Device device = c10::Device(c10::kCPU));

  // Frees all buffers that are not on loan.
  void Trim();

  Stats stats() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_BUCKET_BUFFER_POOL_H_
