// MockDevice: a device in place of a GPU with NCCL, for tests. Its memory is the host's, its streams are queues
// that a thread each works off, its ranks are threads of this process, which meet as NCCL's do: by an id in the
// store. What NCCL does not do it refuses to do, and what NCCL loses (NaN in min and max) it loses.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_MOCK_DEVICE_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_MOCK_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "distributed/backends/nccl/device.h"

namespace leafpack::nccl_internal {

// Runs what is put on it in order, in a thread of its own. Thread-safe.
class MockStream {
 public:
  MockStream();
  // Does not wait: what is on it still runs. (Tasks on one stream hold others, so the last to let go of one may
  // be a task that it waits for.)
  ~MockStream();
  MockStream(const MockStream&) = delete;
  MockStream& operator=(const MockStream&) = delete;

  // Returns the number of tasks that were put on it, this one included.
  int64_t Put(std::function<void()> task);
  bool HasDone(int64_t tasks);
  // Waits until so many tasks are done.
  void Await(int64_t tasks);
  int64_t put();

 private:
  // Shared with the thread.
  struct State {
    absl::Mutex mutex;
    std::deque<std::function<void()>> queue ABSL_GUARDED_BY(mutex);
    int64_t put ABSL_GUARDED_BY(mutex) = 0;
    int64_t done ABSL_GUARDED_BY(mutex) = 0;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };
  static void Work(State& state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The calling thread's current stream; none: all that the thread does is done at once.
std::shared_ptr<MockStream> CurrentMockStream();

class WithMockStream {
 public:
  explicit WithMockStream(std::shared_ptr<MockStream> stream);
  ~WithMockStream();

 private:
  const std::shared_ptr<MockStream> before_;
};

// Switches and counters of a device; may be used from any thread.
struct MockControl {
  c10::Device current = c10::Device(c10::kCPU);  // or MockMemory(); set before a group is made
  std::atomic<bool> fail_connect{false};
  std::atomic<bool> broken{false};      // Communicator::Check fails
  std::atomic<bool> no_memory{false};   // Communicator::Allocate fails
  std::atomic<bool> deaf{false};        // Abort does nothing
  std::atomic<int> runs{0};             // Communicator::Run, over all ranks
  std::atomic<int> groups{0};           // groups of reductions, over all ranks
  std::atomic<int> members{0};          // members of these
  std::atomic<int> allocations{0};
  std::atomic<int> aborts{0};

  // The threads that put groups of reductions on streams.
  void NoteEnqueue() {
    absl::MutexLock lock(&mutex);
    threads.insert(std::this_thread::get_id());
  }
  bool Enqueued(std::thread::id thread) {
    absl::MutexLock lock(&mutex);
    return threads.contains(thread);
  }
  size_t EnqueuingThreads() {
    absl::MutexLock lock(&mutex);
    return threads.size();
  }

  absl::Mutex mutex;
  std::set<std::thread::id> threads ABSL_GUARDED_BY(mutex);
};

class MockDevice : public Device {
 public:
  explicit MockDevice(std::shared_ptr<MockControl> control) : control_(std::move(control)) {}
  c10::DeviceType type() const override { return control_->current.type(); }
  absl::StatusOr<c10::Device> Current() override { return control_->current; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const DataContextOptions& options,
                                                        c10::Device device, absl::Time deadline) override;

 private:
  const std::shared_ptr<MockControl> control_;
};

// Registers the backend over a mock as `name`, once per name; returns the switches of its devices.
std::shared_ptr<MockControl> RegisterMockBackend(const std::string& name);

}  // namespace leafpack::nccl_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_NCCL_MOCK_DEVICE_H_
