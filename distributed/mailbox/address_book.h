// Where the mailboxes of a group are: publishes this rank's address in the group's store, and looks for
// those of others, in a thread of its own, since a store may block for as long as its server does.
#ifndef LEAFPACK_DISTRIBUTED_MAILBOX_ADDRESS_BOOK_H_
#define LEAFPACK_DISTRIBUTED_MAILBOX_ADDRESS_BOOK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "distributed/core/channel/key_value_store.h"

namespace leafpack::mailbox {

// Thread-safe. Touched by no forked child.
class AddressBook {
 public:
  // Publishes `address` for `rank`; tries again, after 1 to 20 ms, as long as the store fails.
  static absl::StatusOr<std::unique_ptr<AddressBook>> Open(std::unique_ptr<KeyValueStore> store,
                                                           int rank, std::string address);
  // Ends the thread. A call to the store that is under way is waited for 100 ms at most; then the
  // thread is left behind and ends with its call.
  ~AddressBook();

  // Looks for the address of `rank`, every 1 to 20 ms, and goes on looking for other values of it.
  void Want(int rank);
  void Forget(int rank);

  struct News {
    std::vector<std::pair<int, std::string>> addresses;  // new ones since the last Take
    absl::Status error;  // of the last call to the store
  };
  // Never blocks.
  News Take();
  // Readable when there are addresses to Take.
  int fd() const;

 private:
  struct State;
  explicit AddressBook(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void Run(State& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace leafpack::mailbox

#endif  // LEAFPACK_DISTRIBUTED_MAILBOX_ADDRESS_BOOK_H_
