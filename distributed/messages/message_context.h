// The data path of one group and epoch, made of messages between pairs of ranks.
#ifndef LEAFPACK_DISTRIBUTED_MESSAGES_MESSAGE_CONTEXT_H_
#define LEAFPACK_DISTRIBUTED_MESSAGES_MESSAGE_CONTEXT_H_

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"
#include "distributed/messages/all_reduce_pipeline.h"
#include "distributed/messages/exchanger.h"
#include "distributed/messages/message_link.h"

namespace leafpack::messages {

class MessageContext : public DataContext {
 public:
  // `link` is null for one rank. `name` is the backend's, for errors.
  MessageContext(std::string_view name, std::unique_ptr<MessageLink> link, int rank, int size);
  // Aborts what is under way, and closes connections.
  ~MessageContext() override = default;

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override;
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives) override;
  void Abort() override;

 private:
  absl::Status CheckView(const LeafView& view) const;
  absl::Status CheckTransfers(const std::vector<Transfer>& transfers) const;
  absl::Status RunAlone(absl::Span<const LeafView> leaves, ReduceOpKind op);

  const std::string name_;
  const int rank_;
  const int size_;
  const std::unique_ptr<MessageLink> link_;
  std::atomic<bool> aborted_{false};
  // Null for one rank. They go before the link.
  const std::unique_ptr<AllReducePipeline> pipeline_;
  const std::unique_ptr<Exchanger> exchanger_;
};

// What a backend made of messages answers as Backend: `backend` is its name, for errors.
absl::Status SupportsAllReduce(std::string_view backend, at::ScalarType dtype, ReduceOpKind op,
                               c10::DeviceType device);
absl::Status SupportsExchange(std::string_view backend, c10::DeviceType device);
// `connect` is called once the options are found right, for more than one rank.
absl::StatusOr<std::shared_ptr<DataContext>> Open(
    std::string_view backend, const DataContextOptions& options,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<MessageLink>>()> connect);

}  // namespace leafpack::messages

#endif  // LEAFPACK_DISTRIBUTED_MESSAGES_MESSAGE_CONTEXT_H_
