// What a rank does on each record of the coordinator, and on the loss of it.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/protocol/rank_machine.h"

namespace leafpack::protocol {
namespace {

SteadyNanos After(SteadyNanos now, SteadyNanos wait) {
  return now > kNever - wait ? kNever : now + wait;
}

absl::Status Impossible(const Record& record, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(RecordTypeName(record.type), " of call ",
                                                 record.call, " from the coordinator: ", why));
}

absl::StatusCode CodeOf(FailKind kind) {
  switch (kind) {
    case FailKind::kError:
      return absl::StatusCode::kFailedPrecondition;
    case FailKind::kDeadline:
      return absl::StatusCode::kDeadlineExceeded;
    case FailKind::kInterrupt:
      return absl::StatusCode::kCancelled;
    case FailKind::kLost:
      return absl::StatusCode::kUnavailable;
    case FailKind::kUnagreed:
      return absl::StatusCode::kFailedPrecondition;
  }
  return absl::StatusCode::kInternal;
}

}  // namespace

absl::Status RankMachine::OnRecord(Record record, SteadyNanos now, RankActions& out) {
  if (link_lost_) return absl::OkStatus();
  absl::Status status;
  switch (record.type) {
    case RecordType::kDecide:
      status = OnDecide(record, now, out);
      break;
    case RecordType::kCommit:
      status = OnCommit(record, out);
      break;
    case RecordType::kAbort:
      status = OnAbort(record, out);
      break;
    case RecordType::kLost:
      status = OnLostRecord(record, now, out);
      break;
    case RecordType::kProbe: {
      Phase phase = Phase::kIdle;
      for (const Call& call : calls_) {
        if (call.state == State::kEnded) continue;
        phase = call.state == State::kData         ? Phase::kData
                : call.state == State::kCommitting ? Phase::kCommitting
                                                   : Phase::kPosted;
        break;
      }
      Record state;
      state.type = RecordType::kState;
      state.kind = static_cast<uint8_t>(phase);
      state.epoch = record.epoch;
      state.rank = options_.rank;
      state.call = issued_;
      state.body = EncodeState(last_granted_);
      control_.push_back(std::move(state));
      break;
    }
    case RecordType::kNeed: {
      const Call* call = Find(record.call);
      if (call == nullptr || !call->left || call->decided || call->refusal)
        return Impossible(record, "it has no description here");
      RankAction& action = out.emplace_back();
      action.type = RankAction::Type::kManifestWanted;
      action.call = record.call;
      break;
    }
    case RecordType::kBye: {
      absl::StatusOr<std::string> reason = DecodeReason(record);
      if (!reason.ok()) return reason.status();
      CutOff(absl::StrCat(RanksText({0u}, options_.name), " left the group",
                          reason->empty() ? "" : ": ", *reason),
             record.call, now, out);
      break;
    }
    default:
      return Impossible(record, "only ranks send it");
  }
  Settle(now, out);
  return status;
}

absl::Status RankMachine::OnDecide(Record& record, SteadyNanos now, RankActions& out) {
  Call* call = Find(record.call);
  if (call == nullptr || !call->left || call->decided)
    return Impossible(record, "it waits for no decision");
  absl::StatusOr<DecideBody> body = DecodeDecide(record, options_.size);
  if (!body.ok()) return body.status();
  const auto decision = static_cast<Decision>(record.kind);
  if (decision == Decision::kOk) {
    if (call->refusal) return Impossible(record, "it was refused here");
    if (call->epoch != record.epoch || record.epoch != epoch_)
      return Impossible(record, "it belongs to another epoch");
    const bool frame = record.Has(kFlagFrame);
    if (call->spec.open ? frame && !call->spec.frame : frame != call->spec.frame)
      return Impossible(record, "frame and data call mixed up");
    if (call->state == State::kEnded && !call->doubt)
      return Impossible(record, "it has ended here");
    if (call->spec.frame && !call->spec.open &&
        record.body_size() != (call->spec.payload ? call->spec.payload->size() : 0)) {
      return Impossible(record, "a result of another size");
    }
  }
  call->decided = true;
  --undecided_;
  if (call->spec.payload && !call->refusal) undecided_payload_ -= call->spec.payload->size();
  call->spec.payload.reset();
  RankAction& decided = out.emplace_back();
  decided.type = RankAction::Type::kDecided;
  decided.call = call->number;

  if (decision == Decision::kOk) {
    call->agreed = true;
    call->soft_equal = record.Has(kFlagSoftEqual);
    if (call->spec.open) {
      call->spec.frame = record.Has(kFlagFrame);
      if (call->spec.frame) call->spec.restore = false;  // a frame is all or nothing anyway
    }
    if (call->doubt && call->spec.frame) {
      call->doubt = false;
      --doubts_;
      Tell({{options_.rank},
            absl::StrCat("call ", call->number,
                         " was reported here as unknown, but completed on the other ranks")},
           call->doubt_mark, out);
    } else if (call->doubt) {
      // The others are in its data phase and would wait for this rank. In doubt until ABORT.
      Fail(*call,
           call->withdrawn == WithdrawKind::kDeadline ? FailKind::kDeadline : FailKind::kInterrupt,
           "the call had ended on this rank before the agreement arrived", "", now, out);
    } else if (call->spec.frame) {
      EndOk(*call, FrameResult(record), out);
    } else if (call->state == State::kData) {
      if (call->data_done && !call->failed) EndOk(*call, nullptr, out);
    } else {
      Grant(*call, now, out);
    }
    return absl::OkStatus();
  }

  if (call->doubt) {
    call->doubt = false;
    --doubts_;
  } else if (call->state == State::kData) {
    // Trusted: its data has begun. The ABORT that follows ends it, with this.
    call->verdict =
        std::make_unique<Outcome>(FromDecision(*call, decision, record.Has(kFlagLate), *body));
  } else if (call->state != State::kEnded) {
    End(*call, FromDecision(*call, decision, record.Has(kFlagLate), *body), out);
  }
  return absl::OkStatus();
}

Outcome RankMachine::FromDecision(const Call& call, Decision decision, bool late,
                                  const DecideBody& body) const {
  Outcome outcome;
  outcome.tree = TreeState::kUnchanged;
  outcome.ranks = body.ranks;
  const std::string prefix = absl::StrCat("call ", call.number, ": ");
  switch (decision) {
    case Decision::kOk:
      break;
    case Decision::kMismatch:
      outcome.kind = OutcomeKind::kMismatch;
      outcome.code = absl::StatusCode::kFailedPrecondition;
      outcome.text = absl::StrCat(prefix, body.text);
      outcome.path = body.path;
      break;
    case Decision::kRefused:
    case Decision::kAborted:
      outcome.kind = OutcomeKind::kPeerRefused;
      outcome.code = absl::StatusCode::kFailedPrecondition;
      outcome.text = absl::StrCat(prefix, body.text);
      break;
    case Decision::kLost:
      outcome.kind = OutcomeKind::kLost;
      outcome.code = absl::StatusCode::kUnavailable;
      outcome.text = absl::StrCat(prefix, body.text);
      break;
    case Decision::kWithdrawn: {
      const bool mine = body.ranks.size() == 1 && body.ranks[0] == options_.rank;
      const std::string by = RanksText(body.ranks, options_.name);
      std::string missing =
          body.missing.empty()
              ? ""
              : absl::StrCat("; ", RanksText(body.missing, options_.name), " had not called it");
      if (!body.text.empty()) absl::StrAppend(&missing, " (", body.text, ")");
      const bool deadline = body.why == WithdrawKind::kDeadline;
      if (mine && !deadline) {
        outcome.kind = OutcomeKind::kInterrupted;
        outcome.code = absl::StatusCode::kCancelled;
        outcome.text = absl::StrCat(
            prefix, body.why == WithdrawKind::kInterrupt ? "interrupted" : "cancelled", missing);
        outcome.ranks = body.missing;
      } else if (!late && deadline && !body.missing.empty()) {
        outcome.kind = OutcomeKind::kDeadline;
        outcome.code = absl::StatusCode::kDeadlineExceeded;
        outcome.text = absl::StrCat(prefix, "deadline exceeded",
                                    mine ? "" : absl::StrCat(" on ", by), missing);
        outcome.ranks = body.missing;
      } else {
        outcome.kind = OutcomeKind::kGivenUp;
        outcome.code = absl::StatusCode::kCancelled;
        outcome.text = absl::StrCat(prefix, "given up by ", by, ": ",
                                    deadline                               ? "its deadline passed"
                                    : body.why == WithdrawKind::kInterrupt ? "it was interrupted"
                                                                           : "it was cancelled",
                                    late ? " before this rank called it" : "", missing);
      }
      break;
    }
  }
  return outcome;
}

absl::Status RankMachine::OnCommit(const Record& record, RankActions& out) {
  Call* call = Find(record.call);
  if (call == nullptr || !call->spec.restore || !call->data_done)
    return Impossible(record, "it has not completed here");
  if (call->state == State::kCommitting) {
    EndOk(*call, nullptr, out);
    Unfail(*call, out);
  } else if (call->doubt) {
    call->doubt = false;
    --doubts_;
    Unfail(*call, out);
    Tell({{options_.rank},
          absl::StrCat("call ", call->number,
                       " was reported here as unknown, but completed on the other ranks")},
         call->doubt_mark, out);
  } else {
    return Impossible(record, "it has ended here");
  }
  return absl::OkStatus();
}

absl::Status RankMachine::OnAbort(const Record& record, RankActions& out) {
  if (record.epoch <= epoch_)
    return Impossible(record, absl::StrCat("epoch ", record.epoch, " is not new"));
  absl::StatusOr<AbortBody> body = DecodeAbort(record, options_.size);
  if (!body.ok()) return body.status();
  const auto kind = static_cast<FailKind>(record.kind);
  RankAction& abort = out.emplace_back();
  abort.type = RankAction::Type::kAbortEpoch;
  abort.epoch = epoch_;
  abort.call = record.call;
  epoch_ = record.epoch;
  failed_ = 0;

  // Notice of the failure: a call that ends by it, but none that has ended before without knowing
  // of it.
  bool noticed = false;
  for (Call& call : calls_) {
    call.failed = false;
    if (call.doubt) {
      call.doubt = false;
      --doubts_;
      if (options_.mutation == Mutation::kDoubtCountsAsTold) noticed = true;
    }
    if (call.state == State::kEnded) continue;
    if (options_.mutation == Mutation::kHeldTakesNewEpoch && call.state == State::kUnsent &&
        call.held) {
      call.epoch = epoch_;
      noticed = true;
      continue;
    }
    noticed = true;
    Outcome outcome;
    if (call.verdict) {
      outcome = std::move(*call.verdict);
    } else {
      outcome.kind = OutcomeKind::kDataFailed;
      outcome.code = CodeOf(kind);
      outcome.ranks = kind == FailKind::kDeadline && !body->late.empty() ? body->late : body->ranks;
      if (call.number == record.call) {
        const bool mine = record.rank == options_.rank;
        if (mine && kind == FailKind::kInterrupt) outcome.kind = OutcomeKind::kInterrupted;
        outcome.text = body->text;
      } else {
        outcome.text = absl::StrCat("call ", call.number, " was ended: ", body->text);
      }
    }
    outcome.tree = TouchedTree(call);
    if (call.state == State::kUnsent)
      Refuse(call, RefuseKind::kTold, WithdrawKind::kDeadline, body->text);
    End(call, std::move(outcome), out);
  }
  if (!noticed) Tell({body->ranks, body->text}, 0, out);
  return absl::OkStatus();
}

void RankMachine::GoUnavailable(uint32_t rank, std::string_view reason) {
  const auto at = std::lower_bound(gone_.begin(), gone_.end(), rank);
  if (at != gone_.end() && *at == rank) return;
  gone_.insert(at, rank);
  gone_reason_ =
      gone_reason_.empty() ? std::string(reason) : Clip(absl::StrCat(gone_reason_, "; ", reason));
}

absl::Status RankMachine::OnLostRecord(const Record& record, SteadyNanos now, RankActions& out) {
  if (record.rank >= options_.size || record.rank == options_.rank || record.rank == 0)
    return Impossible(record, "of a rank that cannot be lost to this one");
  absl::StatusOr<std::string> reason = DecodeReason(record);
  if (!reason.ok()) return reason.status();
  GoUnavailable(record.rank, *reason);
  for (Call& call : calls_) {
    // The rank left on purpose and was through with this call: its bytes are all on their way.
    const bool through =
        record.kind == static_cast<uint8_t>(LostKind::kLeft) && call.number <= record.call;
    switch (call.state) {
      case State::kUnsent:
        call.left = call.decided = true;
        EndUnavailable(call, /*unknown=*/false, out);
        break;
      case State::kData:
      case State::kCommitting:
        if (options_.mutation == Mutation::kLostEndsRestoreCall && call.spec.restore) {
          EndUnavailable(call, /*unknown=*/false, out);
        } else if (!call.failed && !through) {
          call.timer = std::min(call.timer, After(now, kLostPatience));
        }
        break;
      case State::kEnded:
        if (!call.left) call.left = call.decided = true;
        break;
      case State::kPosted:
      case State::kWithdrawing:
        break;  // the decision is on its way
    }
  }
  return absl::OkStatus();
}

void RankMachine::OnLinkLost(std::string_view reason, SteadyNanos now, RankActions& out) {
  if (link_lost_) return;
  CutOff(absl::StrCat(RanksText({0u}, options_.name), " is gone: ", reason), 0, now, out);
  Settle(now, out);
}

// The coordinator is gone; it was through with calls up to `through`.
void RankMachine::CutOff(std::string_view reason, uint64_t through, SteadyNanos now,
                         RankActions& out) {
  link_lost_ = true;
  control_.clear();
  bye_.reset();
  GoUnavailable(0, reason);
  doubts_ = 0;
  failed_ = 0;
  for (Call& call : calls_) {
    call.doubt = false;
    const bool failed = std::exchange(call.failed, false);
    switch (call.state) {
      case State::kUnsent:
        EndUnavailable(call, /*unknown=*/false, out);
        break;
      case State::kPosted:
      case State::kWithdrawing:
        EndUnavailable(call, /*unknown=*/true, out);
        break;
      case State::kData:
      case State::kCommitting:
        // Only a plain data phase can still come to its end without a coordinator.
        if (failed || call.spec.restore || call.owed || !call.agreed) {
          EndFailed(call, out);
        } else if (call.number > through) {
          call.timer = std::min(call.timer, After(now, kLostPatience));
        }
        break;
      case State::kEnded:
        break;
    }
    call.left = call.decided = true;
  }
}

}  // namespace leafpack::protocol
