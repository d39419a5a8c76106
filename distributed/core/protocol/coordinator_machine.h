// The protocol as the coordinator (group rank 0) sees it: the one decider of the group, as a pure
// state machine.
//
// Each call is decided exactly once. Records of rank 0's own RankMachine come in by OnRecord(0, ...),
// and kSend actions for rank 0 are given to it by a function call; everything else is queued to the
// rank's connection in the order of the actions. Records for a rank that has not connected yet are
// queued until it has.
//
//   CoordinatorActions out;
//   machine.OnRecord(rank, std::move(record), now, out);
//   for (CoordinatorAction& a : out) if (a.type == CoordinatorAction::Type::kSend) Queue(a.rank,
//   std::move(a.record));
//
// As for the ranks: read every socket until it is empty before OnTick, and all bytes of a
// connection before OnLost.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_COORDINATOR_MACHINE_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_COORDINATOR_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "distributed/core/protocol/digest128.h"
#include "distributed/core/protocol/manifest.h"
#include "distributed/core/protocol/record.h"
#include "distributed/core/protocol/types.h"

namespace leafpack::protocol {

struct CoordinatorAction {
  enum class Type : uint8_t {
    kSend,  // `record` to `rank` (0: hand it to rank 0's own machine)
    kDrop,  // `rank` broke the protocol: close its connection; `reason` says how. OnLost need not
            // be called for it
  };
  Type type = Type::kSend;
  uint32_t rank = 0;
  Record record;
  std::string reason;
};
using CoordinatorActions = absl::InlinedVector<CoordinatorAction, 4>;

// What became of the frames of a call: the result for all ranks, or a difference that shows only in
// the payloads, which then ends the call as MISMATCH. Neither (open calls only): a data call after all.
struct FrameOutcome {
  FrameOutcome(std::string r) : result(std::move(r)) {}          // NOLINT(runtime/explicit)
  FrameOutcome(DecideBody m) : mismatch(std::move(m)) {}         // NOLINT(runtime/explicit)
  FrameOutcome(std::nullopt_t) {}                                // NOLINT(runtime/explicit)
  std::optional<std::string> result;
  std::optional<DecideBody> mismatch;
};

// Reduces the frames of `call` in rank order. payloads[r] is rank r's; all have the size of rank 0's,
// and so has the result, unless the call is open. Of an open call a result over kMaxFramePayload makes
// it a data call. Runs inside OnRecord and must be quick. An error becomes a refusal by rank 0 with
// that text.
using FrameReducer = std::function<absl::StatusOr<FrameOutcome>(
    uint64_t call, absl::Span<const std::string_view> payloads)>;

class CoordinatorMachine {
 public:
  struct Options {
    uint32_t size = 1;  // at least 2
    RankNamer name;     // digits of the group rank if empty
    FrameReducer reduce;
    Mutation mutation = Mutation::kNone;
  };

  explicit CoordinatorMachine(Options options);
  ~CoordinatorMachine();
  CoordinatorMachine(const CoordinatorMachine&) = delete;
  CoordinatorMachine& operator=(const CoordinatorMachine&) = delete;

  // A record of `rank`, in the order in which it sent them. A record that cannot be drops the rank
  // (kDrop).
  void OnRecord(uint32_t rank, Record record, SteadyNanos now, CoordinatorActions& out);

  // `rank` is connected; only the texts of errors depend on it.
  void OnJoined(uint32_t rank);

  // `rank`'s connection broke or sent bytes that are no record. For good; ignored if it is gone
  // already.
  void OnLost(uint32_t rank, LostKind kind, std::string_view reason, SteadyNanos now,
              CoordinatorActions& out);

  // Fires what is due. NextTimer(): when to call it at the latest; kNever if no timer runs.
  void OnTick(SteadyNanos now, CoordinatorActions& out);
  SteadyNanos NextTimer() const;

  // Observers.
  uint32_t epoch() const;
  bool gone(uint32_t rank) const;
  // Calls that are open, that some rank has yet to post, or that await their completion round. 0
  // when all is quiet.
  size_t table_size() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_COORDINATOR_MACHINE_H_
