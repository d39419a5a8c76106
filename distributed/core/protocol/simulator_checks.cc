#include "distributed/core/protocol/simulator_checks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace leafpack::protocol {

void Checks::Violate(std::string text) {
  if (violation_.empty()) violation_ = std::move(text);
}

const Checks::Call& Checks::call(uint32_t rank, uint64_t number) const {
  static const Call none;
  const auto at = ranks_[rank].calls.find(number);
  return at == ranks_[rank].calls.end() ? none : at->second;
}

std::string Checks::Joined(absl::Span<const std::string_view> payloads) {
  std::string joined;
  for (const std::string_view payload : payloads) joined.append(payload);
  return joined;
}

void Checks::Issued(uint32_t rank, uint64_t number, const Call& info) {
  Call& call = ranks_[rank].calls[number];
  call = info;
  call.issued_order = ++order_;
}

void Checks::Refused(uint32_t rank, uint64_t number, SteadyNanos now) {
  Call& call = ranks_[rank].calls[number];
  call.refusal = true;
  call.issued_at = now;
  call.issued_order = ++order_;
  call.ended = true;
  call.ended_order = order_;
  call.kind = OutcomeKind::kPeerRefused;
  call.tree = TreeState::kUnchanged;
}

void Checks::Left(uint32_t rank, const Record& record) {
  Rank& self = ranks_[rank];
  if (record.type == RecordType::kDone) self.calls[record.call].done_left = true;
  if (record.type != RecordType::kAgree && record.type != RecordType::kRefuse) return;
  if (record.call <= self.posted)
    Violate(absl::StrCat("rank ", rank, " posts call ", record.call, " twice or late (7)"));
  for (uint64_t skipped = self.posted + 1; skipped < record.call; ++skipped) {
    if (!self.calls[skipped].unchecked)
      Violate(absl::StrCat("rank ", rank, " never posts call ", skipped, " (7)"));
  }
  self.posted = record.call;
  Call& call = self.calls[record.call];
  call.left = true;
  call.epoch = record.epoch;
  if (record.type == RecordType::kAgree) {
    call.posted_agree = true;
    call.posted_trusted = record.Has(kFlagTrusted);
    call.posted_digest = record.digest;
    if (call.refusal)
      Violate(absl::StrCat("rank ", rank, " agrees to call ", record.call, ", which it refused"));
    if (call.ended && call.tree == TreeState::kUnchanged && !call.unknown &&
        call.kind == OutcomeKind::kDeadline) {
      Violate(absl::StrCat("rank ", rank, " agrees to call ", record.call,
                           ", which it gave up before (4)"));
    }
  } else if (record.kind == static_cast<uint8_t>(RefuseKind::kWithdrawn)) {
    ++retracted_;
  }
}

void Checks::EventDone() {
  if (abort_owed_ != 0)
    Violate(absl::StrCat("call ", abort_owed_,
                         " moved data and was not agreed, and no ABORT follows (3)"));
}

void Checks::Sent(uint32_t rank, const Record& record) {
  const uint32_t epoch = record.epoch;
  if (record.type == RecordType::kAbort) abort_owed_ = 0;
  if (record.type == RecordType::kCommit && rank == 0) {
    for (uint32_t r = 0; r < size_; ++r) {
      if (!call(r, record.call).done_left)
        Violate(absl::StrCat("COMMIT of call ", record.call, " without DONE of rank ", r, " (5)"));
    }
  }
  if (record.type != RecordType::kDecide) return;
  Call& call = ranks_[rank].calls[record.call];
  const auto decision = static_cast<Decision>(record.kind);
  if (!call.left)
    Violate(absl::StrCat("call ", record.call, " is decided to rank ", rank,
                         ", which has not posted it"));
  if (call.sent)
    Violate(absl::StrCat("call ", record.call, " is decided to rank ", rank, " twice (1)"));
  call.sent = true;
  const auto [at, first] = decisions_.emplace(record.call, decision);
  if (at->second != decision) {
    Violate(absl::StrCat("call ", record.call, " has two decisions, ", static_cast<int>(at->second),
                         " and ", record.kind, " (1)"));
  }
  if (decision == Decision::kOk && call.open) call.frame = record.Has(kFlagFrame);
  if (decision != Decision::kOk && call.posted_trusted && call.epoch == epoch)
    abort_owed_ = record.call;
  if (!first || decision != Decision::kOk) return;
  if (record.call <= last_ok_)
    Violate(absl::StrCat("OK of call ", record.call, " after OK of call ", last_ok_, " (2)"));
  last_ok_ = record.call;
  const Digest128 digest = call.posted_digest;
  for (uint32_t r = 0; r < size_; ++r) {
    const Call& post = ranks_[r].calls[record.call];
    if (!post.left || !post.posted_agree)
      Violate(absl::StrCat("OK of call ", record.call, " without a post of rank ", r, " (2)"));
    if (post.epoch != epoch)
      Violate(absl::StrCat("OK of call ", record.call, " with a post of epoch ", post.epoch,
                           " in epoch ", epoch, " (2)"));
    if (post.posted_digest != digest)
      Violate(absl::StrCat("OK of call ", record.call, " with two digests (2)"));
    if (record.Has(kFlagFrame) && !post.brings)
      Violate(absl::StrCat("call ", record.call, " is a frame, but rank ", r, " brought none (2)"));
  }
}

void Checks::Read(uint32_t rank, const Record& record) {
  if (record.type != RecordType::kDecide) return;
  Call& call = ranks_[rank].calls[record.call];
  (record.kind == static_cast<uint8_t>(Decision::kOk) ? call.read_ok : call.read_other) = true;
}

void Checks::Granted(uint32_t rank, uint64_t number, uint32_t epoch) {
  Call& call = ranks_[rank].calls[number];
  call.granted = true;
  call.epoch = epoch;
  if (call.ended)
    Violate(absl::StrCat("rank ", rank, " is granted call ", number, ", which has ended"));
  if (call.frame)
    Violate(absl::StrCat("rank ", rank, " is granted call ", number, ", which is a frame"));
  if (call.read_other || (!call.read_ok && !call.trusted && !call.unchecked)) {
    Violate(absl::StrCat("rank ", rank, " writes in call ", number, " without OK (3)"));
  }
  if (contexts_.size() <= epoch)
    contexts_.resize(epoch + 1, std::vector<std::vector<uint64_t>>(size_));
  std::vector<std::vector<uint64_t>>& context = contexts_[epoch];
  std::vector<uint64_t>& mine = context[rank];
  if (!mine.empty() && mine.back() >= number)
    Violate(absl::StrCat("rank ", rank, " enters call ", number, " after ", mine.back(), " (8)"));
  const size_t place = mine.size();
  mine.push_back(number);
  if (unagreed_) return;
  for (uint32_t r = 0; r < size_; ++r) {
    if (context[r].size() > place && context[r][place] != number) {
      Violate(absl::StrCat("in epoch ", epoch, " rank ", rank, " pairs call ", number,
                           " with call ", context[r][place], " of rank ", r, " (8)"));
    }
  }
}

void Checks::Ended(uint32_t rank, uint64_t number, uint32_t call_epoch, const Outcome& outcome,
                   SteadyNanos now, SteadyNanos frozen, uint32_t epoch) {
  Call& call = ranks_[rank].calls[number];
  const std::string who = absl::StrCat("rank ", rank, ", call ", number, ": ");
  if (call.ended) Violate(absl::StrCat(who, "ends twice"));
  call.ended = true;
  call.ended_order = ++order_;
  call.kind = outcome.kind;
  call.tree = outcome.tree;
  call.unknown = outcome.outcome_unknown;
  call.ranks = outcome.ranks;
  call.text = outcome.text;
  if (!call.granted) call.epoch = call_epoch;
  if ((outcome.code == absl::StatusCode::kOk) != outcome.ok())
    Violate(absl::StrCat(who, "code and kind disagree"));
  const SteadyNanos limit = std::max(call.issued_at, call.deadline) + 3 * kGrace +
                            (frozen - call.frozen_before) + kMillisecond;
  if (now > limit)
    Violate(
        absl::StrCat(who, "ends ", (now - limit) / 1000, " us after deadline + 3 grace + freezes"));

  if (outcome.ok()) {
    if (outcome.tree != TreeState::kComplete) Violate(absl::StrCat(who, "OK without its result"));
    if (!call.read_ok && !call.unchecked) Violate(absl::StrCat(who, "OK without agreement (3)"));
    if (!call.frame && !(call.granted && call.data_done))
      Violate(absl::StrCat(who, "OK without its data"));
    if (call.frame) {
      std::string expected(8, static_cast<char>(size_ * (size_ + 1) / 2));
      if (call.open) {
        expected.clear();
        for (uint32_t r = 1; r <= size_; ++r) expected.append(r, static_cast<char>(r));
      }
      if (outcome.frame == nullptr || *outcome.frame != expected)
        Violate(absl::StrCat(who, "a wrong result"));
    }
  } else {
    if (outcome.tree == TreeState::kComplete)
      Violate(absl::StrCat(who, "an error with a complete tree"));
    if (call.granted && outcome.tree == TreeState::kUnchanged)
      Violate(absl::StrCat(who, "says unchanged though data had begun (4)"));
    if (call.restore && outcome.tree == TreeState::kPartial)
      Violate(absl::StrCat(who, "a restore call leaves a partial tree (5)"));
    if (call_epoch < epoch || outcome.kind == OutcomeKind::kTold)
      ranks_[rank].notices.emplace_back(order_, epoch);
  }
}

// 5: frames and restore calls succeed on all ranks or on none; ranks in doubt and the dead
// excepted.
void Checks::CheckAllOrNothing(uint64_t number) {
  if (ranks_[0].dead) return;
  int ok = -1;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    const Call& mine = call(rank, number);
    if (ranks_[rank].dead || !mine.ended || mine.kind == OutcomeKind::kDoubt) continue;
    const int now = mine.kind == OutcomeKind::kOk ? 1 : 0;
    if (ok >= 0 && ok != now)
      Violate(absl::StrCat("call ", number, " succeeds on some ranks only (5); rank ", rank, ": ",
                           mine.text));
    ok = now;
  }
}

// 6: after an error of `number` on rank q, no call that q issues later succeeds with a rank that
// had issued its side before it was told.
void Checks::CheckNotice(uint64_t number) {
  for (uint32_t q = 0; q < size_; ++q) {
    const Call& failed = call(q, number);
    if (ranks_[q].dead || !failed.ended || failed.kind == OutcomeKind::kOk) continue;
    const bool begun =
        failed.granted || (decisions_.contains(number) && decisions_.at(number) == Decision::kOk);
    if (!begun) continue;
    // A frame, or a committed call, that ended in doubt here and well elsewhere: the user is told
    // before a call succeeds.
    bool well = false;
    for (uint32_t s = 0; s < size_; ++s)
      well = well || (s != q && call(s, number).ended && call(s, number).kind == OutcomeKind::kOk);
    const bool data = !failed.frame && !(failed.restore && well);
    bool first = true;
    for (auto later = ranks_[q].calls.upper_bound(number); later != ranks_[q].calls.end();
         ++later) {
      const Call& mine = later->second;
      if (mine.issued_order < failed.ended_order || mine.refusal) continue;
      const bool success = mine.ended && mine.kind == OutcomeKind::kOk;
      bool told_here = false;
      for (const auto& [order, epoch] : ranks_[q].notices)
        told_here = told_here || (order > failed.ended_order && order < mine.issued_order);
      if (std::exchange(first, false) && failed.kind == OutcomeKind::kDoubt && well && success &&
          !told_here) {
        Violate(absl::StrCat("call ", later->first, " succeeds on rank ", q,
                             ", which does not know that call ", number,
                             " completed elsewhere (6)"));
      }
      if (!success || !data) continue;
      for (uint32_t s = 0; s < size_; ++s) {
        const Call& other = call(s, later->first);
        if (s == q || !other.ended || other.kind != OutcomeKind::kOk) continue;
        const Call& there = call(s, number);
        uint64_t told = UINT64_MAX;
        if (there.ended && there.kind != OutcomeKind::kOk) told = there.ended_order;
        for (const auto& [order, epoch] : ranks_[s].notices) {
          if (epoch > failed.epoch) told = std::min(told, order);
        }
        if (other.issued_order < told) {
          Violate(absl::StrCat("call ", number, " failed on rank ", q, ", whose call ",
                               later->first, " then succeeds with rank ", s,
                               ", which had not been told (6)"));
        }
      }
    }
  }
}

void Checks::AtEnd(bool complete) {
  uint64_t last = 0;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (!ranks_[rank].calls.empty()) last = std::max(last, ranks_[rank].calls.rbegin()->first);
    for (const auto& [number, call] : ranks_[rank].calls) {
      const std::string who = absl::StrCat("rank ", rank, ", call ", number, ": ");
      if (complete && call.left && !(call.read_ok || call.read_other))
        Violate(absl::StrCat(who, "posted and never answered (1)"));
      if (complete && !call.left && !call.unchecked) Violate(absl::StrCat(who, "never posted (7)"));
      if (ranks_[rank].dead) continue;
      const bool claims = call.ended && !call.refusal && call.kind != OutcomeKind::kOk &&
                          call.kind != OutcomeKind::kDataFailed && !call.unknown &&
                          call.tree == TreeState::kUnchanged && !call.read_ok;
      if (claims && decisions_.contains(number) && decisions_.at(number) == Decision::kOk) {
        Violate(absl::StrCat(
            who, "says that no rank has changed, but the call was OK (4): ", call.text));
      }
    }
  }
  for (uint64_t number = 1; number <= last; ++number) {
    const Call& any = call(0, number);
    bool whole = any.frame || any.restore;
    for (uint32_t rank = 1; rank < size_; ++rank)
      whole = whole || call(rank, number).frame || call(rank, number).restore;
    if (whole) CheckAllOrNothing(number);
    CheckNotice(number);
  }
}

}  // namespace leafpack::protocol
