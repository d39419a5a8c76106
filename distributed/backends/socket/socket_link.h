// Messages between the ranks of one data context over sockets of our own: Unix ones between processes of one
// host, TCP else.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SOCKET_SOCKET_LINK_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SOCKET_SOCKET_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/messages/message_link.h"

namespace leafpack::socket_internal {

// A mailbox whose transfers are messages. Whoever waits for a message moves the bytes of all.
class SocketLink : public messages::MessageLink {
 public:
  // Connects all ranks of `options`; collective. DeadlineExceeded when not all are there by `deadline`,
  // InvalidArgument for an interface that does not exist, Unavailable when the system refuses sockets.
  static absl::StatusOr<std::unique_ptr<SocketLink>> Connect(const DataContextOptions& options,
                                                             absl::Time deadline);
  ~SocketLink() override = default;

  const messages::Schedule& schedule() const override { return schedule_; }
  absl::StatusOr<std::unique_ptr<messages::Message>> Send(
      int peer, uint32_t tag, absl::Span<const messages::Run> runs) override;
  absl::StatusOr<std::unique_ptr<messages::Message>> Receive(
      int peer, uint32_t tag, absl::Span<const messages::Run> runs) override;
  absl::Status Wait(messages::Message& message) override;
  void Abort() override;

 private:
  SocketLink(std::shared_ptr<mailbox::Mailbox> mailbox, const DataContextOptions& options);
  // A byte to and from every rank, so that the death of one shows from now on.
  absl::Status Greet(int rank, int size, absl::Time deadline);
  absl::StatusOr<std::unique_ptr<messages::Message>> Post(bool is_send, int peer, uint32_t tag,
                                                          absl::Span<const messages::Run> runs,
                                                          absl::Duration timeout);
  // What a message ended with: group ranks stand for ranks in its details, so they go.
  absl::Status Told(const absl::Status& status) const;

  const messages::Schedule schedule_;
  const absl::Duration timeout_;
  const std::shared_ptr<mailbox::Mailbox> mailbox_;
  std::atomic<bool> aborted_{false};
};

}  // namespace leafpack::socket_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SOCKET_SOCKET_LINK_H_
