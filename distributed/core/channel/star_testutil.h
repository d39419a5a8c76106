// A star of ranks over the channel's transport with the smallest agreement that makes sense: every
// rank posts a record, rank 0 answers when all have. For tests of the transport and its benchmark.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_STAR_TESTUTIL_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_STAR_TESTUTIL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "distributed/core/channel/connector.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/channel/link.h"
#include "distributed/core/channel/waiter.h"

namespace leafpack {

class Star {
 public:
  // `record_bytes`: of a post and of an answer.
  Star(std::unique_ptr<KeyValueStore> store, ConnectorOptions options, size_t record_bytes);

  // One agreement; also connects what is not connected yet. DeadlineExceeded, or Unavailable when a
  // peer hung up (the text begins with "rank R: "), Internal when bytes are not what was sent.
  absl::Status Agree(absl::Time deadline);

  Connector& connector() { return connector_; }
  Link& link(int rank) { return *links_[static_cast<size_t>(rank)]; }
  const Waiter& waiter() const { return waiter_; }

 private:
  bool Progress();
  void ReadLink(size_t rank);
  bool Complete() const;

  const int rank_;
  const size_t size_;
  const size_t record_bytes_;
  Connector connector_;
  std::vector<std::unique_ptr<Link>> links_;  // rank 0: one for each rank; rank r: links_[0]
  std::vector<size_t> received_;              // bytes of the current round, by rank
  std::vector<pollfd> fds_;
  std::string scratch_;
  char round_ = 0;
  absl::Status failure_;
  Waiter waiter_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_STAR_TESTUTIL_H_
