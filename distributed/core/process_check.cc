#include "distributed/core/process_check.h"

#include "distributed/core/channel/fork.h"

namespace leafpack {

ProcessCheck::ProcessCheck() : generation_(ForkGeneration()) {}

bool ProcessCheck::forked() const { return generation_ != ForkGeneration(); }

absl::Status ProcessCheck::ForkedError() { return leafpack::ForkedError(); }

}  // namespace leafpack
