// The protocol as one rank sees it: a pure state machine, from events to actions. No I/O, no clock,
// no lock.
//
// Whoever drives it (one lock around everything) passes events in and then does what `out` says, in
// order, outside the lock where an action may call user code; then takes records from
// TakeOutgoing() and writes them to the coordinator in that order. On group rank 0 they are given
// to the CoordinatorMachine by a function call instead.
//
//   RankActions out;
//   uint64_t call = machine.Issue(spec, now, out);
//   while (auto record = machine.TakeOutgoing()) Write(*record);
//   ...
//   machine.OnRecord(std::move(record), now, out);   // e.g. DECIDE: out holds kEnded or kGranted
//   of `call`
//
// A timer is to be believed only after the socket was read until it was empty: call OnRecord for
// all that has arrived, then OnTick. The same holds for OnLinkLost.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_RANK_MACHINE_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_RANK_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "distributed/core/protocol/digest128.h"
#include "distributed/core/protocol/record.h"
#include "distributed/core/protocol/types.h"

namespace leafpack::protocol {

// A call as it is issued.
struct CallSpec {
  Digest128 digest;
  Digest128 soft_digest;
  bool frame = false;  // the tree rides in the record; `payload` holds it (may be empty)
  // A frame only if all ranks bring a payload and the joined result is small enough, else a data call.
  // Then `frame` says whether this rank brings one; payloads and result may have any size.
  bool open = false;
  bool restore = false;  // data calls get a completion round (on_failure = restore)
  // check = first: this digest was agreed before in this group, data may start at once. Taken back
  // where the call has to wait for its turn anyway; ignored for frames and restore calls.
  bool trusted = false;
  // check = off: the call gets a number and is granted with no record, once all earlier calls are
  // decided. Ignored for frames and restore calls.
  bool unchecked = false;
  std::shared_ptr<const std::string> payload;
  SteadyNanos deadline = kNever;
};

struct RankAction {
  enum class Type : uint8_t {
    // `call` ended for the user as `outcome` says. Delivered once. If the call had been granted,
    // the owner of the data phase first makes sure that no work of it still runs (kAbortEpoch came
    // before, or all works are done).
    kEnded,
    // `call` may enqueue its data in `epoch`, after every call granted before it. `soft_equal`:
    // strides are equal too. Answered by OnDataDone or OnDataFailed.
    kGranted,
    // Nothing that is not yet enqueued may be enqueued in `epoch` any more: a call of it failed
    // here. Works that run may finish. If `resume` is set, the failure was overtaken by a commit:
    // enqueueing may go on.
    kStopEnqueue,
    // The data context of `epoch` is dead: end its works now. A new one is built by the first call
    // granted in a later epoch.
    kAbortEpoch,
    // The coordinator wants the description of `call`: answer with ProvideManifest (an empty one is
    // legal).
    kManifestWanted,
    // `call` is decided: its description is no longer wanted. Comes once for each call that posts a
    // record, unless the channel is lost first.
    kDecided,
  };
  Type type = Type::kEnded;
  bool soft_equal = false;
  bool resume = false;
  uint32_t epoch = 0;
  uint64_t call = 0;
  Outcome outcome;
};
using RankActions = absl::InlinedVector<RankAction, 2>;

class RankMachine {
 public:
  struct Options {
    uint32_t rank = 0;
    uint32_t size = 1;  // at least 2: a group of one has no channel
    RankNamer name;     // digits of the group rank if empty
    Mutation mutation = Mutation::kNone;
  };

  explicit RankMachine(Options options);
  RankMachine(const RankMachine&) = delete;
  RankMachine& operator=(const RankMachine&) = delete;

  // Issues the next call and returns its number (1, 2, 3…). It may end at once (kEnded in `out`):
  // refused as told, or Unavailable because a rank is gone; then it has a number too. A deadline in
  // the past is legal.
  uint64_t Issue(CallSpec spec, SteadyNanos now, RankActions& out);

  // Issues the next call as a refusal: this rank has an error of its own, which the caller raises
  // at once. The others are told `reason`. No kEnded follows.
  uint64_t IssueRefusal(std::string_view reason, SteadyNanos now, RankActions& out);

  // The user gives `call` up (Ctrl-C, cancel). Unsent: ends at once. Posted: asks the coordinator.
  // In data: fails it. Ignored if it has ended, or if it was given up before.
  void Withdraw(uint64_t call, WithdrawKind kind, SteadyNanos now, RankActions& out);

  // A record from the coordinator. An error means that the record cannot be (a decision of a call
  // that was never posted, a body that does not decode): drop the link and call OnLinkLost with it.
  absl::Status OnRecord(Record record, SteadyNanos now, RankActions& out);

  // The channel to the coordinator is open: queued records may leave. On rank 0, call it at once.
  void OnChannelOpen(SteadyNanos now, RankActions& out);

  // The channel broke, or rank 0 is gone. For good. Later calls end as Unavailable.
  void OnLinkLost(std::string_view reason, SteadyNanos now, RankActions& out);

  // All data of a granted call is done, or failed. `paths_done` is text for the other ranks.
  // Ignored if the call has ended since. kind is kError as a rule; a deadline of the call is the
  // machine's own business.
  void OnDataDone(uint64_t call, SteadyNanos now, RankActions& out);
  void OnDataFailed(uint64_t call, FailKind kind, std::string_view reason,
                    std::string_view paths_done, SteadyNanos now, RankActions& out);

  // Answers kManifestWanted with the description made by EncodeManifest. Ignored if `call` has been
  // decided since.
  void ProvideManifest(uint64_t call, std::string_view description);

  // Says farewell: after this no call may be issued. Calls in flight should have ended; posts that
  // have not left are dropped. The BYE is among the outgoing records.
  void Leave(std::string_view reason, SteadyNanos now, RankActions& out);

  // Fires every timer that is due. NextTimer(): when to call it at the latest; kNever if no timer
  // runs.
  void OnTick(SteadyNanos now, RankActions& out);
  SteadyNanos NextTimer() const;

  // The next record that may leave; taking it is the point of no return. nullopt: nothing may leave
  // now (not open, a full window, an earlier call in doubt, or nothing there). Check after every
  // event.
  bool HasOutgoing() const;
  std::optional<Record> TakeOutgoing();

  // Observers.
  uint32_t epoch() const { return epoch_; }
  uint64_t issued() const { return issued_; }
  bool channel_open() const { return open_; }
  // Calls that have not ended for the user.
  size_t in_flight() const { return in_flight_; }
  // Posts that wait to leave: for a full window, the channel, or a doubt. Callers may bound it.
  size_t posts_waiting() const { return static_cast<size_t>(issued_ + 1 - next_post_); }
  // True while a call is in doubt.
  bool in_doubt() const { return doubts_ != 0; }
  // OK, or Unavailable for good with the ranks that are gone.
  absl::Status Availability() const;
  const std::vector<uint32_t>& gone() const { return gone_; }

 private:
  enum class State : uint8_t {
    kUnsent,       // its post waits: channel not open, window full, or an earlier call in doubt
    kPosted,       // AGREE left
    kWithdrawing,  // WITHDRAW sent
    kData,         // granted (a trusted call: without DECIDE)
    kCommitting,   // DONE sent
    kEnded,        // ended for the user
  };
  struct Call {
    CallSpec spec;
    uint64_t number = 0;
    uint32_t epoch = 0;  // in which it was issued
    State state = State::kUnsent;
    bool left = false;        // its post has left, or will never
    bool decided = false;     // DECIDE was read, or none will come
    bool agreed = false;      // DECIDE said OK, or no agreement is needed
    bool refusal = false;     // its post is a REFUSE
    bool held = false;        // issued while an earlier call was in doubt
    uint64_t doubt_mark = 0;  // last call issued when this one ended in doubt
    bool doubt = false;       // ended for the user, but what became of it is not known here
    bool owed = false;        // granted, but not told so: an earlier call failed here
    bool failed = false;      // FAIL sent, without an answer so far
    bool data_done = false;
    bool soft_equal = false;
    RefuseKind refuse_kind = RefuseKind::kError;
    WithdrawKind withdrawn = WithdrawKind::kDeadline;  // why this rank gave it up
    FailKind fail_kind = FailKind::kError;             // why it failed here
    SteadyNanos timer = kNever;
    RefuseBody refuse;
    std::string error;  // what failed here
    std::unique_ptr<Outcome>
        verdict;  // of a trusted call that was not agreed: how it ends when ABORT comes
  };
  struct Notice {
    std::vector<uint32_t> ranks;
    std::string text;
  };

  Call* Find(uint64_t call);
  Call& Append();
  bool unavailable() const { return link_lost_ || leaving_ || !gone_.empty(); }
  bool is_coordinator() const { return options_.rank == 0; }
  bool PostReady() const;
  bool Undecided(uint64_t number) const;
  Record TakePost();
  void Control(RecordType type, uint8_t kind, const Call& call, std::string body = {});
  void End(Call& call, Outcome outcome, RankActions& out);
  void EndUnavailable(Call& call, bool unknown, RankActions& out);
  void EndOk(Call& call, std::shared_ptr<const std::string> frame, RankActions& out);
  void Refuse(Call& call, RefuseKind kind, WithdrawKind why, std::string_view reason);
  void Retract(Call& call, WithdrawKind kind, RankActions& out);
  void AskToWithdraw(Call& call, WithdrawKind kind, SteadyNanos now);
  void Grant(Call& call, SteadyNanos now, RankActions& out);
  void Begin(Call& call, RankActions& out);
  void Fail(Call& call, FailKind kind, std::string_view reason, std::string_view paths_done,
            SteadyNanos now, RankActions& out);
  void EndFailed(Call& call, RankActions& out);
  void Doubt(Call& call, RankActions& out);
  void Unfail(Call& call, RankActions& out);
  void Tell(Notice notice, uint64_t after, RankActions& out);
  void EndTold(Call& call, Notice notice, RankActions& out);
  void Fire(Call& call, SteadyNanos now, RankActions& out);
  void Settle(SteadyNanos now, RankActions& out);
  void GoUnavailable(uint32_t rank, std::string_view reason);
  Outcome FromDecision(const Call& call, Decision decision, bool late,
                       const DecideBody& body) const;
  TreeState TouchedTree(const Call& call) const;

  absl::Status OnDecide(Record& record, SteadyNanos now, RankActions& out);
  absl::Status OnCommit(const Record& record, RankActions& out);
  absl::Status OnAbort(const Record& record, RankActions& out);
  absl::Status OnLostRecord(const Record& record, SteadyNanos now, RankActions& out);
  void CutOff(std::string_view reason, uint64_t through, SteadyNanos now, RankActions& out);

  Options options_;
  uint32_t epoch_ = 0;
  uint64_t issued_ = 0;
  uint64_t last_granted_ = 0;  // last call whose data phase began here
  uint64_t next_post_ = 1;     // no earlier call has a post that may still leave
  uint64_t last_posted_ = 0;   // number of the last post that left: a jump is a gap
  std::deque<Call>
      calls_;  // calls_[i].number == calls_[0].number + i; settled ones leave at the front
  std::deque<Record> control_;  // records that do not wait for the window
  std::optional<Record> bye_;
  size_t in_flight_ = 0;
  size_t doubts_ = 0;
  size_t failed_ = 0;
  size_t undecided_ = 0;  // posts that left and have no decision
  size_t undecided_payload_ = 0;
  bool open_ = false;
  bool leaving_ = false;
  bool link_lost_ = false;
  std::optional<Notice> told_;  // the next call is refused with this
  std::vector<uint32_t> gone_;
  std::string gone_reason_;
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_RANK_MACHINE_H_
