// Personalised exchanges over the messages of one data context; see DataContext::Exchange.
//
// The thread that starts an exchange posts all of its messages; a thread of the exchanger, made with the
// first one, waits for them in order. So works go on whoever waits for them, and when nobody does.
// All messages have one tag of their own: those between two ranks match in the order of the exchanges,
// whatever all-reduces are under way.
#ifndef LEAFPACK_DISTRIBUTED_MESSAGES_EXCHANGER_H_
#define LEAFPACK_DISTRIBUTED_MESSAGES_EXCHANGER_H_

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/backend.h"
#include "distributed/messages/message_link.h"

namespace leafpack::messages {

class Exchanger {
 public:
  // `link` connects at least two ranks and must outlive the exchanger.
  explicit Exchanger(MessageLink* link) : link_(link) {}
  // Ends what is under way with Cancelled.
  ~Exchanger();
  Exchanger(const Exchanger&) = delete;
  Exchanger& operator=(const Exchanger&) = delete;

  // Starts an exchange of contiguous CPU views. After Abort or a failure it returns that error.
  absl::StatusOr<std::unique_ptr<DataWork>> Start(std::vector<Transfer> sends,
                                                  std::vector<Transfer> receives);

  // Ends every exchange with an error soon; see DataContext::Abort. Thread-safe.
  void Abort();

 private:
  class Exchange;
  class Work;

  absl::Status Post(Exchange& exchange);
  absl::Status PostAll(Exchange& exchange, bool send);
  void Loop();
  // Nothing starts any more, and what the thread waits for ends.
  // Returns the first failure, which all that ends by it tells: else some would only say "aborted".
  absl::Status Fail(const absl::Status& status);
  // The thread's: ends everything with `status`.
  void DropAll(const absl::Status& status);

  MessageLink* const link_;

  absl::Mutex mutex_;
  // Oldest first; the front is the thread's.
  std::deque<std::shared_ptr<Exchange>> active_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace leafpack::messages

#endif  // LEAFPACK_DISTRIBUTED_MESSAGES_EXCHANGER_H_
