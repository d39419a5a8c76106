// Processes and links of the simulator: who hears what when, freezes, kills.
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

SteadyNanos Simulation::LinkDelay() {
  SteadyNanos delay = random_.Time(1 * kMicro, 60 * kMicro);
  if (faults_.slow_links) {
    if (random_.Chance(0.1)) delay += random_.Time(0, 40 * kMillisecond);
    if (random_.Chance(0.004)) delay += random_.Time(0, 2500 * kMillisecond);
  }
  return delay;
}

// ---- Links ----

void Simulation::Send(Link& link, Parcel parcel, SteadyNanos not_before) {
  parcel.arrival = std::max({link.last, now_ + LinkDelay(), not_before});
  link.last = parcel.arrival;
  link.parcels.push_back(std::move(parcel));
}

void Simulation::SendToCoordinator(uint32_t rank, Record record) {
  Link& link = to_coordinator_[rank];
  Parcel parcel;
  parcel.record = std::move(record);
  Send(link, std::move(parcel), 0);
  At(link.last, EventType::kArrive, 0);
}

void Simulation::FeedCoordinator(uint32_t from, Record record) {
  CoordinatorActions actions;
  coordinator_->OnRecord(from, std::move(record), now_, actions);
  Do(actions);
}

void Simulation::Do(CoordinatorActions& actions) {
  for (CoordinatorAction& action : actions) {
    if (action.type == CoordinatorAction::Type::kDrop) {
      Violate(absl::StrCat("the coordinator dropped rank ", action.rank, ": ", action.reason));
      continue;
    }
    if (options_.trace) {
      std::fprintf(
          stderr, "%9ld   coordinator -> %u %s call %lu kind %u epoch %u\n",
          static_cast<long>(now_ / kMicro), action.rank, RecordTypeName(action.record.type).c_str(),
          static_cast<unsigned long>(action.record.call), action.record.kind, action.record.epoch);
    }
    checks_->Sent(action.rank, action.record);
    if (action.record.type == RecordType::kAbort && action.rank == 0) ++result_.aborts;
    if (action.record.type == RecordType::kCommit && action.rank == 0) ++result_.commits;
    if (action.rank == 0) {
      RankActions out;
      checks_->Read(0, action.record);
      const absl::Status status =
          processes_[0].machine->OnRecord(std::move(action.record), now_, out);
      if (!status.ok()) Violate(absl::StrCat("rank 0: ", status.message()));
      Do(0, out);
    } else {
      Link& link = to_rank_[action.rank];
      Parcel parcel;
      parcel.record = std::move(action.record);
      Send(link, std::move(parcel), processes_[action.rank].open_at);
      At(link.last, EventType::kArrive, action.rank);
    }
  }
  checks_->EventDone();
  if (!checks_->violation().empty()) Violate(checks_->violation());
}

// Hands everything that has arrived to the machines of `rank`.
void Simulation::DrainInbox(uint32_t rank) {
  auto due = [&](Link& link) {
    return !link.parcels.empty() && link.parcels.front().arrival <= now_;
  };
  if (rank == 0) {
    for (uint32_t from = 1; from < size_; ++from) {
      while (due(to_coordinator_[from])) {
        Parcel parcel = std::move(to_coordinator_[from].parcels.front());
        to_coordinator_[from].parcels.pop_front();
        if (parcel.hang_up) {
          CoordinatorActions actions;
          coordinator_->OnLost(from, LostKind::kHangUp, "hang-up", now_, actions);
          Do(actions);
        } else {
          FeedCoordinator(from, std::move(parcel.record));
        }
      }
    }
    return;
  }
  while (processes_[rank].open && due(to_rank_[rank])) {
    Parcel parcel = std::move(to_rank_[rank].parcels.front());
    to_rank_[rank].parcels.pop_front();
    RankActions out;
    if (parcel.hang_up) {
      processes_[rank].machine->OnLinkLost("hang-up", now_, out);
    } else {
      checks_->Read(rank, parcel.record);
      const absl::Status status =
          processes_[rank].machine->OnRecord(std::move(parcel.record), now_, out);
      if (!status.ok()) Violate(absl::StrCat("rank ", rank, ": ", status.message()));
    }
    Do(rank, out);
  }
}

void Simulation::Flush(uint32_t rank) {
  RankMachine& machine = *processes_[rank].machine;
  while (true) {
    std::optional<Record> record = machine.TakeOutgoing();
    if (!record) break;
    if (options_.trace) {
      std::fprintf(stderr, "%9ld rank %u sends %s call %lu kind %u epoch %u\n",
                   static_cast<long>(now_ / kMicro), rank, RecordTypeName(record->type).c_str(),
                   static_cast<unsigned long>(record->call), record->kind, record->epoch);
    }
    checks_->Left(rank, *record);
    if (rank == 0) {
      FeedCoordinator(0, *std::move(record));
    } else {
      SendToCoordinator(rank, *std::move(record));
    }
  }
}

// One turn of a process: sockets, timers, records.
void Simulation::Step(uint32_t rank) {
  Process& process = processes_[rank];
  if (!process.alive || process.left || now_ < process.frozen_until) return;
  RankActions out;
  auto timers = [&] {
    if (rank == 0 && coordinator_->NextTimer() <= now_) {
      CoordinatorActions actions;
      coordinator_->OnTick(now_, actions);
      Do(actions);
    }
    if (process.machine->NextTimer() <= now_) {
      process.machine->OnTick(now_, out);
      Do(rank, out);
    }
  };
  if (options_.mutation == Mutation::kTimersBeforeSocket) timers();
  DrainInbox(rank);
  // Rank 0's own records to the coordinator come before its timers are believed.
  Flush(rank);
  timers();
  Flush(rank);
  SteadyNanos next = process.machine->NextTimer();
  if (rank == 0) next = std::min(next, coordinator_->NextTimer());
  if (next != kNever && next < process.timer_at) {
    process.timer_at = next;
    At(next, EventType::kTimer, rank);
  }
}

// ---- Events ----

void Simulation::HangUpAll(uint32_t rank) {
  if (rank == 0) {
    for (uint32_t peer = 1; peer < size_; ++peer) {
      if (!processes_[peer].open) continue;
      Link& link = to_rank_[peer];
      Parcel parcel;
      parcel.hang_up = true;
      Send(link, std::move(parcel), 0);
      At(link.last, EventType::kArrive, peer);
    }
  } else if (processes_[rank].open) {
    Link& link = to_coordinator_[rank];
    Parcel parcel;
    parcel.hang_up = true;
    Send(link, std::move(parcel), 0);
    At(link.last, EventType::kArrive, 0);
  }
}

void Simulation::Kill(uint32_t rank) {
  Process& process = processes_[rank];
  if (!process.alive) return;
  process.alive = false;
  dead_.push_back(rank);
  checks_->Killed(rank);
  for (uint32_t peer = 1; peer < size_; ++peer) {
    if ((rank == 0 || rank == peer) && !processes_[peer].open) dead_unheard_ = true;
  }
  HangUpAll(rank);
  for (uint32_t epoch = 0; epoch < exchanges_.size(); ++epoch) AbortContext(rank, epoch);
}

void Simulation::UserEvent(const Event& event) {
  Process& process = processes_[event.rank];
  RankActions out;
  switch (event.type) {
    case EventType::kIssue:
      if (event.call == kBeginFinals) process.finals = true;
      IssueNext(event.rank);
      break;
    case EventType::kInterrupt:
      process.machine->Withdraw(
          event.call, random_.Chance(0.5) ? WithdrawKind::kInterrupt : WithdrawKind::kCancel, now_,
          out);
      break;
    case EventType::kDataDone:
      if (process.aborted[event.epoch]) break;
      checks_->DataDone(event.rank, event.call);
      process.machine->OnDataDone(event.call, now_, out);
      break;
    case EventType::kDataError:
      process.machine->OnDataFailed(event.call, FailKind::kError, "the data path failed", "", now_,
                                    out);
      // Rank 0 stands still just when it should hear of it.
      if (faults_.freezes && random_.Chance(0.3))
        At(now_ + random_.Time(0, 100 * kMicro), EventType::kFreeze, 0);
      break;
    case EventType::kManifest: {
      const Checks::Call& call = checks_->call(event.rank, event.call);
      const ManifestEntry entry{false, "leaf", "leaf", absl::StrCat("layout ", call.digest.lo)};
      process.machine->ProvideManifest(event.call, EncodeManifest({entry}));
      break;
    }
    case EventType::kLeave:
      process.machine->Leave("", now_, out);
      break;
    default:
      break;
  }
  Do(event.rank, out);
}

void Simulation::Handle(const Event& event) {
  Process& process = processes_[event.rank];
  if (!process.alive || process.left) return;
  switch (event.type) {
    case EventType::kTimer:
      if (process.timer_at <= now_) process.timer_at = kNever;
      Step(event.rank);
      return;
    case EventType::kArrive:
      Step(event.rank);
      return;
    case EventType::kThaw: {
      if (now_ < process.frozen_until) return;
      // What arrived during the freeze and what the program missed come in either order.
      if (random_.Chance(0.5)) Step(event.rank);
      std::deque<Event> waiting = std::exchange(process.waiting, {});
      for (const Event& missed : waiting) Handle(missed);
      Step(event.rank);
      return;
    }
    case EventType::kFreeze: {
      SteadyNanos time =
          random_.Chance(0.4) ? random_.Time(0, 30 * kMillisecond) : random_.Time(0, 4 * kSecond);
      const SteadyNanos until = std::max(process.frozen_until, now_ + time);
      process.frozen_total += until - std::max(process.frozen_until, now_);
      process.frozen_until = until;
      At(until, EventType::kThaw, event.rank);
      return;
    }
    case EventType::kKill:
      Kill(event.rank);
      return;
    case EventType::kExchange:
      for (const Process& each : processes_) {
        if (each.aborted[event.epoch] || !each.alive) return;
      }
      for (uint32_t rank = 0; rank < size_; ++rank)
        At(now_ + random_.Time(0, 100 * kMicro), EventType::kDataDone, rank, event.call,
           event.epoch);
      return;
    default:
      break;
  }
  if (now_ < process.frozen_until) {
    process.waiting.push_back(event);
    return;
  }
  if (event.type == EventType::kOpen) {
    // Rank 0 is dead: nobody opens.
    if (!processes_[0].alive) return;
    process.open = true;
    coordinator_->OnJoined(event.rank);
    RankActions out;
    process.machine->OnChannelOpen(now_, out);
    Do(event.rank, out);
  } else {
    UserEvent(event);
  }
  Step(event.rank);
  if (event.type == EventType::kLeave) {
    process.left = true;
    HangUpAll(event.rank);
  }
}

}  // namespace leafpack::protocol::simulation
