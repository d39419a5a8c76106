#include "distributed/p2p/await_transfers.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/mailbox/mailbox.h"

namespace leafpack {

bool AwaitTransfers(const Group& group, absl::Time until, const InterruptCheck& interrupt) {
  const absl::StatusOr<std::shared_ptr<Companion>> companion =
      group.engine().GetCompanion([]() -> absl::StatusOr<std::shared_ptr<Companion>> {
        return absl::NotFoundError("nothing was ever sent");
      });
  if (!companion.ok()) return true;  // none, or closed
  auto* mailbox = dynamic_cast<mailbox::Mailbox*>(companion->get());
  return mailbox == nullptr || mailbox->AwaitMatched(until, interrupt);
}

}  // namespace leafpack
