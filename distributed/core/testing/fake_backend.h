// A backend for tests of the engine: all-reduce (SUM and AVG of contiguous float32) and exchange (of any
// dtype) through the store that the engine hands it, so it works between threads and between processes
// alike. Faults can be ordered ahead: operations that fail, that never end, contexts that do not open.
#ifndef LEAFPACK_DISTRIBUTED_CORE_TESTING_FAKE_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_CORE_TESTING_FAKE_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/backend.h"

namespace leafpack::testing {

// Switches and counters of one backend instance; may be thrown from any thread.
struct FakeFaults {
  std::atomic<bool> fail_next_op{false};    // the next operation reports Internal
  std::atomic<bool> stall_next_op{false};   // the next operation sends nothing and never ends
  std::atomic<bool> fail_next_open{false};  // the next Open returns InvalidArgument
  std::atomic<int> opens{0};                // contexts opened
  std::atomic<int> contexts{0};             // contexts alive
  std::atomic<int> works{0};                // works alive
  std::atomic<int> aborts{0};
  std::atomic<int64_t> exchanged_bytes{0};  // sent by exchanges
};

class FakeBackend : public Backend {
 public:
  // `caller_thread`: wants operations enqueued by the thread that made the call.
  explicit FakeBackend(bool caller_thread = false) : caller_thread_(caller_thread) {}

  std::string_view name() const override { return caller_thread_ ? "fake-caller" : "fake"; }
  bool MustEnqueueInCallerThread() const override { return caller_thread_; }
  absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                 c10::DeviceType device) const override;
  absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const override;
  BackendCost Cost(int ranks) const override;
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override;
  FakeFaults& faults() { return *faults_; }

 private:
  const bool caller_thread_;
  std::shared_ptr<FakeFaults> faults_ = std::make_shared<FakeFaults>();
};

// Registers FakeBackend once: "fake", and "fake-caller" with `caller_thread`.
void RegisterFakeBackend();

}  // namespace leafpack::testing

#endif  // LEAFPACK_DISTRIBUTED_CORE_TESTING_FAKE_BACKEND_H_
