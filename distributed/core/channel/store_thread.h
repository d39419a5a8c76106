// Talks to the store for a connecting group, from a thread of its own: a call to a store may block
// for as long as its server does, and nobody who has a deadline may wait for that.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_STORE_THREAD_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_STORE_THREAD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/channel/key_value_store.h"

namespace leafpack {

class StoreThread {
 public:
  // Sets `key` to `value`, once; tries again, after 1 to 20 ms, as long as the store fails.
  static absl::StatusOr<std::unique_ptr<StoreThread>> Publish(std::unique_ptr<KeyValueStore> store,
                                                              std::string key, std::string value);
  // Looks for `key` by Check, after 1 to 20 ms, and goes on looking for other values of it.
  static absl::StatusOr<std::unique_ptr<StoreThread>> Watch(std::unique_ptr<KeyValueStore> store,
                                                            std::string key);
  // Ends the thread. Waits for a call to the store that is under way, but only 100 ms: then the thread
  // is left behind, owns what it needs, and ends with its call. Nothing at all in a forked child.
  ~StoreThread();

  struct News {
    std::optional<std::string> value;  // Watch: a new value since the last Take
    bool published = false;            // Publish: the store has the value
    absl::Status error;                // of the last call to the store
    absl::Duration failing;            // for how long every call has failed
  };
  // Never blocks.
  News Take();
  // Readable when there is something to Take.
  int fd() const;
  // Look every 20 ms (true, as at first) or every 500 ms (false).
  void SetEager(bool eager);
  // Asks the thread to end, without waiting for it.
  void Stop();

 private:
  struct State;
  StoreThread(std::shared_ptr<State> state, std::unique_ptr<std::thread> thread, uint64_t generation);
  static absl::StatusOr<std::unique_ptr<StoreThread>> Start(std::shared_ptr<State> state);
  static void Run(State& state);

  std::shared_ptr<State> state_;
  std::unique_ptr<std::thread> thread_;
  const uint64_t generation_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_STORE_THREAD_H_
