// Helpers for tests of the channel's transport: ranks as processes, a store in a folder, and a loop
// that steps a Connector as a caller would.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_CHANNEL_TESTUTIL_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_CHANNEL_TESTUTIL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

#include "distributed/core/channel/connector.h"
#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/key_value_store.h"

namespace leafpack {

// Long enough for anything that should succeed on a loaded machine.
inline constexpr absl::Duration kTestPatience = absl::Seconds(60);

// A store whose keys are files of `folder`, shared by processes.
std::unique_ptr<KeyValueStore> NewDirectoryStore(std::string folder);

// A fresh folder for one test.
std::string NewTestFolder();

// Forks `ranks` children that run `body(rank)` and then leave without destructors of static objects.
// Returns their wait statuses, in order; kills all after kTestPatience. Failed expectations in a child
// give it exit status 1. Call it while this process has one thread only.
std::vector<int> RunRanks(int ranks, absl::FunctionRef<void(int rank)> body);

// Both ends of a Unix stream socket, non-blocking and CLOEXEC.
std::pair<TrackedFd, TrackedFd> SocketPair();

// Steps the connector until it leaves kConnecting or `until`, sleeping on its descriptor only. What
// joins is appended to `joined`.
Connector::State StepUntil(Connector& connector, absl::Time until, std::vector<Connector::Joined>& joined);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_CHANNEL_TESTUTIL_H_
