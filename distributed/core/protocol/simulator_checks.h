// The invariants of the protocol, watched while a simulated group runs. Part of the simulator.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATOR_CHECKS_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATOR_CHECKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "distributed/core/protocol/digest128.h"
#include "distributed/core/protocol/record.h"
#include "distributed/core/protocol/types.h"

namespace leafpack::protocol {

// Told of every event by the simulator; the first violation stays. Numbers in its texts are those
// of the invariants in docs/protocol.md.
class Checks {
 public:
  // One call as one rank lived it.
  struct Call {
    bool frame = false, open = false, brings = false, restore = false, trusted = false, unchecked = false, final = false,
         held = false;
    bool refusal = false;  // an error of its own
    Digest128 digest;
    SteadyNanos issued_at = 0, deadline = kNever, frozen_before = 0;
    uint64_t issued_order = 0;
    // Filled in later.
    bool left = false, posted_agree = false, posted_trusted = false;
    uint32_t epoch = 0;  // of its post, or of its grant
    Digest128 posted_digest;
    bool done_left = false, data_done = false, granted = false;
    bool read_ok = false, read_other = false, sent = false;
    bool ended = false, unknown = false;
    uint64_t ended_order = 0;
    OutcomeKind kind = OutcomeKind::kOk;
    TreeState tree = TreeState::kComplete;
    std::vector<uint32_t> ranks;
    std::string text;
  };

  // `unagreed`: the run has trusted or unchecked calls, whose data is not ordered by agreement.
  Checks(uint32_t size, bool unagreed) : size_(size), unagreed_(unagreed), ranks_(size) {}

  void Issued(uint32_t rank, uint64_t call, const Call& info);
  void Refused(uint32_t rank, uint64_t call, SteadyNanos now);
  void Left(uint32_t rank, const Record& record);  // a record leaves the rank
  void Sent(uint32_t rank, const Record& record);  // the coordinator sends one to the rank
  void EventDone();  // all that one event made the coordinator send was sent
  void Read(uint32_t rank, const Record& record);  // the rank's machine gets it
  void Granted(uint32_t rank, uint64_t call, uint32_t epoch);
  void DataDone(uint32_t rank, uint64_t call) { ranks_[rank].calls[call].data_done = true; }
  void Ended(uint32_t rank, uint64_t call, uint32_t call_epoch, const Outcome& outcome,
             SteadyNanos now, SteadyNanos frozen, uint32_t epoch);
  void Killed(uint32_t rank) { ranks_[rank].dead = true; }

  // What can be said only at the end. `complete`: nobody died and nobody left.
  void AtEnd(bool complete);

  // The result of an open call that is a frame.
  static std::string Joined(absl::Span<const std::string_view> payloads);

  const Call& call(uint32_t rank, uint64_t number) const;
  const std::string& violation() const { return violation_; }
  uint64_t retracted() const { return retracted_; }

 private:
  struct Rank {
    std::map<uint64_t, Call> calls;
    uint64_t posted = 0;
    bool dead = false;
    std::vector<std::pair<uint64_t, uint32_t>>
        notices;  // order, epoch: an error that came by ABORT or as told
  };

  void Violate(std::string text);
  void CheckAllOrNothing(uint64_t call);
  void CheckNotice(uint64_t call);

  uint32_t size_;
  bool unagreed_;
  std::vector<Rank> ranks_;
  std::map<uint64_t, Decision> decisions_;
  uint64_t last_ok_ = 0;
  uint64_t order_ = 0;
  uint64_t abort_owed_ = 0;  // a call whose data had begun and that was not agreed
  uint64_t retracted_ = 0;
  std::vector<std::vector<std::vector<uint64_t>>>
      contexts_;  // by epoch, by rank: calls in order of entry
  std::string violation_;
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATOR_CHECKS_H_
