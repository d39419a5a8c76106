// The users' programs of the simulator and its model of the data path.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/protocol/manifest.h"
#include "distributed/core/protocol/simulation.h"

namespace leafpack::protocol::simulation {

// ---- The user's program ----

CallSpec Simulation::MakeSpec(uint32_t rank, const Plan& plan, bool final) {
  Process& process = processes_[rank];
  CallSpec spec;
  spec.frame = plan.frame;
  spec.restore = plan.restore;
  spec.digest = {plan.layout, 77u + (plan.frame ? 1u : 0u) + (plan.restore ? 2u : 0u) +
                     (plan.open ? 4u : 0u)};
  spec.soft_digest = {random_.Chance(0.1) ? 2u : 1u, 0};
  if (plan.frame)
    spec.payload = std::make_shared<const std::string>(8, static_cast<char>(1 + rank));
  if (plan.open) {
    spec.open = true;
    spec.frame = random_.Chance(0.85);
    if (spec.frame)
      spec.payload = std::make_shared<const std::string>(1 + rank, static_cast<char>(1 + rank));
  }
  if (final) {
    spec.deadline = now_ + 60 * kSecond;
    return spec;
  }
  spec.deadline = now_ + 10 * kSecond;
  if (faults_.deadlines) {
    const uint64_t kind = random_.Below(10);
    if (kind < 3) spec.deadline = now_ + random_.Time(0, 1500 * kMicro);
    if (kind == 3) spec.deadline = now_ + random_.Time(0, 60 * kMillisecond);
    if (kind == 4) spec.deadline = now_ + random_.Time(0, 1500 * kMillisecond);
  }
  if (faults_.digests && random_.Chance(0.08)) spec.digest.lo = 20 + random_.Below(3);
  spec.unchecked = plan.unchecked;
  if (faults_.misuse && !plan.frame && !plan.open && !plan.restore && random_.Chance(0.1))
    spec.unchecked = !spec.unchecked;
  if (faults_.trusted && !spec.frame && !spec.open && !spec.restore && !spec.unchecked) {
    spec.trusted = std::find(process.agreed_layouts.begin(), process.agreed_layouts.end(),
                             spec.digest.lo) != process.agreed_layouts.end();
  }
  return spec;
}

void Simulation::IssueNext(uint32_t rank) {
  Process& process = processes_[rank];
  const int limit = process.finals ? calls_ + kFinalCalls : calls_;
  if (process.next_call >= limit) return;
  if (process.machine->in_flight() >= (process.finals ? 1 : process.window)) {
    process.blocked = true;
    return;
  }
  const bool final = process.next_call >= calls_;
  const Plan& plan = plan_[static_cast<size_t>(process.next_call++)];
  RankActions out;
  ++result_.calls;
  const bool doubt = process.machine->in_doubt();
  if (!final && faults_.refusals && random_.Chance(0.08)) {
    const uint64_t call = process.machine->IssueRefusal("an error of its own", now_, out);
    checks_->Refused(rank, call, now_);
  } else {
    CallSpec spec = MakeSpec(rank, plan, final);
    Checks::Call info;
    info.frame = spec.frame && !spec.open;  // of an open call: once it is decided
    info.open = spec.open;
    info.brings = spec.frame;
    info.restore = spec.restore;
    info.trusted = spec.trusted;
    info.unchecked = spec.unchecked && !spec.frame && !spec.open && !spec.restore;
    info.digest = spec.digest;
    info.issued_at = now_;
    info.deadline = spec.deadline;
    info.frozen_before = process.frozen_total;
    info.held = doubt;
    info.final = final;
    if (doubt) ++result_.held;
    const uint64_t call = process.machine->issued() + 1;
    checks_->Issued(rank, call, info);
    if (options_.trace) {
      std::fprintf(
          stderr,
          "%9ld rank %u issues %lu frame %d restore %d trusted %d unchecked %d deadline %ld\n",
          static_cast<long>(now_ / kMicro), rank, static_cast<unsigned long>(call), spec.frame,
          spec.restore, spec.trusted, spec.unchecked, static_cast<long>(spec.deadline / kMicro));
    }
    process.machine->Issue(std::move(spec), now_, out);
    if (!final && faults_.interrupts && random_.Chance(0.12))
      At(now_ + random_.Time(0, 2 * kMillisecond), EventType::kInterrupt, rank, call);
  }
  Do(rank, out);
  At(now_ + random_.Time(0, process.slow), EventType::kIssue, rank);
}

void Simulation::Ended(uint32_t rank, const RankAction& action) {
  Process& process = processes_[rank];
  const Outcome& outcome = action.outcome;
  if (options_.trace) {
    std::fprintf(stderr, "%9ld rank %u ended %lu kind %d tree %d unknown %d: %s\n",
                 static_cast<long>(now_ / kMicro), rank, static_cast<unsigned long>(action.call),
                 static_cast<int>(outcome.kind), static_cast<int>(outcome.tree),
                 outcome.outcome_unknown, outcome.text.c_str());
  }
  // An answer that lies unread while the rank says that none came.
  if (outcome.kind == OutcomeKind::kDoubt && process.open && rank != 0) {
    for (const Parcel& parcel : to_rank_[rank].parcels) {
      if (parcel.arrival > now_) break;
      if (!parcel.hang_up &&
          (parcel.record.call == action.call || parcel.record.type == RecordType::kAbort)) {
        Violate(absl::StrCat("rank ", rank, " is in doubt of call ", action.call,
                             " while its answer waits in the socket (9)"));
      }
    }
  }
  checks_->Ended(rank, action.call, action.epoch, outcome, now_, process.frozen_total,
                 process.machine->epoch());
  switch (outcome.kind) {
    case OutcomeKind::kOk:
      ++result_.ok;
      break;
    case OutcomeKind::kDoubt:
      ++result_.doubts;
      break;
    case OutcomeKind::kTold:
      ++result_.told;
      break;
    case OutcomeKind::kMismatch:
      ++result_.mismatches;
      break;
    case OutcomeKind::kPeerRefused:
      ++result_.refused;
      break;
    case OutcomeKind::kLost:
      ++result_.lost;
      break;
    case OutcomeKind::kDeadline:
    case OutcomeKind::kGivenUp:
    case OutcomeKind::kInterrupted:
      ++result_.withdrawn;
      break;
    case OutcomeKind::kDataFailed:
      break;
  }
  if (outcome.ok()) process.agreed_layouts.push_back(checks_->call(rank, action.call).digest.lo);
  if (process.blocked) {
    process.blocked = false;
    // A user who was told that rank 0 does not answer may well pause.
    const bool pause = outcome.kind == OutcomeKind::kDoubt && random_.Chance(0.5);
    At(now_ + random_.Time(0, pause ? 4 * kSecond : process.slow), EventType::kIssue, rank);
  }
  if (process.finals && process.next_call == calls_ + kFinalCalls && faults_.leave &&
      process.machine->in_flight() == 0) {
    At(now_ + (random_.Chance(0.5) ? 0 : random_.Time(0, 20 * kMillisecond)), EventType::kLeave,
       rank);
  }
}

// ---- The data path ----

void Simulation::Granted(uint32_t rank, const RankAction& action) {
  Process& process = processes_[rank];
  const uint32_t epoch = action.epoch;
  if (exchanges_.size() <= epoch) exchanges_.resize(epoch + 1);
  for (Process& each : processes_) {
    if (each.stopped.size() <= epoch)
      each.stopped.resize(epoch + 1, false), each.aborted.resize(epoch + 1, false);
  }
  if (process.stopped[epoch])
    Violate(absl::StrCat("rank ", rank, " enqueues call ", action.call,
                         " after a failure of its epoch (8)"));
  if (process.aborted[epoch])
    Violate(absl::StrCat("rank ", rank, " enqueues call ", action.call, " in a dead context (8)"));
  checks_->Granted(rank, action.call, epoch);
  Exchange& exchange = exchanges_[epoch][action.call];
  if (exchange.entered.empty()) exchange.entered.resize(size_, false);
  if (exchange.entered[rank])
    Violate(absl::StrCat("rank ", rank, " was granted call ", action.call, " twice"));
  exchange.entered[rank] = true;
  if (++exchange.count == size_) {
    SteadyNanos time = random_.Time(10 * kMicro, 400 * kMicro);
    if (faults_.slow_data && random_.Chance(0.3)) time = random_.Time(0, 1500 * kMillisecond);
    At(now_ + time, EventType::kExchange, rank, action.call, epoch);
  }
  if (faults_.data_errors && !checks_->call(rank, action.call).final && random_.Chance(0.06)) {
    At(now_ + random_.Time(0, 600 * kMicro), EventType::kDataError, rank, action.call, epoch);
  }
}

void Simulation::AbortContext(uint32_t rank, uint32_t epoch) {
  for (Process& each : processes_) {
    if (each.stopped.size() <= epoch)
      each.stopped.resize(epoch + 1, false), each.aborted.resize(epoch + 1, false);
  }
  if (processes_[rank].aborted[epoch]) return;
  processes_[rank].aborted[epoch] = true;
  if (exchanges_.size() <= epoch) return;
  // Some peers notice by an error of their own, others just hang.
  for (const auto& [call, exchange] : exchanges_[epoch]) {
    for (uint32_t peer = 0; peer < size_; ++peer) {
      if (peer != rank && exchange.entered[peer] && random_.Chance(0.3)) {
        At(now_ + random_.Time(0, 5 * kMillisecond), EventType::kDataError, peer, call, epoch);
      }
    }
  }
}

void Simulation::Do(uint32_t rank, RankActions& actions) {
  Process& process = processes_[rank];
  for (RankAction& action : actions) {
    switch (action.type) {
      case RankAction::Type::kEnded:
        Ended(rank, action);
        break;
      case RankAction::Type::kGranted:
        Granted(rank, action);
        break;
      case RankAction::Type::kStopEnqueue:
        if (process.stopped.size() <= action.epoch)
          process.stopped.resize(action.epoch + 1, false),
              process.aborted.resize(action.epoch + 1, false);
        process.stopped[action.epoch] = !action.resume;
        break;
      case RankAction::Type::kAbortEpoch:
        AbortContext(rank, action.epoch);
        break;
      case RankAction::Type::kManifestWanted: {
        SteadyNanos delay = 0;
        if (faults_.lazy_manifests) delay = random_.Time(0, 3 * kSecond);
        if (delay != 0 || rank != 0) {
          At(now_ + delay, EventType::kManifest, rank, action.call);
        } else {
          At(now_, EventType::kManifest, rank, action.call);
        }
        break;
      }
      case RankAction::Type::kDecided:
        break;
    }
  }
  actions.clear();
  if (!checks_->violation().empty()) Violate(checks_->violation());
}

}  // namespace leafpack::protocol::simulation
