// What the control channel asks of a store: enough to publish one small value and to look for it.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_KEY_VALUE_STORE_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_KEY_VALUE_STORE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace leafpack {

// Calls may block for as long as the store's server takes, so the channel makes them from a thread of
// its own. One thread at a time for each object; clones are independent. Nothing throws.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Whether `key` has a value. Never waits for it to get one.
  virtual absl::StatusOr<bool> Check(std::string_view key) = 0;
  // The value of a key for which Check was true.
  virtual absl::StatusOr<std::string> Get(std::string_view key) = 0;
  virtual absl::Status Set(std::string_view key, std::string_view value) = 0;
  // The same data through a connection of its own. May block like the other calls.
  virtual absl::StatusOr<std::unique_ptr<KeyValueStore>> Clone() = 0;
};

// Values in this process, shared by all clones: for groups whose ranks are threads, and for tests.
// Thread-safe.
std::unique_ptr<KeyValueStore> NewInMemoryStore();

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_KEY_VALUE_STORE_H_
