#include "distributed/backends/socket/socket_link.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/channel/c10d_key_value_store.h"

namespace leafpack::socket_internal {
namespace {

// No message of a collective has it.
constexpr uint32_t kGreetingTag = messages::MessageLink::kTagLimit;
constexpr std::string_view kAborted = "the data context was aborted";

// A message that is dropped is given up.
class SocketMessage : public messages::Message {
 public:
  SocketMessage(std::shared_ptr<mailbox::Mailbox> mailbox, mailbox::TransferPtr transfer)
      : mailbox_(std::move(mailbox)), transfer_(std::move(transfer)) {}
  ~SocketMessage() override { mailbox_->Cancel(transfer_); }

  mailbox::Transfer& transfer() { return *transfer_; }

 private:
  const std::shared_ptr<mailbox::Mailbox> mailbox_;
  const mailbox::TransferPtr transfer_;
};

// Measured by real-time priority on two cores: stages from 1 to 8 MiB were alike. The kernel's work for a run
// costs less than copying it where it has 1 KiB, and as much where it has 512 bytes.
messages::Schedule ScheduleFor(int ranks) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return {.stage_bytes = std::max(8 * kMiB, ranks * kMiB),
          .one_stage_bytes = 8 * kMiB,
          .active = 3,
          .started = 2,
          .receive_first = true,
          .min_run_bytes = 512};
}

}  // namespace

SocketLink::SocketLink(std::shared_ptr<mailbox::Mailbox> mailbox, const DataContextOptions& options)
    : schedule_(ScheduleFor(options.size)), timeout_(options.timeout), mailbox_(std::move(mailbox)) {}

absl::StatusOr<std::unique_ptr<SocketLink>> SocketLink::Connect(const DataContextOptions& options,
                                                                absl::Time deadline) {
  mailbox::MailboxOptions mailbox_options;
  mailbox_options.rank = options.rank;
  mailbox_options.rank_word = "group rank";
  for (int rank = 0; rank < options.size; ++rank) {
    mailbox_options.global_ranks.push_back(GlobalRank(rank));
  }
  mailbox_options.interface_name = options.interface_name;
  absl::StatusOr<std::shared_ptr<mailbox::Mailbox>> mailbox = mailbox::Mailbox::Open(
      WrapC10dStore(options.store, "mailbox"), std::move(mailbox_options));
  if (!mailbox.ok()) return mailbox.status();
  std::unique_ptr<SocketLink> link(new SocketLink(*std::move(mailbox), options));
  if (absl::Status met = link->Greet(options.rank, options.size, deadline); !met.ok()) return met;
  return link;
}

absl::Status SocketLink::Greet(int rank, int size, absl::Time deadline) {
  char out = 0;
  std::vector<char> in(static_cast<size_t>(size));
  std::vector<std::unique_ptr<messages::Message>> messages;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    for (const bool is_send : {false, true}) {
      const messages::Run run = {is_send ? &out : &in[static_cast<size_t>(peer)], 1};
      absl::StatusOr<std::unique_ptr<messages::Message>> message =
          Post(is_send, peer, kGreetingTag, absl::MakeConstSpan(&run, 1),
               std::max(deadline - absl::Now(), absl::Milliseconds(1)));
      if (!message.ok()) return message.status();
      messages.push_back(*std::move(message));
    }
  }
  for (const std::unique_ptr<messages::Message>& message : messages) {
    if (absl::Status status = Wait(*message); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SocketLink::Told(const absl::Status& status) const {
  if (status.ok()) return status;
  if (aborted_.load()) return absl::CancelledError(kAborted);
  return absl::Status(status.code(), status.message());
}

absl::StatusOr<std::unique_ptr<messages::Message>> SocketLink::Post(
    bool is_send, int peer, uint32_t tag, absl::Span<const messages::Run> runs,
    absl::Duration timeout) {
  std::vector<mailbox::TransferSpec> specs(1);
  mailbox::TransferSpec& spec = specs[0];
  spec.is_send = is_send;
  spec.peer = peer;
  spec.offer.kind = mailbox::PayloadKind::kBytes;
  spec.offer.tag = tag;
  spec.timeout = timeout;
  spec.name = "data";
  spec.has_memory = true;
  spec.judge = [](int, const mailbox::Offer& offer,
                  std::string_view) -> absl::StatusOr<std::vector<mailbox::Segment>> {
    return absl::InternalError(absl::StrCat("another number of bytes came: ", offer.bytes));
  };
  spec.segments.reserve(runs.size());
  for (const messages::Run& run : runs) {
    spec.segments.push_back({run.data, run.bytes});
    spec.offer.bytes += run.bytes;
  }
  absl::StatusOr<std::vector<mailbox::TransferPtr>> posted = mailbox_->Post(std::move(specs));
  if (!posted.ok()) return Told(posted.status());
  return std::make_unique<SocketMessage>(mailbox_, std::move((*posted)[0]));
}

absl::StatusOr<std::unique_ptr<messages::Message>> SocketLink::Send(
    int peer, uint32_t tag, absl::Span<const messages::Run> runs) {
  return Post(true, peer, tag, runs, timeout_);
}

absl::StatusOr<std::unique_ptr<messages::Message>> SocketLink::Receive(
    int peer, uint32_t tag, absl::Span<const messages::Run> runs) {
  return Post(false, peer, tag, runs, timeout_);
}

absl::Status SocketLink::Wait(messages::Message& message) {
  // The transfer has a deadline of its own.
  const std::optional<absl::Status> status = mailbox_->WaitUntil(
      static_cast<SocketMessage&>(message).transfer(), absl::InfiniteFuture(), nullptr);
  if (!status.has_value()) return absl::InternalError("a transfer outlived its deadline");
  return Told(*status);
}

void SocketLink::Abort() {
  if (aborted_.exchange(true)) return;
  mailbox_->Abort(kAborted);
}

}  // namespace leafpack::socket_internal
