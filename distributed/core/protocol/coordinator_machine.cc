#include "distributed/core/protocol/coordinator_machine.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/protocol/coordinator_impl.h"

namespace leafpack::protocol {

CoordinatorMachine::CoordinatorMachine(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
CoordinatorMachine::~CoordinatorMachine() = default;

void CoordinatorMachine::OnRecord(uint32_t rank, Record record, SteadyNanos now,
                                  CoordinatorActions& out) {
  impl_->OnRecord(rank, std::move(record), now, out);
}
void CoordinatorMachine::OnJoined(uint32_t rank) { impl_->members_[rank].joined = true; }
void CoordinatorMachine::OnLost(uint32_t rank, LostKind kind, std::string_view reason,
                                SteadyNanos now, CoordinatorActions& out) {
  impl_->OnLost(rank, kind, reason, 0, now, out);
}
void CoordinatorMachine::OnTick(SteadyNanos now, CoordinatorActions& out) {
  impl_->OnTick(now, out);
}
SteadyNanos CoordinatorMachine::NextTimer() const { return impl_->NextTimer(); }
uint32_t CoordinatorMachine::epoch() const { return impl_->epoch_; }
bool CoordinatorMachine::gone(uint32_t rank) const { return impl_->members_[rank].gone; }
size_t CoordinatorMachine::table_size() const { return impl_->table_size(); }

CoordinatorMachine::Impl::Impl(Options options)
    : options_(std::move(options)), members_(options_.size) {
  members_[0].joined = true;
}

void CoordinatorMachine::Impl::Send(uint32_t rank, Record record, CoordinatorActions& out) {
  CoordinatorAction& action = out.emplace_back();
  action.rank = rank;
  action.record = std::move(record);
}

void CoordinatorMachine::Impl::SendToAll(const Record& record, CoordinatorActions& out) {
  for (uint32_t rank = 0; rank < options_.size; ++rank) {
    if (!members_[rank].gone) Send(rank, record, out);
  }
}

void CoordinatorMachine::Impl::Drop(uint32_t rank, std::string_view reason, SteadyNanos now,
                                    CoordinatorActions& out) {
  CoordinatorAction& action = out.emplace_back();
  action.type = CoordinatorAction::Type::kDrop;
  action.rank = rank;
  action.reason = std::string(reason);
  OnLost(rank, LostKind::kProtocol, reason, 0, now, out);
}

std::vector<uint32_t> CoordinatorMachine::Impl::Gone() const {
  std::vector<uint32_t> gone;
  for (uint32_t rank = 0; rank < options_.size; ++rank) {
    if (members_[rank].gone) gone.push_back(rank);
  }
  return gone;
}

void CoordinatorMachine::Impl::OnRecord(uint32_t rank, Record record, SteadyNanos now,
                                        CoordinatorActions& out) {
  Member& member = members_[rank];
  if (member.gone) return;
  if (record.rank != rank) {
    Drop(rank, absl::StrCat(RecordTypeName(record.type), " that names another rank"), now, out);
    return;
  }
  switch (record.type) {
    case RecordType::kAgree:
    case RecordType::kRefuse:
      OnPost(rank, std::move(record), now, out);
      break;
    case RecordType::kWithdraw:
      OnWithdraw(rank, record, now, out);
      break;
    case RecordType::kFail:
      OnFail(rank, record, now, out);
      break;
    case RecordType::kState:
      OnState(rank, record, now, out);
      break;
    case RecordType::kDone:
      OnDone(rank, record, out);
      break;
    case RecordType::kManifest:
      OnManifest(rank, std::move(record), now, out);
      break;
    case RecordType::kBye: {
      absl::StatusOr<std::string> reason = DecodeReason(record);
      if (!reason.ok()) {
        Drop(rank, reason.status().message(), now, out);
      } else {
        OnLost(rank, LostKind::kLeft, *reason, record.call, now, out);
      }
      break;
    }
    default:
      Drop(rank, absl::StrCat(RecordTypeName(record.type), ", which only the coordinator sends"),
           now, out);
  }
}

// ---- Posts ----

void CoordinatorMachine::Impl::OnPost(uint32_t rank, Record record, SteadyNanos now,
                                      CoordinatorActions& out) {
  Member& member = members_[rank];
  const uint64_t call = record.call;
  const bool gap = record.Has(kFlagGap);
  if (gap ? call <= member.posted + 1 : call != member.posted + 1) {
    Drop(
        rank,
        absl::StrCat(RecordTypeName(record.type), " of call ", call, " after call ", member.posted),
        now, out);
    return;
  }
  Post post;
  post.flags = record.flags;
  post.epoch = record.epoch;
  if (record.type == RecordType::kAgree) {
    absl::StatusOr<AgreeView> view = DecodeAgree(record);
    if (!view.ok() || record.epoch > epoch_) {
      Drop(rank, view.ok() ? "AGREE of an epoch that does not exist" : view.status().message(), now,
           out);
      return;
    }
    post.kind = PostKind::kAgree;
    post.digest = record.digest;
    post.soft = view->soft;
    if (record.Has(kFlagFrame)) post.record = std::move(record);
  } else {
    absl::StatusOr<RefuseBody> body = DecodeRefuse(record);
    if (!body.ok()) {
      Drop(rank, body.status().message(), now, out);
      return;
    }
    const auto kind = static_cast<RefuseKind>(record.kind);
    post.kind = kind == RefuseKind::kError  ? PostKind::kError
                : kind == RefuseKind::kTold ? PostKind::kTold
                                            : PostKind::kWithdrawn;
    post.refuse = *std::move(body);
  }

  const uint64_t before = member.posted;
  // Deciding a number that was skipped may end the epoch and decide `call` too: this rank has yet
  // to be answered then.
  member.posted = call - 1;
  member.history[call % kDigestHistory] = {call, post.digest};
  if (gap) {
    gaps_ = true;
    // Numbers that this rank skipped and another one posted can no longer be agreed.
    std::vector<uint64_t> skipped;
    for (auto at = entries_.upper_bound(before); at != entries_.end() && at->first < call; ++at)
      skipped.push_back(at->first);
    for (const uint64_t number : skipped) {
      const auto at = entries_.find(number);
      if (at == entries_.end() || options_.mutation == Mutation::kGapHidesPosts) continue;
      DecideBody body;
      body.ranks = {rank};
      body.text =
          absl::StrCat(Ranks(body.ranks), " ran this call without a check, others with one");
      Decide(at, Decision::kMismatch, body, now, out);
    }
  }

  member.posted = call;
  if (!runs_.empty()) {
    auto run = runs_.upper_bound(call);
    const bool decided = run != runs_.begin() && (--run)->second.last >= call;
    if (decided) AnswerFromTable(rank, call, run->second, out);
    TrimRuns();
    if (decided) {
      const bool begun =
          post.kind == PostKind::kAgree && (post.flags & kFlagTrusted) != 0 && post.epoch == epoch_;
      if (begun && options_.mutation != Mutation::kTrustedNeedsNoAbort)
        RaiseUnagreed(call, rank, now, out);
      return;
    }
  }

  const auto at = Open(call);
  Entry& entry = *at->second;
  Post& slot = entry.posts[rank];
  slot = std::move(post);
  if (slot.kind == PostKind::kAgree && (slot.flags & kFlagFrame) != 0)
    slot.payload = DecodeAgree(slot.record)->payload;
  ++entry.posted;
  ++member.undecided;
  member.undecided_payload += slot.payload.size();
  if (member.undecided > kMaxUndecided || member.undecided_payload > kMaxUndecidedPayload) {
    Drop(rank, "more undecided calls than the protocol allows", now, out);
    return;
  }
  if (slot.kind == PostKind::kAgree && slot.epoch != epoch_ &&
      options_.mutation != Mutation::kIgnorePostEpoch) {
    DecideBody body;
    body.ranks = {rank};
    body.text = absl::StrCat(Ranks(body.ranks), " called it before it was told that ", last_abort_);
    Decide(at, Decision::kAborted, body, now, out);
    return;
  }
  if (gaps_ && options_.mutation != Mutation::kGapHidesPosts) {
    std::vector<uint32_t> skipped;
    for (uint32_t r = 0; r < options_.size; ++r) {
      if (members_[r].posted >= call && entry.posts[r].kind == PostKind::kNone)
        skipped.push_back(r);
    }
    if (!skipped.empty()) {
      DecideBody body;
      body.ranks = skipped;
      body.text = absl::StrCat(Ranks(skipped), " ran this call without a check, others with one");
      Decide(at, Decision::kMismatch, body, now, out);
      return;
    }
  }
  Evaluate(at, now, out);
}

CoordinatorMachine::Impl::Entries::iterator CoordinatorMachine::Impl::Open(uint64_t call) {
  auto at = entries_.lower_bound(call);
  if (at != entries_.end() && at->first == call) return at;
  std::unique_ptr<Entry> entry;
  if (spare_.empty()) {
    entry = std::make_unique<Entry>();
    entry->posts.resize(options_.size);
  } else {
    entry = std::move(spare_.back());
    spare_.pop_back();
  }
  return entries_.emplace_hint(at, call, std::move(entry));
}

void CoordinatorMachine::Impl::AnswerFromTable(uint32_t rank, uint64_t call, const Run& run,
                                               CoordinatorActions& out) {
  if (options_.mutation == Mutation::kLatePostersUnanswered) return;
  Record record;
  record.type = RecordType::kDecide;
  record.kind = static_cast<uint8_t>(run.decision);
  record.flags = kFlagLate;
  record.epoch = epoch_;
  record.call = call;
  record.body = run.body;
  Send(rank, std::move(record), out);
}

// ---- Deciding ----

void CoordinatorMachine::Impl::Evaluate(Entries::iterator at, SteadyNanos now,
                                        CoordinatorActions& out) {
  Entry& entry = *at->second;
  if (!entry.sides.empty()) return;
  if (gone_ == 0 && entry.posted < options_.size) return;
  bool refused = false;
  uint32_t gave_up = options_.size;
  if (options_.mutation != Mutation::kRefusalsIgnored) {
    for (uint32_t rank = 0; rank < options_.size; ++rank) {
      const PostKind kind = entry.posts[rank].kind;
      if (kind == PostKind::kError || kind == PostKind::kTold) refused = true;
      if (kind == PostKind::kWithdrawn && gave_up == options_.size) gave_up = rank;
    }
  }
  if (refused) {
    DecideRefused(at, now, out);
  } else if (gave_up < options_.size) {
    DecideBody body;
    body.why = entry.posts[gave_up].refuse.why;
    body.ranks = {gave_up};
    Decide(at, Decision::kWithdrawn, body, now, out);
  } else if (gone_ != 0) {
    DecideBody body;
    body.ranks = Gone();
    body.text = lost_text_;
    Decide(at, Decision::kLost, body, now, out);
  } else {
    const Post& first = entry.posts[0];
    for (const Post& post : entry.posts) {
      // Ranks need not bring a frame to an open call.
      const uint16_t compared = (first.flags & kFlagOpen) != 0
                                    ? kFlagOpen | kFlagRestore
                                    : kFlagOpen | kFlagRestore | kFlagFrame;
      if (post.digest != first.digest || ((post.flags ^ first.flags) & compared) != 0) {
        Collect(at, now, out);
        return;
      }
    }
    Agree(at, now, out);
  }
}

void CoordinatorMachine::Impl::Agree(Entries::iterator at, SteadyNanos now,
                                     CoordinatorActions& out) {
  Entry& entry = *at->second;
  const uint64_t call = at->first;
  const Post& first = entry.posts[0];
  const bool open = (first.flags & kFlagOpen) != 0;
  bool frame = true;
  for (const Post& post : entry.posts) frame = frame && (post.flags & kFlagFrame) != 0;
  Record record;
  record.type = RecordType::kDecide;
  record.kind = static_cast<uint8_t>(Decision::kOk);
  record.epoch = epoch_;
  record.call = call;
  bool soft_equal = true;
  for (const Post& post : entry.posts) soft_equal = soft_equal && post.soft == first.soft;
  if (soft_equal) record.flags |= kFlagSoftEqual;
  if (frame) {
    std::vector<std::string_view> payloads;
    payloads.reserve(entry.posts.size());
    for (uint32_t rank = 0; rank < options_.size; ++rank) {
      const Post& post = entry.posts[rank];
      if (!open && post.payload.size() != first.payload.size()) {
        Drop(rank,
             absl::StrCat("a frame of ", post.payload.size(), " bytes where ", first.payload.size(),
                          " follow from its digest"),
             now, out);
        return;
      }
      payloads.push_back(post.payload);
    }
    absl::StatusOr<FrameOutcome> joined = options_.reduce(call, payloads);
    if (joined.ok() && joined->mismatch) {
      DecideBody body = *std::move(joined->mismatch);
      body.text = Clip(body.text, kMaxReasonBytes);
      Decide(at, Decision::kMismatch, body, now, out);
      return;
    }
    absl::Status failed = joined.status();
    if (joined.ok() && !open &&
        (!joined->result || joined->result->size() != first.payload.size())) {
      failed = absl::InternalError("the reduction changed the size");
    }
    if (!failed.ok()) {
      DecideBody body;
      body.ranks = {0};
      body.text =
          Clip(absl::StrCat(Ranks(body.ranks), " could not reduce it: ", failed.message()));
      Decide(at, Decision::kRefused, body, now, out);
      return;
    }
    frame = joined->result && joined->result->size() <= kMaxFramePayload;
    if (frame) {
      record.flags |= kFlagFrame;
      record.attachment = std::make_shared<const std::string>(*std::move(joined->result));
    }
  }
  if (!frame && (first.flags & kFlagRestore) != 0) {
    Commit& commit = committing_[call];
    commit.done.assign(options_.size, false);
    commit.missing = options_.size;
  }
  for (uint32_t rank = 0; rank < options_.size; ++rank) {
    Post& post = entry.posts[rank];
    --members_[rank].undecided;
    members_[rank].undecided_payload -= post.payload.size();
    post = Post();
    Send(rank, record, out);
  }
  entry.posted = 0;
  spare_.push_back(std::move(at->second));
  entries_.erase(at);
}

void CoordinatorMachine::Impl::DecideRefused(Entries::iterator at, SteadyNanos now,
                                             CoordinatorActions& out) {
  DecideBody body;
  std::string reasons;
  for (uint32_t rank = 0; rank < options_.size; ++rank) {
    const Post& post = at->second->posts[rank];
    if (post.kind != PostKind::kError && post.kind != PostKind::kTold) continue;
    body.ranks.push_back(rank);
    if (body.ranks.size() <= 4) {
      absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", Ranks({rank}),
                      " refused it: ", Clip(post.refuse.reason, 900));
    }
  }
  body.text = std::move(reasons);
  if (body.ranks.size() > 4) absl::StrAppend(&body.text, "; refused by ", Ranks(body.ranks));
  Decide(at, Decision::kRefused, body, now, out);
}

// Any decision but OK.
void CoordinatorMachine::Impl::Decide(Entries::iterator at, Decision decision,
                                      const DecideBody& body, SteadyNanos now,
                                      CoordinatorActions& out) {
  const uint64_t call = at->first;
  std::unique_ptr<Entry> entry = std::move(at->second);
  entries_.erase(at);
  Record record;
  record.type = RecordType::kDecide;
  record.kind = static_cast<uint8_t>(decision);
  record.epoch = epoch_;
  record.call = call;
  record.body = EncodeDecide(body);
  uint32_t begun = options_.size;
  bool to_come = false;
  for (uint32_t rank = 0; rank < options_.size; ++rank) {
    Post& post = entry->posts[rank];
    Member& member = members_[rank];
    if (post.kind == PostKind::kNone) {
      if (!member.gone && member.posted < call) to_come = true;
      continue;
    }
    --member.undecided;
    member.undecided_payload -= post.payload.size();
    if (post.kind == PostKind::kAgree && (post.flags & kFlagTrusted) != 0 && post.epoch == epoch_ &&
        begun == options_.size)
      begun = rank;
    if (!member.gone) Send(rank, record, out);
    post = Post();
  }
  entry->posted = 0;
  entry->sides.clear();
  entry->manifest_bytes = 0;
  entry->collect_until = kNever;
  entry->overdue = false;
  spare_.push_back(std::move(entry));
  if (to_come) Remember(call, decision, std::move(record.body));
  if (begun != options_.size && options_.mutation != Mutation::kTrustedNeedsNoAbort) {
    RaiseUnagreed(call, begun, now, out);
  }
}

// Keeps the decision for ranks that have yet to post.
void CoordinatorMachine::Impl::Remember(uint64_t call, Decision decision, std::string body) {
  auto next = runs_.upper_bound(call);
  if (next != runs_.begin()) {
    auto& [first, run] = *std::prev(next);
    if (run.last + 1 == call && run.decision == decision && run.body == body) {
      run.last = call;
      return;
    }
  }
  runs_.emplace_hint(next, call, Run{call, decision, std::move(body)});
  if (runs_.size() <= kMaxRuns) return;
  // Too many different stories for a rank that far behind: neighbours become one that says less.
  for (auto run = runs_.begin(); std::next(run) != runs_.end(); ++run) {
    const auto after = std::next(run);
    if (run->second.last + 1 != after->first) continue;
    DecideBody vague;
    vague.ranks = {0};
    vague.text = "it was given up before this rank called it; the reason is no longer kept";
    run->second.last = after->second.last;
    run->second.decision = Decision::kAborted;
    run->second.body = EncodeDecide(vague);
    runs_.erase(after);
    return;
  }
}

uint64_t CoordinatorMachine::Impl::PostedByAll() const {
  uint64_t least = kNever;
  for (const Member& member : members_) {
    if (!member.gone) least = std::min(least, member.posted);
  }
  return least;
}

void CoordinatorMachine::Impl::TrimRuns() {
  const uint64_t posted = PostedByAll();
  while (!runs_.empty() && runs_.begin()->second.last <= posted) runs_.erase(runs_.begin());
}

void CoordinatorMachine::Impl::OnWithdraw(uint32_t rank, const Record& record, SteadyNanos now,
                                          CoordinatorActions& out) {
  if (record.call > members_[rank].posted) {
    Drop(rank,
         absl::StrCat("WITHDRAW of call ", record.call, " after call ", members_[rank].posted), now,
         out);
    return;
  }
  const auto at = entries_.find(record.call);
  if (at == entries_.end() || at->second->posts[rank].kind == PostKind::kNone) {
    if (options_.mutation == Mutation::kWithdrawOverridesOk && at == entries_.end()) {
      Record again;
      again.type = RecordType::kDecide;
      again.kind = static_cast<uint8_t>(Decision::kWithdrawn);
      again.call = record.call;
      again.body = EncodeDecide({static_cast<WithdrawKind>(record.kind), {rank}, {}, "", ""});
      SendToAll(again, out);
    }
    return;  // it is decided: the rank reads the decision and obeys
  }
  if (!at->second->sides.empty()) {
    DecideMismatch(at, now, out);
    return;
  }
  for (const Post& post : at->second->posts) {
    if ((post.kind == PostKind::kError || post.kind == PostKind::kTold) &&
        options_.mutation != Mutation::kRefusalsIgnored) {
      DecideRefused(at, now, out);
      return;
    }
  }
  DecideBody body;
  body.why = static_cast<WithdrawKind>(record.kind);
  body.ranks = {rank};
  for (uint32_t r = 0; r < options_.size; ++r) {
    if (!members_[r].gone && at->second->posts[r].kind == PostKind::kNone)
      body.missing.push_back(r);
  }
  std::vector<uint32_t> unconnected;
  for (const uint32_t r : body.missing) {
    if (!members_[r].joined) unconnected.push_back(r);
  }
  if (!unconnected.empty())
    body.text = absl::StrCat(Ranks(unconnected), unconnected.size() == 1 ? " has" : " have",
                             " not connected yet");
  Decide(at, Decision::kWithdrawn, body, now, out);
}

}  // namespace leafpack::protocol
