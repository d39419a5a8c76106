// Messages between the ranks of one data context over c10d's ProcessGroupGloo. The seam at which
// c10d's and Gloo's exceptions become absl::Status; nothing above it throws.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_LINK_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/messages/message_link.h"

namespace c10d {
class ProcessGroupGloo;
class Work;
}  // namespace c10d

namespace leafpack::gloo_internal {

class GlooLink : public messages::MessageLink {
 public:
  // Connects all ranks of `options`; collective. DeadlineExceeded when not all are there by
  // `deadline`, InvalidArgument for an interface that does not exist (names those that do).
  static absl::StatusOr<std::unique_ptr<GlooLink>> Connect(const DataContextOptions& options,
                                                           absl::Time deadline);
  // Takes about 10 ms: connections are closed.
  ~GlooLink() override;

  const messages::Schedule& schedule() const override { return schedule_; }
  // A message has one run.
  absl::StatusOr<std::unique_ptr<messages::Message>> Send(
      int peer, uint32_t tag, absl::Span<const messages::Run> runs) override;
  absl::StatusOr<std::unique_ptr<messages::Message>> Receive(
      int peer, uint32_t tag, absl::Span<const messages::Run> runs) override;
  absl::Status Wait(messages::Message& message) override;
  void Abort() override;

 private:
  GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, const DataContextOptions& options);
  // What an exception of c10d means.
  absl::Status StatusOfText(const std::string& text, int peer) const;
  // Posts to c10d: `post` gives it the tensor of the run.
  absl::StatusOr<std::unique_ptr<messages::Message>> Post(
      int peer, absl::Span<const messages::Run> runs,
      absl::FunctionRef<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroupGloo&,
                                                       std::vector<at::Tensor>&)>
          post);

  const messages::Schedule schedule_;
  const absl::Duration timeout_;
  std::atomic<bool> aborted_{false};
  // c10d counts messages without a lock.
  absl::Mutex post_mutex_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_ ABSL_PT_GUARDED_BY(post_mutex_);
  // Works in Wait: Abort ends them one by one.
  absl::Mutex wait_mutex_;
  std::vector<c10::intrusive_ptr<c10d::Work>> waiting_ ABSL_GUARDED_BY(wait_mutex_);
};

}  // namespace leafpack::gloo_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_GLOO_LINK_H_
