// The interface between groups and the engines that move leaf data (Gloo, NCCL, shared memory, ...).
//
// A Backend is chosen by name when a group is made. For each epoch of the group (a new one begins
// after a failure during data) it opens one DataContext; all data of granted calls goes through it,
// in the order of the calls. Nothing reaches a context before the ranks agreed on the call. AllReduce and
// Exchange are all that a backend must do; the collectives on trees are made of them.
#ifndef LEAFPACK_DISTRIBUTED_CORE_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_CORE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/reduce_op.h"

namespace c10d {
class Store;
}

namespace leafpack {

// One leaf or packed bucket as a backend sees it. `sizes` and `strides` are in elements.
// `keep_alive` owns the memory; a backend holds it until the work is over.
struct LeafView {
  void* data = nullptr;
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::shared_ptr<const void> keep_alive;
};

// One operation that was handed to a DataContext. Thread-safe.
class DataWork {
 public:
  virtual ~DataWork() = default;
  // True once the operation is over, well or badly. Never blocks.
  virtual bool IsDone() = 0;
  // Waits at most `slice`. Returns true when the operation is over and succeeded, false when it
  // still runs, an error when it failed. A wait that runs out does not harm the operation.
  virtual absl::StatusOr<bool> WaitFor(absl::Duration slice) = 0;
};

// What one rank sends to, or receives from, one peer in an exchange.
struct Transfer {
  int peer = 0;  // group rank, never the own one
  std::vector<LeafView> views;
};

// The data path of one group in one epoch. Calls come from one thread at a time, in the same order
// on all ranks; Abort may come from any thread.
class DataContext {
 public:
  virtual ~DataContext() = default;
  // Starts the in-place reduction of `views` over all ranks and returns its work. A backend that
  // does not pack for itself gets contiguous views only. `op.factor` was applied by the caller
  // (kPremulSum arrives as kSum); AVG arrives as kAvg.
  virtual absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                              const ReduceOp& op) = 0;
  // Starts a personalised exchange, from which all collectives that do not reduce are made: this rank
  // sends the `sends` and receives the `receives`, both by rising peer, each peer once at most. All
  // ranks call it, also those that have nothing to move. What a names for b, b names for a: lists of
  // equally many views, each with as many bytes as its partner (the ranks agreed on them before). A
  // backend that does not pack for itself gets contiguous views only. Memory that is received into
  // must not overlap any other memory of the exchange. Works may end in any order.
  virtual absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                             std::vector<Transfer> receives);
  // Makes every work that is not over end with an error within about 20 ms. Idempotent. The
  // context takes no more work afterwards.
  virtual void Abort() = 0;
};

// What a DataContext is built from. `store` belongs to this group and epoch alone.
struct DataContextOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  bool all_local = false;      // every rank proved to be on this host
  std::string interface_name;  // network interface to use; empty: the backend chooses
  absl::Duration timeout;      // for operations of the backend itself; never shorter than a call's
};

// How long a message takes: `per_message` + bytes * `per_byte`, in seconds. Input of the automatic
// bucketing; a pure function of the number of ranks, equal on all ranks.
struct BackendCost {
  double per_message = 0;  // s
  double per_byte = 0;     // s
  double pack_per_byte = 0;  // s, to pack a byte and to unpack it again
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // OK when all-reduce of this dtype with this op on this device type is possible, else Unimplemented.
  virtual absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                         c10::DeviceType device) const = 0;
  // OK when Exchange can move leaves of this dtype on this device type, else Unimplemented.
  virtual absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const;
  // True when operations must be enqueued by the thread that called the collective.
  virtual bool MustEnqueueInCallerThread() const { return false; }
  // True when AllReduce takes strided views and many leaves at once.
  virtual bool PacksForItself() const { return false; }
  virtual BackendCost Cost(int ranks) const = 0;
  // Opens the data path; collective over all ranks of the group, returns by `deadline`.
  virtual absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                            absl::Time deadline) = 0;
};

using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>()>;

// Makes `name` known; called from a static initializer of the backend's package (alwayslink).
// Returns false, and logs, when the name is taken.
bool RegisterBackend(std::string_view name, BackendFactory factory);

// A new backend by name; NotFound lists the names that are linked in.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name);

// Sorted names of the backends that are linked in.
std::vector<std::string> BackendNames();

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_BACKEND_H_
