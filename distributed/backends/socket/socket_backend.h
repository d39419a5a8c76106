// The backend "socket": bytes between CPUs over Unix and TCP sockets of our own, without a library in between.
// Linking this package makes the name known to MakeBackend.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SOCKET_SOCKET_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SOCKET_SOCKET_BACKEND_H_

#include <memory>
#include <string_view>

#include "distributed/core/backend.h"

namespace leafpack {

// Every dtype and op of CheckOpAllowed, on CPU tensors; bits as GlooBackend's. The kernel takes the bytes
// from where the leaves lie and puts them there: contiguous leaves are not packed.
class SocketBackend : public Backend {
 public:
  std::string_view name() const override { return "socket"; }
  absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                 c10::DeviceType device) const override;
  absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const override;
  bool PacksForItself() const override { return true; }
  BackendCost Cost(int ranks) const override;
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SOCKET_SOCKET_BACKEND_H_
