// The coordinator's side of faults: lost ranks, failed data phases, epochs, completion rounds.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/protocol/coordinator_impl.h"

namespace leafpack::protocol {

void CoordinatorMachine::Impl::OnLost(uint32_t rank, LostKind kind, std::string_view reason,
                                      uint64_t through, SteadyNanos now, CoordinatorActions& out) {
  Member& member = members_[rank];
  if (member.gone) return;
  member.gone = true;
  ++gone_;
  std::string text =
      absl::StrCat(Ranks({rank}), kind == LostKind::kLeft       ? " left the group"
                                  : kind == LostKind::kProtocol ? " broke the protocol"
                                                                : " is gone");
  if (!reason.empty()) absl::StrAppend(&text, ": ", Clip(reason, 1024));
  lost_text_ = lost_text_.empty() ? text : Clip(absl::StrCat(lost_text_, "; ", text));

  Record record;
  record.rank = rank;
  record.epoch = epoch_;
  record.call = through;
  if (rank == 0) {
    // The coordinator itself leaves: what is open is decided first, then everybody is told.
    record.type = RecordType::kBye;
    record.body = EncodeReason(reason);
  } else {
    record.type = RecordType::kLost;
    record.kind = static_cast<uint8_t>(kind);
    record.body = EncodeReason(text);
    SendToAll(record, out);
  }
  std::vector<uint64_t> open;
  open.reserve(entries_.size());
  for (const auto& [call, entry] : entries_) open.push_back(call);
  for (const uint64_t call : open) {
    const auto at = entries_.find(call);
    if (at == entries_.end()) continue;
    if (!at->second->sides.empty()) {
      DecideMismatch(at, now, out);
    } else {
      Evaluate(at, now, out);
    }
  }
  if (rank == 0) SendToAll(record, out);
  TrimRuns();
  if (probe_) FinishProbe(/*expired=*/false, now, out);
}

void CoordinatorMachine::Impl::OnFail(uint32_t rank, const Record& record, SteadyNanos now,
                                      CoordinatorActions& out) {
  absl::StatusOr<FailBody> body = DecodeFail(record);
  if (!body.ok() || record.epoch > epoch_) {
    Drop(rank, body.ok() ? "FAIL of an epoch that does not exist" : body.status().message(), now,
         out);
    return;
  }
  if (record.epoch != epoch_) return;
  // A restore call of this epoch that no longer waits for its completion round is committed.
  if (record.Has(kFlagRestore) && !committing_.contains(record.call)) return;
  const auto kind = static_cast<FailKind>(record.kind);
  std::string text =
      absl::StrCat("call ", record.call, " failed on ", Ranks({rank}), ": ", body->reason);
  if (!body->paths_done.empty())
    absl::StrAppend(&text, "; done there: ", Clip(body->paths_done, 1024));
  // The death of a rank often shows first as an error of the backend on another one: its
  // connections close in any order. So before an error is laid on the rank that reports it, all are
  // asked: who is dead hangs up instead of answering.
  if (kind == FailKind::kError && gone_ != 0) {
    Raise(FailKind::kLost, record.call, rank,
          {Gone(), {}, absl::StrCat(lost_text_, "; ", text)}, now, out);
    return;
  }
  if (kind == FailKind::kDeadline || kind == FailKind::kError) {
    if (probe_) return;
    Probe& probe = probe_.emplace(Probe());
    probe.kind = kind;
    probe.call = record.call;
    probe.rank = rank;
    probe.reason = std::move(text);
    probe.until = now + kProbeTime;
    probe.answered.assign(options_.size, false);
    probe.granted.assign(options_.size, 0);
    probe.answered[rank] = true;
    probe.granted[rank] = record.call;
    Record ask;
    ask.type = RecordType::kProbe;
    ask.epoch = epoch_;
    ask.call = record.call;
    for (uint32_t r = 0; r < options_.size; ++r) {
      if (r != rank && !members_[r].gone) Send(r, ask, out);
    }
    FinishProbe(/*expired=*/false, now, out);
    return;
  }
  std::vector<uint32_t> ranks =
      kind == FailKind::kLost && gone_ != 0 ? Gone() : std::vector<uint32_t>{rank};
  Raise(kind, record.call, rank, {std::move(ranks), {}, std::move(text)}, now, out);
}

void CoordinatorMachine::Impl::OnState(uint32_t rank, const Record& record, SteadyNanos now,
                                       CoordinatorActions& out) {
  absl::StatusOr<uint64_t> granted = DecodeState(record);
  if (!granted.ok()) {
    Drop(rank, granted.status().message(), now, out);
    return;
  }
  if (!probe_ || record.epoch != epoch_) return;
  probe_->answered[rank] = true;
  probe_->granted[rank] = *granted;
  FinishProbe(/*expired=*/false, now, out);
}

// Once all live ranks have answered, or time is up: who is stuck is known as well as it will be.
void CoordinatorMachine::Impl::FinishProbe(bool expired, SteadyNanos now, CoordinatorActions& out) {
  std::vector<uint32_t> late;
  for (uint32_t rank = 0; rank < options_.size; ++rank) {
    if (members_[rank].gone) continue;
    if (!probe_->answered[rank] && !expired) return;
    if (!probe_->answered[rank] || probe_->granted[rank] < probe_->call) late.push_back(rank);
  }
  Probe probe = *std::move(probe_);
  probe_.reset();
  if (probe.kind == FailKind::kError) {
    if (gone_ != 0) {
      Raise(FailKind::kLost, probe.call, probe.rank,
            {Gone(), {}, absl::StrCat(lost_text_, "; ", probe.reason)}, now, out);
    } else {
      Raise(FailKind::kError, probe.call, probe.rank, {{probe.rank}, {}, std::move(probe.reason)},
            now, out);
    }
    return;
  }
  if (!late.empty())
    absl::StrAppend(&probe.reason, "; ", Ranks(late), late.size() == 1 ? " is" : " are", " late");
  Raise(FailKind::kDeadline, probe.call, probe.rank,
        {{probe.rank}, std::move(late), std::move(probe.reason)}, now, out);
}

// The old epoch is over: ABORT first, so that each rank ends what is in flight by it and knows the
// cause, then the decisions of all that was open in it.
void CoordinatorMachine::Impl::Raise(FailKind kind, uint64_t call, uint32_t rank, AbortBody body,
                                     SteadyNanos now, CoordinatorActions& out) {
  probe_.reset();
  ++epoch_;
  committing_.clear();
  last_abort_ = Clip(body.text, 1024);
  Record record;
  record.type = RecordType::kAbort;
  record.kind = static_cast<uint8_t>(kind);
  record.epoch = epoch_;
  record.rank = rank;
  record.call = call;
  record.body = EncodeAbort(body);
  SendToAll(record, out);
  if (options_.mutation == Mutation::kPostsSurviveAbort) return;
  std::vector<uint64_t> open;
  open.reserve(entries_.size());
  for (const auto& [number, entry] : entries_) open.push_back(number);
  for (const uint64_t number : open) {
    const auto at = entries_.find(number);
    if (at == entries_.end()) continue;
    DecideBody decision;
    for (uint32_t r = 0; r < options_.size; ++r) {
      const Post& post = at->second->posts[r];
      if (post.kind == PostKind::kAgree && post.epoch != epoch_) decision.ranks.push_back(r);
    }
    if (decision.ranks.empty()) continue;
    decision.text = absl::StrCat(Ranks(decision.ranks), " called it before ", last_abort_);
    Decide(at, Decision::kAborted, decision, now, out);
  }
}

// A trusted call began to move data on `rank` and is not agreed.
void CoordinatorMachine::Impl::RaiseUnagreed(uint64_t call, uint32_t rank, SteadyNanos now,
                                             CoordinatorActions& out) {
  AbortBody body;
  body.ranks = {rank};
  body.text =
      absl::StrCat("call ", call, " moved data on ", Ranks(body.ranks), " but was not agreed");
  Raise(FailKind::kUnagreed, call, rank, std::move(body), now, out);
}

void CoordinatorMachine::Impl::OnDone(uint32_t rank, const Record& record,
                                      CoordinatorActions& out) {
  if (record.epoch != epoch_) return;
  const auto at = committing_.find(record.call);
  if (at == committing_.end() || at->second.done[rank]) return;
  at->second.done[rank] = true;
  if (--at->second.missing != 0 && options_.mutation != Mutation::kCommitOnFirstDone) return;
  committing_.erase(at);
  Record commit;
  commit.type = RecordType::kCommit;
  commit.epoch = epoch_;
  commit.call = record.call;
  SendToAll(commit, out);
}

void CoordinatorMachine::Impl::OnTick(SteadyNanos now, CoordinatorActions& out) {
  if (probe_ && probe_->until <= now) FinishProbe(/*expired=*/true, now, out);
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    if (at->second->collect_until <= now) {
      CollectNoMore(at, now, out);
      // Deciding a trusted call may decide others too.
      at = entries_.begin();
    } else {
      at = next;
    }
  }
}

SteadyNanos CoordinatorMachine::Impl::NextTimer() const {
  SteadyNanos next = probe_ ? probe_->until : kNever;
  for (const auto& [call, entry] : entries_) next = std::min(next, entry->collect_until);
  return next;
}

}  // namespace leafpack::protocol
