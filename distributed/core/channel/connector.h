// How the star of a group comes to be: group rank 0 listens and publishes its addresses, the other
// ranks find them in the store, connect and prove that they belong.
//
// A state machine without blocking: whoever does the group's I/O calls Step when fd() is readable. All
// that it waits for (sockets, timers, the thread that talks to the store) makes that one descriptor
// readable, so there is no other time to wake at.
//
//   rank 0                                         rank r
//   listens on a Unix name and on TCP,
//   store["channel"] = token A, B, addresses  ->   looks (check, 1 to 20 ms), then connects: Unix, TCP
//                                             <-   HELLO {token A, rank, size, versions}
//   WELCOME {token B} or REJECT {token B, why} ->  joined, or failed for good
//   (over a Unix socket a WELCOME brings a Lane, unless rank 0 has no memory for one)
// A stranger (wrong token, no record, half a HELLO for 5 s) is closed in silence. From WELCOME on the
// connection carries records. Ranks may come late: rank 0 hands each over as it comes and goes on
// accepting until all are in; then the listeners close.
//
// Not thread-safe: the group's mutex guards it. Step takes microseconds.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_CONNECTOR_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_CONNECTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/channel/lane.h"

namespace leafpack {

inline constexpr uint32_t kChannelProtocolVersion = 2;

struct ConnectorOptions {
  int rank = 0;  // group rank
  int size = 2;  // of the group, at least 2
  std::string library_version;  // at most 64 bytes; must be equal on all ranks
  std::string interface_name;   // TCP listens on its address; empty: first usable one and loopback
  bool loopback_only = false;   // all ranks are known to be on this host

  // For tests; the defaults are the protocol's.
  absl::Duration store_patience = absl::Seconds(10);  // a store that fails for so long is given up
  uint32_t protocol_version = kChannelProtocolVersion;
  absl::Duration hello_timeout = absl::Seconds(5);    // also for a TCP connect
  int max_unproven = 16;
  bool use_unix = true;
  bool use_tcp = true;
  bool use_lanes = true;  // offer shared memory beside Unix sockets
};

class Connector {
 public:
  enum class State {
    kConnecting,
    kConnected,  // rank 0: all ranks are in. Rank r: joined
    kFailed,     // see status()
  };

  // A rank whose connection is up. Rank 0 gets one per other rank; rank r one for rank 0.
  struct Joined {
    int rank;
    TrackedFd fd;
    bool local;  // came by Unix socket: same host
    // A lane was offered: for Link::AttachWithLane, with `lane` (null where it could not be opened
    // here). Otherwise for Link::Attach.
    bool framed = false;
    std::unique_ptr<Lane> lane;
  };

  // Rank 0: a process with the right token that cannot be let in.
  struct Rejected {
    int rank;             // what it said; may be outside the group
    bool rank_is_lost;    // the rank can never join as it is (wrong size or version): treat it as gone.
                          // False for a second process with a rank that is in, or out of range
    absl::Status reason;  // FailedPrecondition
  };

  // Touches neither sockets nor store; that begins at the first Step. `store` is under the group's own
  // prefix; it is used from a helper thread, which the destructor ends: at once, or if the store
  // blocks it, it is left behind after 100 ms.
  Connector(std::unique_ptr<KeyValueStore> store, ConnectorOptions options);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Goes as far as it can without blocking. Call it when fd() is readable; more calls do no harm.
  // kFailed is final: FailedPrecondition (rejected), InvalidArgument (no such interface; the text
  // lists those that exist), Unavailable (the store or the system refused).
  State Step();

  State state() const;
  const absl::Status& status() const;

  // What came about since the last call of each. Joined ranks are handed over once.
  std::vector<Joined> TakeJoined();
  std::vector<Rejected> TakeRejected();

  // Readable when Step has something to do. -1 before the first Step; from then on the same
  // descriptor until destruction, silent once connected or failed.
  int fd() const;

  // Rank 0: ranks that are not in yet, in order. Rank r: {0} until connected.
  std::vector<int> MissingRanks() const;
  // What a deadline in this phase should say, e.g. "rank 0 has not opened its channel" or "rank 0's
  // channel at 10.0.0.7:4711 cannot be reached: Connection refused". Empty when there is nothing to say.
  std::string Problem() const;

  // Whether the ranks cannot meet because the last call to the store failed: Problem says how. For
  // store_patience; then it is kFailed.
  bool StoreFails() const;

  // True when all ranks are in and every one proved to be on this host. Rank 0 only knows: it tells
  // the others with its decisions (an OK needs all ranks, so nobody needs to know sooner).
  bool all_local() const;

  // Once connected: a name for this meeting of the ranks, equal on all of them and different from that
  // of every earlier group that used the same store and prefix. Empty before.
  std::string session() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_CONNECTOR_H_
