#include "distributed/core/protocol/rank_machine.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack::protocol {
namespace {

SteadyNanos After(SteadyNanos now, SteadyNanos wait) {
  return now > kNever - wait ? kNever : now + wait;
}

std::string_view GaveUp(WithdrawKind why) {
  switch (why) {
    case WithdrawKind::kDeadline:
      return "its deadline passed";
    case WithdrawKind::kInterrupt:
      return "it was interrupted";
    case WithdrawKind::kCancel:
      return "it was cancelled";
  }
  return "";
}

}  // namespace

RankMachine::RankMachine(Options options) : options_(std::move(options)) {}

// ---- Issuing ----

RankMachine::Call* RankMachine::Find(uint64_t call) {
  if (calls_.empty() || call < calls_.front().number || call > calls_.back().number) return nullptr;
  return &calls_[call - calls_.front().number];
}

// The next number. If the group is unavailable, its post will never leave.
RankMachine::Call& RankMachine::Append() {
  Call& call = calls_.emplace_back();
  call.number = ++issued_;
  call.epoch = epoch_;
  call.held = doubts_ != 0;
  if (unavailable()) call.left = call.decided = true;
  return call;
}

uint64_t RankMachine::Issue(CallSpec spec, SteadyNanos now, RankActions& out) {
  const bool first_in_queue = next_post_ > issued_;
  Call& call = Append();
  const uint64_t number = call.number;
  ++in_flight_;
  call.spec = std::move(spec);
  call.timer = call.spec.deadline;
  if (call.spec.frame && !call.spec.open) call.spec.restore = false;
  if (call.spec.frame || call.spec.open || call.spec.restore)
    call.spec.trusted = call.spec.unchecked = false;
  if (call.spec.unchecked) call.spec.trusted = false;
  if (unavailable()) {
    EndUnavailable(call, /*unknown=*/false, out);
  } else if (told_ && options_.mutation != Mutation::kNoToldRefusal) {
    EndTold(call, *std::exchange(told_, std::nullopt), out);
  } else if (call.spec.trusted) {
    // Data may start at once only where the post leaves at once too and nothing before it is
    // uncertain.
    if (open_ && first_in_queue && !Undecided(number) && doubts_ == 0 && failed_ == 0 &&
        undecided_ < kMaxUndecided) {
      Grant(call, now, out);
    } else {
      call.spec.trusted = false;
    }
  }
  Settle(now, out);
  return number;
}

uint64_t RankMachine::IssueRefusal(std::string_view reason, SteadyNanos now, RankActions& out) {
  Call& call = Append();
  const uint64_t number = call.number;
  call.state = State::kEnded;
  Refuse(call, RefuseKind::kError, WithdrawKind::kDeadline, reason);
  Settle(now, out);
  return number;
}

// ---- Records that leave ----

bool RankMachine::PostReady() const {
  if (!open_ || link_lost_ || next_post_ > issued_) return false;
  if (doubts_ != 0 && options_.mutation != Mutation::kNoHeld) return false;
  const Call& call = calls_[next_post_ - calls_.front().number];
  if (call.spec.unchecked && !call.refusal) return false;
  if (undecided_ >= kMaxUndecided) return false;
  const size_t payload = !call.refusal && call.spec.payload ? call.spec.payload->size() : 0;
  return undecided_payload_ + payload <= kMaxUndecidedPayload;
}

bool RankMachine::HasOutgoing() const {
  return open_ && !link_lost_ && (!control_.empty() || PostReady() || bye_.has_value());
}

std::optional<Record> RankMachine::TakeOutgoing() {
  if (!open_ || link_lost_) return std::nullopt;
  if (!control_.empty()) {
    std::optional<Record> record = std::move(control_.front());
    control_.pop_front();
    return record;
  }
  if (PostReady()) return TakePost();
  if (bye_) {
    // What may not leave now never will.
    for (Call& call : calls_) {
      if (!call.left) call.left = call.decided = true;
    }
    next_post_ = issued_ + 1;
    return std::exchange(bye_, std::nullopt);
  }
  return std::nullopt;
}

Record RankMachine::TakePost() {
  Call& call = *Find(next_post_);
  Record record;
  record.epoch = call.epoch;
  record.rank = options_.rank;
  record.call = call.number;
  if (call.number != last_posted_ + 1) record.flags |= kFlagGap;
  if (call.refusal) {
    record.type = RecordType::kRefuse;
    record.kind = static_cast<uint8_t>(call.refuse_kind);
    record.body = EncodeRefuse(call.refuse);
    call.spec.payload.reset();
  } else {
    record.type = RecordType::kAgree;
    record.digest = call.spec.digest;
    if (call.spec.frame) record.flags |= kFlagFrame;
    if (call.spec.open) record.flags |= kFlagOpen;
    if (call.spec.restore) record.flags |= kFlagRestore;
    if (call.spec.trusted) record.flags |= kFlagTrusted;
    record.body = EncodeSoftDigest(call.spec.soft_digest);
    if (call.spec.frame) {
      record.attachment = call.spec.payload;
      if (call.spec.payload) undecided_payload_ += call.spec.payload->size();
    }
    if (call.state == State::kUnsent) call.state = State::kPosted;
  }
  call.left = true;
  ++undecided_;
  last_posted_ = call.number;
  while (next_post_ <= issued_ && Find(next_post_)->left) ++next_post_;
  return record;
}

void RankMachine::Control(RecordType type, uint8_t kind, const Call& call, std::string body) {
  Record record;
  record.type = type;
  record.kind = kind;
  record.epoch = call.epoch;
  record.rank = options_.rank;
  record.call = call.number;
  record.body = std::move(body);
  control_.push_back(std::move(record));
}

// True while a call before `number` may still be granted: data of a later one must not overtake it.
bool RankMachine::Undecided(uint64_t number) const {
  for (const Call& call : calls_) {
    if (call.number >= number) break;
    if (call.state == State::kUnsent || call.state == State::kPosted ||
        call.state == State::kWithdrawing)
      return true;
  }
  return false;
}

// Starts unchecked calls whose turn it is, and forgets calls with which all is settled.
void RankMachine::Settle(SteadyNanos now, RankActions& out) {
  while (next_post_ <= issued_) {
    Call& call = *Find(next_post_);
    if (!call.left) {
      if (!call.spec.unchecked || call.refusal || doubts_ != 0 || Undecided(call.number)) break;
      call.left = call.decided = call.agreed = true;
      if (call.state == State::kUnsent) Grant(call, now, out);
    }
    ++next_post_;
  }
  while (!calls_.empty()) {
    const Call& call = calls_.front();
    if (call.state != State::kEnded || !call.left || !call.decided || call.doubt || call.failed)
      break;
    calls_.pop_front();
  }
}

// ---- Ending ----

void RankMachine::End(Call& call, Outcome outcome, RankActions& out) {
  call.state = State::kEnded;
  call.timer = kNever;
  call.owed = false;
  --in_flight_;
  RankAction& action = out.emplace_back();
  action.type = RankAction::Type::kEnded;
  action.call = call.number;
  action.epoch = call.epoch;
  action.soft_equal = call.soft_equal;
  action.outcome = std::move(outcome);
}

void RankMachine::EndOk(Call& call, std::shared_ptr<const std::string> frame, RankActions& out) {
  Outcome outcome;
  outcome.frame = std::move(frame);
  End(call, std::move(outcome), out);
}

TreeState RankMachine::TouchedTree(const Call& call) const {
  if (call.state != State::kData && call.state != State::kCommitting) return TreeState::kUnchanged;
  if (call.owed) return TreeState::kUnchanged;
  return call.spec.restore ? TreeState::kRestore : TreeState::kPartial;
}

void RankMachine::EndUnavailable(Call& call, bool unknown, RankActions& out) {
  Outcome outcome;
  outcome.kind = OutcomeKind::kLost;
  outcome.code = absl::StatusCode::kUnavailable;
  outcome.tree = TouchedTree(call);
  outcome.outcome_unknown = unknown;
  outcome.ranks = gone_;
  outcome.text = leaving_ && gone_.empty()
                     ? absl::StrCat("call ", call.number, ": this rank has left the group")
                     : absl::StrCat("call ", call.number, ": ", gone_reason_);
  if (unknown) absl::StrAppend(&outcome.text, "; the other ranks may have had the result");
  End(call, std::move(outcome), out);
}

// From now on the post of `call` is a refusal.
void RankMachine::Refuse(Call& call, RefuseKind kind, WithdrawKind why, std::string_view reason) {
  call.refusal = true;
  call.refuse_kind = kind;
  call.refuse.why = why;
  call.refuse.reason = Clip(reason);
  call.spec.payload.reset();
}

void RankMachine::Retract(Call& call, WithdrawKind kind, RankActions& out) {
  if (options_.mutation != Mutation::kRetractStillSends) {
    Refuse(call, RefuseKind::kWithdrawn, kind,
           absl::StrCat(GaveUp(kind), " before the call could be posted"));
  }
  Outcome outcome;
  outcome.tree = TreeState::kUnchanged;
  std::string_view waited;
  if (!open_) {
    waited = "rank 0 has not opened the channel";
  } else if (doubts_ != 0) {
    waited = "an earlier call waits for an answer of rank 0";
  } else {
    waited = "too many calls of this rank wait for other ranks";
  }
  if (!open_ || doubts_ != 0) outcome.ranks = {0};
  if (kind == WithdrawKind::kDeadline) {
    outcome.kind = OutcomeKind::kDeadline;
    outcome.code = absl::StatusCode::kDeadlineExceeded;
    outcome.text = absl::StrCat("call ", call.number, ": deadline exceeded: ", waited);
  } else {
    outcome.kind = OutcomeKind::kInterrupted;
    outcome.code = absl::StatusCode::kCancelled;
    outcome.text = absl::StrCat("call ", call.number, ": ", GaveUp(kind), "; ", waited);
  }
  End(call, std::move(outcome), out);
}

void RankMachine::AskToWithdraw(Call& call, WithdrawKind kind, SteadyNanos now) {
  Control(RecordType::kWithdraw, static_cast<uint8_t>(kind), call);
  call.state = State::kWithdrawing;
  call.withdrawn = kind;
  // Rank 0 asks itself: no answer can be lost.
  call.timer = is_coordinator() ? kNever : After(now, kGrace);
}

void RankMachine::EndTold(Call& call, Notice notice, RankActions& out) {
  Refuse(call, RefuseKind::kTold, WithdrawKind::kDeadline, notice.text);
  Outcome outcome;
  outcome.kind = OutcomeKind::kTold;
  outcome.code = absl::StatusCode::kFailedPrecondition;
  outcome.tree = TreeState::kUnchanged;
  outcome.ranks = std::move(notice.ranks);
  outcome.text = absl::StrCat("call ", call.number, " was refused: ", notice.text);
  End(call, std::move(outcome), out);
}

// The user has to hear of something that no call of his showed him: the first call after `after`
// that waits to leave is refused with it, else the next one that is issued.
void RankMachine::Tell(Notice notice, uint64_t after, RankActions& out) {
  if (options_.mutation != Mutation::kNoToldRefusal) {
    for (Call& call : calls_) {
      if (call.number > after && call.state == State::kUnsent) {
        EndTold(call, std::move(notice), out);
        return;
      }
    }
  }
  if (told_) {
    absl::StrAppend(&told_->text, "; ", notice.text);
    for (const uint32_t rank : notice.ranks) {
      if (std::find(told_->ranks.begin(), told_->ranks.end(), rank) == told_->ranks.end())
        told_->ranks.push_back(rank);
    }
    std::sort(told_->ranks.begin(), told_->ranks.end());
  } else {
    told_ = std::move(notice);
  }
}

void RankMachine::Doubt(Call& call, RankActions& out) {
  const bool data = call.state == State::kData || call.state == State::kCommitting;
  if (call.state == State::kData && !call.owed && !call.data_done) {
    // FAIL is on its way, so the epoch is dead; its works must end before the user has his leaves
    // back.
    RankAction& abort = out.emplace_back();
    abort.type = RankAction::Type::kAbortEpoch;
    abort.epoch = call.epoch;
  }
  Outcome outcome;
  outcome.kind = OutcomeKind::kDoubt;
  outcome.tree = TouchedTree(call);
  outcome.outcome_unknown = true;
  outcome.ranks = {0};
  const bool interrupted =
      data ? call.fail_kind == FailKind::kInterrupt : call.withdrawn != WithdrawKind::kDeadline;
  outcome.code = interrupted ? absl::StatusCode::kCancelled : absl::StatusCode::kDeadlineExceeded;
  outcome.text = absl::StrCat(
      "call ", call.number, ": ", data ? call.error : std::string(GaveUp(call.withdrawn)), ", and ",
      RanksText({0u}, options_.name), " does not answer; outcome unknown, here ",
      outcome.tree == TreeState::kPartial ? "the tree may be partly written"
                                          : "the tree is unchanged");
  call.doubt = true;
  call.doubt_mark = issued_;
  ++doubts_;
  End(call, std::move(outcome), out);
}

// ---- The data phase ----

void RankMachine::Grant(Call& call, SteadyNanos now, RankActions& out) {
  call.state = State::kData;
  // A grant that crosses the deadline does not break an epoch.
  call.timer = std::max(call.spec.deadline, After(now, kGrace));
  if (!gone_.empty()) call.timer = std::min(call.timer, After(now, kLostPatience));
  // After a failure here nothing more may enter this epoch's context: calls would pair up wrongly.
  call.owed = failed_ != 0 && options_.mutation != Mutation::kGrantAfterFail;
  if (!call.owed) Begin(call, out);
}

void RankMachine::Begin(Call& call, RankActions& out) {
  call.owed = false;
  last_granted_ = call.number;
  RankAction& action = out.emplace_back();
  action.type = RankAction::Type::kGranted;
  action.call = call.number;
  action.epoch = call.epoch;
  action.soft_equal = call.soft_equal;
}

void RankMachine::Fail(Call& call, FailKind kind, std::string_view reason,
                       std::string_view paths_done, SteadyNanos now, RankActions& out) {
  if (call.failed) return;
  call.fail_kind = kind;
  call.error = Clip(reason);
  if (link_lost_) {
    EndFailed(call, out);
    return;
  }
  call.failed = true;
  Control(RecordType::kFail, static_cast<uint8_t>(kind), call,
          EncodeFail({call.error, std::string(paths_done)}));
  if (call.spec.restore) control_.back().flags |= kFlagRestore;
  call.timer = is_coordinator() || call.state == State::kEnded ? kNever : After(now, kGrace);
  if (++failed_ == 1) {
    RankAction& action = out.emplace_back();
    action.type = RankAction::Type::kStopEnqueue;
    action.epoch = call.epoch;
  }
}

// Without rank 0 nobody can be told and no ABORT will come.
void RankMachine::EndFailed(Call& call, RankActions& out) {
  if (call.state == State::kData && !call.data_done) {
    RankAction& abort = out.emplace_back();
    abort.type = RankAction::Type::kAbortEpoch;
    abort.epoch = call.epoch;
  }
  // A committing call may have been committed elsewhere; data may have been complete elsewhere.
  EndUnavailable(call, /*unknown=*/!call.spec.restore || call.state == State::kCommitting, out);
}

// COMMIT overtook a FAIL of this call: the epoch lives, and calls that waited may enqueue.
void RankMachine::Unfail(Call& call, RankActions& out) {
  if (!call.failed) return;
  call.failed = false;
  if (--failed_ != 0) return;
  RankAction& action = out.emplace_back();
  action.type = RankAction::Type::kStopEnqueue;
  action.epoch = call.epoch;
  action.resume = true;
  for (Call& waiting : calls_) {
    if (waiting.owed) Begin(waiting, out);
  }
}

void RankMachine::OnDataDone(uint64_t number, SteadyNanos now, RankActions& out) {
  Call* call = Find(number);
  if (call == nullptr || call->state != State::kData || call->failed || call->owed) return;
  call->data_done = true;
  if (call->spec.restore) {
    Control(RecordType::kDone, 0, *call);
    call->state = State::kCommitting;
  } else if (call->agreed) {
    EndOk(*call, nullptr, out);
  }
  Settle(now, out);
}

void RankMachine::OnDataFailed(uint64_t number, FailKind kind, std::string_view reason,
                               std::string_view paths_done, SteadyNanos now, RankActions& out) {
  Call* call = Find(number);
  if (call == nullptr || (call->state != State::kData && call->state != State::kCommitting)) return;
  Fail(*call, kind, reason, paths_done, now, out);
  Settle(now, out);
}

// ---- Giving up ----

void RankMachine::Withdraw(uint64_t number, WithdrawKind kind, SteadyNanos now, RankActions& out) {
  Call* call = Find(number);
  if (call == nullptr) return;
  switch (call->state) {
    case State::kUnsent:
      Retract(*call, kind, out);
      break;
    case State::kPosted:
      AskToWithdraw(*call, kind, now);
      break;
    case State::kData:
    case State::kCommitting:
      Fail(*call, FailKind::kInterrupt, GaveUp(kind), "", now, out);
      break;
    case State::kWithdrawing:
    case State::kEnded:
      break;
  }
  Settle(now, out);
}

void RankMachine::OnTick(SteadyNanos now, RankActions& out) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i].timer <= now) Fire(calls_[i], now, out);
  }
  Settle(now, out);
}

SteadyNanos RankMachine::NextTimer() const {
  SteadyNanos next = kNever;
  for (const Call& call : calls_) next = std::min(next, call.timer);
  return next;
}

void RankMachine::Fire(Call& call, SteadyNanos now, RankActions& out) {
  switch (call.state) {
    case State::kUnsent:
      Retract(call, WithdrawKind::kDeadline, out);
      break;
    case State::kPosted:
      if (options_.mutation == Mutation::kGiveUpAlone) {
        Outcome outcome;
        outcome.kind = OutcomeKind::kDeadline;
        outcome.code = absl::StatusCode::kDeadlineExceeded;
        outcome.tree = TreeState::kUnchanged;
        End(call, std::move(outcome), out);
      } else {
        AskToWithdraw(call, WithdrawKind::kDeadline, now);
      }
      break;
    case State::kWithdrawing:
      Doubt(call, out);
      break;
    case State::kData:
    case State::kCommitting:
      if (call.failed) {
        Doubt(call, out);
      } else if (link_lost_) {
        EndFailed(call, out);
      } else if (!gone_.empty()) {
        Fail(call, FailKind::kLost, gone_reason_, "", now, out);
      } else {
        Fail(call, FailKind::kDeadline, GaveUp(WithdrawKind::kDeadline), "", now, out);
      }
      break;
    case State::kEnded:
      break;
  }
}

// ---- Channel, descriptions, farewell ----

void RankMachine::OnChannelOpen(SteadyNanos now, RankActions& out) {
  open_ = true;
  Settle(now, out);
}

void RankMachine::ProvideManifest(uint64_t number, std::string_view description) {
  Call* call = Find(number);
  if (call == nullptr || call->decided || link_lost_) return;
  if (description.size() > kMaxManifestBytes) description = {};
  do {
    const std::string_view chunk = description.substr(0, kManifestChunk);
    description.remove_prefix(chunk.size());
    Control(RecordType::kManifest, 0, *call, std::string(chunk));
    if (description.empty()) control_.back().flags |= kFlagLast;
  } while (!description.empty());
}

void RankMachine::Leave(std::string_view reason, SteadyNanos now, RankActions& out) {
  if (leaving_) return;
  leaving_ = true;
  Record bye;
  bye.type = RecordType::kBye;
  bye.epoch = epoch_;
  bye.rank = options_.rank;
  // The last call before the first one that is not settled here: nothing that another rank still
  // waits for.
  bye.call = issued_;
  for (const Call& call : calls_) {
    if (call.state != State::kEnded || call.doubt || call.failed) {
      bye.call = call.number - 1;
      break;
    }
  }
  bye.body = EncodeReason(reason);
  bye_ = std::move(bye);
  Settle(now, out);
}

absl::Status RankMachine::Availability() const {
  if (gone_.empty()) return absl::OkStatus();
  return absl::UnavailableError(gone_reason_);
}

}  // namespace leafpack::protocol
