// Words that both state machines of the control channel share: time, limits, kinds, outcomes.
//
// Ranks here are ranks of the group. Texts name ranks through a RankNamer, so that a user reads
// global ranks.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TYPES_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace leafpack::protocol {

// A point on a steady clock of this process, in nanoseconds. Clocks of two ranks are never
// compared.
using SteadyNanos = int64_t;
inline constexpr SteadyNanos kNever = std::numeric_limits<SteadyNanos>::max();
inline constexpr SteadyNanos kMillisecond = 1'000'000;

// How long a rank waits for an answer of the coordinator before its call is in doubt.
inline constexpr SteadyNanos kGrace = 1000 * kMillisecond;
// How long a granted call may go on after a rank was lost without a farewell.
inline constexpr SteadyNanos kLostPatience = 500 * kMillisecond;
// How long the coordinator waits for STATE after PROBE, and for manifests after NEED.
inline constexpr SteadyNanos kProbeTime = 300 * kMillisecond;
inline constexpr SteadyNanos kCollectTime = 1000 * kMillisecond;

// Limits on what one side sends; the other side drops a peer that exceeds them.
inline constexpr size_t kMaxUndecided = 64;              // posts of one rank without a decision
inline constexpr size_t kMaxUndecidedPayload = 1 << 20;  // bytes of their frames
inline constexpr size_t kMaxFramePayload = 64 << 10;     // bytes of one frame
inline constexpr size_t kMaxReasonBytes = 4 << 10;
inline constexpr size_t kManifestChunk = 64 << 10;
inline constexpr size_t kMaxManifestBytes = 64 << 20;  // all manifests of one call together
inline constexpr size_t kMaxManifests = 8;             // ranks asked for one
inline constexpr size_t kDigestHistory = 8;            // digests kept for each rank
inline constexpr size_t kMaxRuns = 4096;               // runs of decided calls kept for slow ranks

// What the coordinator decided about a call. The values travel in records.
enum class Decision : uint8_t {
  kOk = 0,
  kMismatch = 1,
  kRefused = 2,
  kWithdrawn = 3,
  kLost = 4,
  kAborted = 5
};
inline constexpr uint8_t kDecisionCount = 6;

// Why a rank refused a call: it had an error of its own; it gave up before its post left the
// process; it had to be told of an earlier failure.
enum class RefuseKind : uint8_t { kError = 0, kWithdrawn = 1, kTold = 2 };
inline constexpr uint8_t kRefuseKindCount = 3;

// Why a rank gives up a call it has posted.
enum class WithdrawKind : uint8_t { kDeadline = 0, kInterrupt = 1, kCancel = 2 };
inline constexpr uint8_t kWithdrawKindCount = 3;

// Why a data phase failed. kUnagreed: a trusted call began to move data and was then not agreed.
enum class FailKind : uint8_t {
  kError = 0,
  kDeadline = 1,
  kInterrupt = 2,
  kLost = 3,
  kUnagreed = 4
};
inline constexpr uint8_t kFailKindCount = 5;

// How a rank went: hang-up or a dead host; a farewell (BYE); bytes against the protocol.
enum class LostKind : uint8_t { kHangUp = 0, kLeft = 1, kProtocol = 2 };
inline constexpr uint8_t kLostKindCount = 3;

// What a rank is doing, for the report of who is late.
enum class Phase : uint8_t { kIdle = 0, kPosted = 1, kData = 2, kCommitting = 3 };
inline constexpr uint8_t kPhaseCount = 4;

// Turns a group rank into what the user knows it by, e.g. its global rank as digits.
using RankNamer = std::function<std::string(uint32_t)>;

// "rank 3", "ranks 1 and 2", "ranks 0, 1 and 4"; "no rank" when empty. Of a long list the first 16
// are named: "ranks 0, 1, ... (300 ranks)".
std::string RanksText(absl::Span<const uint32_t> ranks, const RankNamer& name);

// Cuts `text` to `limit` bytes on a UTF-8 boundary.
std::string Clip(std::string_view text, size_t limit = kMaxReasonBytes);

// What became of a call, in more detail than a status code.
enum class OutcomeKind : uint8_t {
  kOk,           // code OK
  kMismatch,     // FailedPrecondition: the ranks called different things
  kPeerRefused,  // FailedPrecondition: another rank refused
  kDeadline,     // DeadlineExceeded: a deadline passed here or on a rank that waited, too;
                 // `ranks` were missing
  kInterrupted,  // Cancelled: this rank gave the call up (Ctrl-C or cancel)
  kGivenUp,      // Cancelled: `ranks` gave the call up
  kDataFailed,   // data had been granted and the epoch was aborted; the code follows the cause
  kTold,         // FailedPrecondition: refused, as an earlier call failed on `ranks`
  kLost,         // Unavailable: `ranks` are gone for good
  kDoubt,        // DeadlineExceeded, outcome unknown: no answer from rank 0
};

// What the call left in this rank's tree.
enum class TreeState : uint8_t {
  kComplete,   // the result (or, of a frame, it is in `frame` and must now be written)
  kUnchanged,  // nothing was written on this rank
  kPartial,    // data had begun to move: the owner of the data phase knows which paths are done
  kRestore,    // data had begun to move: put the staged copies back; the tree is then unchanged
};

// How one call ended on this rank; delivered exactly once for each call issued (refusals of its own
// excepted).
struct Outcome {
  OutcomeKind kind = OutcomeKind::kOk;
  absl::StatusCode code = absl::StatusCode::kOk;
  TreeState tree = TreeState::kComplete;
  // True if other ranks may have ended this call differently; the text says so as well.
  bool outcome_unknown = false;
  // Group ranks that the error is about; ascending.
  std::vector<uint32_t> ranks;
  std::string text;
  // Of kMismatch: the first leaf that differs, or empty.
  std::string path;
  // The reduced bytes of a frame that ended kOk, else null.
  std::shared_ptr<const std::string> frame;

  bool ok() const { return kind == OutcomeKind::kOk; }
  absl::Status status() const { return ok() ? absl::OkStatus() : absl::Status(code, text); }
};

// Faults that tests put into the machines to prove that the simulator finds them; production passes
// kNone.
enum class Mutation : uint8_t {
  kNone,
  kGiveUpAlone,            // a rank's deadline ends the call without asking
  kWithdrawOverridesOk,    // WITHDRAW after OK changes the decision
  kIgnorePostEpoch,        // posts of an older epoch are taken as current ones
  kPostsSurviveAbort,      // ABORT leaves undecided posts of the old epoch open
  kNoToldRefusal,          // a rank that is told of a failure does not refuse its next call
  kDoubtCountsAsTold,      // a call in doubt that ABORT resolves counts as notice
  kNoHeld,                 // calls go out although an earlier one is in doubt
  kHeldTakesNewEpoch,      // ABORT moves held calls into the new epoch
  kLatePostersUnanswered,  // a decided call is not answered to those who post it later
  kRefusalsIgnored,        // a refusal counts as a plain post
  kCommitOnFirstDone,      // COMMIT does not wait for all
  kTimersBeforeSocket,     // (of the simulator's driver) timers fire before the inbox is read
  kLostEndsRestoreCall,    // LOST ends a restore call at the rank
  kRetractStillSends,      // a retracted call still sends its AGREE
  kGrantAfterFail,         // a rank that failed a call goes on enqueueing later ones
  kTrustedNeedsNoAbort,    // a trusted call that is not agreed does not raise the epoch
  kGapHidesPosts,          // numbers that one rank skipped may still be agreed by others
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TYPES_H_
