// A group of state machines for tests of single cases: records travel when the test pumps, clocks
// move when it says.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TEST_GROUP_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TEST_GROUP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "distributed/core/protocol/coordinator_machine.h"
#include "distributed/core/protocol/manifest.h"
#include "distributed/core/protocol/rank_machine.h"

namespace leafpack::protocol {

class TestGroup {
 public:
  struct Rank {
    std::unique_ptr<RankMachine> machine;
    bool hold_out = false;  // its records stay in the machine
    bool hold_in = false;   // records for it stay on the way
    bool frozen = false;    // nothing of it runs
    std::deque<Record> inbox;
    std::map<uint64_t, Outcome> ended;
    std::vector<uint64_t> granted;
    std::vector<uint32_t> aborted;  // epochs
    std::vector<RecordType> sent;
    std::vector<Record> got;
    int stops = 0, resumes = 0;
    uint64_t wanted = 0;  // last call whose description was wanted
    absl::Status error;
  };

  // `open`: every rank is connected from the start.
  explicit TestGroup(uint32_t ranks_in_group, bool open = true);

  void Open(uint32_t r);

  static CallSpec Data(uint64_t digest = 1, SteadyNanos deadline = kNever);
  static CallSpec Frame(std::string bytes = "\x01", SteadyNanos deadline = kNever);
  // Open to be a frame; brings none without `bytes`.
  static CallSpec OpenCall(std::optional<std::string> bytes, SteadyNanos deadline = kNever);
  static CallSpec Restore(SteadyNanos deadline = kNever);

  uint64_t Issue(uint32_t r, CallSpec spec);
  // On every rank that is not frozen, in order.
  void IssueAll(const CallSpec& spec);
  void Refuse(uint32_t r, std::string_view reason = "bad dtype");
  void Withdraw(uint32_t r, uint64_t call, WithdrawKind kind = WithdrawKind::kInterrupt);
  void DataDone(uint32_t r, uint64_t call);
  void DataFailed(uint32_t r, uint64_t call, FailKind kind = FailKind::kError);
  void Leave(uint32_t r);
  // The rank dies: the coordinator reads the hang-up after what was sent.
  void Kill(uint32_t r);
  // A record as from `r`, whatever its machine thinks.
  void Inject(uint32_t r, Record record);

  // Moves records until nothing moves.
  void Pump();

  // Time passes; whoever is not frozen reads first, then looks at timers.
  void Advance(SteadyNanos time);

  const Outcome& End(uint32_t r, uint64_t call);
  bool Ended(uint32_t r, uint64_t call) const { return ranks[r].ended.contains(call); }
  bool Granted(uint32_t r, uint64_t call) const;
  // One frame call on all ranks must succeed: the group is usable.
  void ExpectUsable();

  void Take(uint32_t r, RankActions& out);
  void Route(CoordinatorActions& out);

  const uint32_t size;
  SteadyNanos now = 1000;
  std::vector<Rank> ranks;
  std::unique_ptr<CoordinatorMachine> coordinator;
  // What becomes of the payloads of frames; not set: their sum, byte by byte.
  std::function<absl::StatusOr<FrameOutcome>(absl::Span<const std::string_view>)> join;
  std::vector<std::string> manifests;  // by rank; empty: nobody answers NEED
  std::map<uint32_t, std::string> dropped;
  std::deque<std::pair<uint32_t, Record>> to_coordinator;  // while rank 0 stands still
  RankActions scratch;
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TEST_GROUP_H_
