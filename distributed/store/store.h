// Key-value stores over which ranks meet: libtorch's, with errors as absl::Status.
//
//   ASSIGN_OR_RETURN(leafpack::Store store,
//                    leafpack::Store::Tcp("10.0.0.1", 29500, {.serves = rank == 0}));
//   RETURN_IF_ERROR(store.Set("seed", "42"));
//   ASSIGN_OR_RETURN(std::string seed, store.Get("seed"));       // waits for it
//   ASSIGN_OR_RETURN(leafpack::Group group, leafpack::GroupFromStore(store, "g", rank, size));
#ifndef LEAFPACK_DISTRIBUTED_STORE_STORE_H_
#define LEAFPACK_DISTRIBUTED_STORE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/group.h"
#include "distributed/core/rank.h"

namespace c10d {
class Store;
}

namespace leafpack {

// What waits for a key, or for the server, when no other time is given.
inline constexpr absl::Duration kStoreTimeout = absl::Minutes(5);

// A handle: copies share one connection, whose calls come one after the other, so a call of another
// thread waits behind one that waits for a key; Clone() has a connection of its own. Thread-safe.
//
// Errors of all members: DeadlineExceeded when the time is over, with the keys; Unavailable when the
// store cannot be reached; InvalidArgument for a bad argument. Each text begins with the operation.
class Store {
 public:
  struct TcpOptions {
    bool serves = false;  // listens at the address (one process), as long as a handle of it lives
    absl::Duration timeout = kStoreTimeout;  // also for the server to appear
  };
  // A store in one process, reached by TCP. `port` 0 with `serves`: a free one, see port().
  static absl::StatusOr<Store> Tcp(const std::string& host, int port, TcpOptions options);
  // A store in a file that all processes see. The file may exist: what is in it is in the store, so a
  // file of a dead run must be removed before (GroupFromFile knows it and need not be told).
  static absl::StatusOr<Store> File(const std::string& path, absl::Duration timeout = kStoreTimeout);
  // A store in the memory of this process.
  static Store Hash(absl::Duration timeout = kStoreTimeout);
  // A store that the caller has; null is InvalidArgument.
  static absl::StatusOr<Store> Wrap(c10::intrusive_ptr<c10d::Store> store);

  // The same store with `prefix` and "/" before each key.
  Store WithPrefix(std::string_view prefix) const;
  absl::StatusOr<Store> Clone() const;

  absl::Status Set(std::string_view key, std::string_view value);
  // Waits for the key.
  absl::StatusOr<std::string> Get(std::string_view key);
  // Adds to a number that begins with 0 and returns the sum. Its value reads as decimal text.
  // FailedPrecondition if the value is no number.
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t amount);
  // Returns when all keys are there, after `timeout` at the latest (InfiniteDuration: the store's own).
  absl::Status Wait(const std::vector<std::string>& keys,
                    absl::Duration timeout = absl::InfiniteDuration());
  // Whether all keys are there now.
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys);
  // In one step: sets `key` to `desired` if it has the value `expected`, or if it has none and
  // `expected` is empty. Returns the value afterwards: `desired` if it was set; where the key has no
  // value and `expected` is not empty, `expected`.
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired);
  // Keys of the whole store, whatever the prefix. A file store counts one or two keys of its own.
  absl::StatusOr<int64_t> NumKeys();
  // True if it was there.
  absl::StatusOr<bool> Delete(std::string_view key);

  absl::Duration timeout() const;
  absl::Status set_timeout(absl::Duration timeout);  // more than zero
  // Of a TCP store; 0 otherwise.
  int port() const;

  // libtorch's own; its header is torch/csrc/distributed/c10d/Store.hpp.
  c10::intrusive_ptr<c10d::Store> c10d() const;

 private:
  struct Held;  // c10d's headers are slow
  explicit Store(c10::intrusive_ptr<c10d::Store> store);
  std::shared_ptr<const Held> held_;
};

// As of a c10d store (distributed/store/groups.h).
absl::StatusOr<Group> GroupFromStore(const Store& store, std::string_view prefix, int rank, int size,
                                     std::vector<GlobalRank> global_ranks = {},
                                     GroupOptions options = {});

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_STORE_STORE_H_
