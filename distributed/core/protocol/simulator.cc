#include "distributed/core/protocol/simulator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/protocol/coordinator_machine.h"
#include "distributed/core/protocol/manifest.h"
#include "distributed/core/protocol/rank_machine.h"
#include "distributed/core/protocol/record.h"
#include "distributed/core/protocol/simulator_checks.h"

namespace leafpack::protocol {
namespace {

constexpr SteadyNanos kMicro = 1000;
constexpr SteadyNanos kSecond = 1000 * kMillisecond;
// Calls at the end, long after the last fault; of these the last two must be right.
constexpr int kFinalCalls = 4;
constexpr uint64_t kBeginFinals = 1;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return Next() % n; }
  SteadyNanos Time(SteadyNanos from, SteadyNanos to) { return from + static_cast<SteadyNanos>(Below(static_cast<uint64_t>(to - from + 1))); }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) < p * 9007199254740992.0; }

 private:
  uint64_t state_;
};

// Which faults one run has.
struct Faults {
  bool deadlines, refusals, digests, interrupts, data_errors, freezes, kills, late_open, slow_links, trusted, unchecked,
      misuse, leave, lazy_manifests, slow_data;
};

// What the program does in one call; the same on all ranks but for the deviations.
struct Plan {
  bool frame = false;
  bool restore = false;
  bool unchecked = false;
  uint64_t layout = 0;
};

enum class EventType : uint8_t { kArrive, kTimer, kIssue, kInterrupt, kDataDone, kDataError, kExchange, kOpen, kFreeze, kThaw, kKill, kManifest, kLeave };

struct Event {
  SteadyNanos time;
  uint64_t order;
  EventType type;
  uint32_t rank;
  uint32_t epoch;
  uint64_t call;
  friend bool operator>(const Event& a, const Event& b) { return a.time != b.time ? a.time > b.time : a.order > b.order; }
};

struct Parcel {
  SteadyNanos arrival = 0;
  bool hang_up = false;
  Record record;
};
struct Link {
  std::deque<Parcel> parcels;
  SteadyNanos last = 0;
};

struct Process {
  std::unique_ptr<RankMachine> machine;
  bool alive = true;
  bool left = false;
  SteadyNanos frozen_until = 0;
  SteadyNanos frozen_total = 0;
  SteadyNanos open_at = 0;
  bool open = false;
  SteadyNanos timer_at = kNever;
  std::deque<Event> waiting;  // of a frozen process
  // The user's program.
  int next_call = 0;
  size_t window = 1;
  bool blocked = false;
  SteadyNanos think = 0;
  SteadyNanos slow = 0;
  bool finals = false;
  std::vector<uint64_t> agreed_layouts;
  // The data path.
  std::vector<bool> stopped;  // by epoch
  std::vector<bool> aborted;
};

// One call's data in one epoch.
struct Exchange {
  std::vector<bool> entered;
  uint32_t count = 0;
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options) : options_(options), random_(options.seed) {}
  SimulationResult Run();

 private:
  void SetUp();
  void At(SteadyNanos time, EventType type, uint32_t rank, uint64_t call = 0, uint32_t epoch = 0);
  void Handle(const Event& event);
  void UserEvent(const Event& event);
  void Step(uint32_t rank);
  void DrainInbox(uint32_t rank);
  void Flush(uint32_t rank);
  void FeedCoordinator(uint32_t from, Record record);
  void Do(CoordinatorActions& actions);
  void Do(uint32_t rank, RankActions& actions);
  void Send(Link& link, Parcel parcel, SteadyNanos not_before);
  void SendToCoordinator(uint32_t rank, Record record);
  SteadyNanos LinkDelay();
  void IssueNext(uint32_t rank);
  CallSpec MakeSpec(uint32_t rank, const Plan& plan, bool final);
  void Ended(uint32_t rank, const RankAction& action);
  void Granted(uint32_t rank, const RankAction& action);
  void AbortContext(uint32_t rank, uint32_t epoch);
  void Kill(uint32_t rank);
  void HangUpAll(uint32_t rank);
  void Violate(const std::string& text);
  void CheckEnd();
  void MaybeStartFinals();
  bool AllIdle() const;

  SimulationOptions options_;
  Random random_;
  Faults faults_{};
  uint32_t size_ = 2;
  int calls_ = 0;
  SteadyNanos now_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::vector<Process> processes_;
  std::vector<Link> to_coordinator_;
  std::vector<Link> to_rank_;
  std::unique_ptr<CoordinatorMachine> coordinator_;
  std::vector<Plan> plan_;
  std::vector<std::map<uint64_t, Exchange>> exchanges_;  // by epoch
  std::unique_ptr<Checks> checks_;
  bool finals_started_ = false;
  std::vector<uint32_t> dead_;
  bool dead_unheard_ = false;  // somebody died without the coordinator hearing of it
  SimulationResult result_;
};

SteadyNanos Simulation::LinkDelay() {
  SteadyNanos delay = random_.Time(1 * kMicro, 60 * kMicro);
  if (faults_.slow_links) {
    if (random_.Chance(0.1)) delay += random_.Time(0, 40 * kMillisecond);
    if (random_.Chance(0.004)) delay += random_.Time(0, 2500 * kMillisecond);
  }
  return delay;
}

void Simulation::Violate(const std::string& text) {
  if (result_.violation.empty()) result_.violation = absl::StrCat("seed ", options_.seed, ", at ", now_ / kMicro, " us: ", text);
}

void Simulation::At(SteadyNanos time, EventType type, uint32_t rank, uint64_t call, uint32_t epoch) {
  events_.push(Event{std::max(time, now_), ++order_, type, rank, epoch, call});
}

void Simulation::SetUp() {
  size_ = 2 + static_cast<uint32_t>(random_.Below(4));
  const bool calm = random_.Chance(0.05);
  auto with = [&](double p) { return !calm && random_.Chance(p); };
  faults_.deadlines = with(0.6);
  faults_.refusals = with(0.3);
  faults_.digests = with(0.25);
  faults_.interrupts = with(0.25);
  faults_.data_errors = with(0.4);
  faults_.freezes = with(0.35);
  faults_.kills = with(0.12);
  faults_.late_open = with(0.3);
  faults_.slow_links = with(0.4);
  faults_.trusted = with(0.15);
  faults_.unchecked = with(0.08);
  faults_.misuse = faults_.unchecked && with(0.5);
  faults_.leave = random_.Chance(0.3);
  faults_.lazy_manifests = with(0.1);
  faults_.slow_data = with(0.2);
  calls_ = 4 + static_cast<int>(random_.Below(12));

  processes_.resize(size_);
  to_coordinator_.resize(size_);
  to_rank_.resize(size_);
  plan_.resize(static_cast<size_t>(calls_ + kFinalCalls));
  for (int i = 0; i < calls_; ++i) {
    Plan& plan = plan_[static_cast<size_t>(i)];
    const uint64_t kind = random_.Below(20);
    plan.frame = kind < 8;
    plan.restore = kind >= 15;
    plan.layout = 1 + random_.Below(3);
    plan.unchecked = faults_.unchecked && !plan.frame && !plan.restore && random_.Chance(0.5);
  }
  for (int i = calls_; i < calls_ + kFinalCalls; ++i) {
    Plan& plan = plan_[static_cast<size_t>(i)];
    const uint64_t kind = random_.Below(3);
    plan.frame = kind == 0;
    plan.restore = kind == 1;
    plan.layout = 9;
  }
  coordinator_ = std::make_unique<CoordinatorMachine>(CoordinatorMachine::Options{
      size_, nullptr,
      [this](uint64_t, absl::Span<const std::string_view> payloads) -> absl::StatusOr<std::string> {
        std::string sum(payloads[0].size(), '\0');
        for (const std::string_view payload : payloads) {
          for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<char>(sum[i] + payload[i]);
        }
        return sum;
      },
      options_.mutation});
  checks_ = std::make_unique<Checks>(size_, faults_.trusted || faults_.unchecked);
  const bool async = random_.Chance(0.5);
  for (uint32_t rank = 0; rank < size_; ++rank) {
    Process& process = processes_[rank];
    process.machine = std::make_unique<RankMachine>(RankMachine::Options{rank, size_, nullptr, options_.mutation});
    process.window = async ? 1 + random_.Below(6) : 1;
    process.slow = random_.Chance(0.2) && !calm ? random_.Time(0, 20 * kMillisecond) : 200 * kMicro;
    process.open_at = random_.Time(0, 300 * kMicro);
    if (faults_.late_open && random_.Chance(0.5)) process.open_at = random_.Time(0, 400 * kMillisecond);
    if (rank == 0) process.open_at = 0;
    At(process.open_at, EventType::kOpen, rank);
    At(random_.Time(0, 500 * kMicro), EventType::kIssue, rank);
    if (faults_.freezes && random_.Chance(0.5)) {
      const int freezes = 1 + static_cast<int>(random_.Below(3));
      for (int i = 0; i < freezes; ++i) At(random_.Time(0, random_.Chance(0.7) ? 20 * kMillisecond : 3 * kSecond), EventType::kFreeze, rank);
    }
  }
  if (faults_.kills) {
    const auto rank = static_cast<uint32_t>(random_.Below(size_));
    At(random_.Time(0, random_.Chance(0.7) ? 15 * kMillisecond : 2 * kSecond), EventType::kKill, rank);
  }
}

// ---- Links ---------------------------------------------------------------------------------------------------------

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
      std::fprintf(stderr, "%9ld   coordinator -> %u %s call %lu kind %u epoch %u\n", static_cast<long>(now_ / kMicro), action.rank,
                   RecordTypeName(action.record.type).c_str(), static_cast<unsigned long>(action.record.call), action.record.kind,
                   action.record.epoch);
    }
    checks_->Sent(action.rank, action.record);
    if (action.record.type == RecordType::kAbort && action.rank == 0) ++result_.aborts;
    if (action.record.type == RecordType::kCommit && action.rank == 0) ++result_.commits;
    if (action.rank == 0) {
      RankActions out;
      checks_->Read(0, action.record);
      const absl::Status status = processes_[0].machine->OnRecord(std::move(action.record), now_, out);
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
  auto due = [&](Link& link) { return !link.parcels.empty() && link.parcels.front().arrival <= now_; };
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
      const absl::Status status = processes_[rank].machine->OnRecord(std::move(parcel.record), now_, out);
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
      std::fprintf(stderr, "%9ld rank %u sends %s call %lu kind %u epoch %u\n", static_cast<long>(now_ / kMicro), rank,
                   RecordTypeName(record->type).c_str(), static_cast<unsigned long>(record->call), record->kind, record->epoch);
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

// ---- The user's program --------------------------------------------------------------------------------------------

CallSpec Simulation::MakeSpec(uint32_t rank, const Plan& plan, bool final) {
  Process& process = processes_[rank];
  CallSpec spec;
  spec.frame = plan.frame;
  spec.restore = plan.restore;
  spec.digest = {plan.layout, 77u + (plan.frame ? 1u : 0u) + (plan.restore ? 2u : 0u)};
  spec.soft_digest = {random_.Chance(0.1) ? 2u : 1u, 0};
  if (plan.frame) spec.payload = std::make_shared<const std::string>(8, static_cast<char>(1 + rank));
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
  if (faults_.misuse && !plan.frame && !plan.restore && random_.Chance(0.1)) spec.unchecked = !spec.unchecked;
  if (faults_.trusted && !spec.frame && !spec.restore && !spec.unchecked) {
    spec.trusted = std::find(process.agreed_layouts.begin(), process.agreed_layouts.end(), spec.digest.lo) != process.agreed_layouts.end();
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
    info.frame = spec.frame;
    info.restore = spec.restore;
    info.trusted = spec.trusted;
    info.unchecked = spec.unchecked && !spec.frame && !spec.restore;
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
      std::fprintf(stderr, "%9ld rank %u issues %lu frame %d restore %d trusted %d unchecked %d deadline %ld\n",
                   static_cast<long>(now_ / kMicro), rank, static_cast<unsigned long>(call), spec.frame, spec.restore, spec.trusted,
                   spec.unchecked, static_cast<long>(spec.deadline / kMicro));
    }
    process.machine->Issue(std::move(spec), now_, out);
    if (!final && faults_.interrupts && random_.Chance(0.12)) At(now_ + random_.Time(0, 2 * kMillisecond), EventType::kInterrupt, rank, call);
  }
  Do(rank, out);
  At(now_ + random_.Time(0, process.slow), EventType::kIssue, rank);
}

void Simulation::Ended(uint32_t rank, const RankAction& action) {
  Process& process = processes_[rank];
  const Outcome& outcome = action.outcome;
  if (options_.trace) {
    std::fprintf(stderr, "%9ld rank %u ended %lu kind %d tree %d unknown %d: %s\n", static_cast<long>(now_ / kMicro), rank,
                 static_cast<unsigned long>(action.call), static_cast<int>(outcome.kind), static_cast<int>(outcome.tree),
                 outcome.outcome_unknown, outcome.text.c_str());
  }
  // An answer that lies unread while the rank says that none came.
  if (outcome.kind == OutcomeKind::kDoubt && process.open && rank != 0) {
    for (const Parcel& parcel : to_rank_[rank].parcels) {
      if (parcel.arrival > now_) break;
      if (!parcel.hang_up && (parcel.record.call == action.call || parcel.record.type == RecordType::kAbort)) {
        Violate(absl::StrCat("rank ", rank, " is in doubt of call ", action.call, " while its answer waits in the socket (9)"));
      }
    }
  }
  checks_->Ended(rank, action.call, action.epoch, outcome, now_, process.frozen_total, process.machine->epoch());
  switch (outcome.kind) {
    case OutcomeKind::kOk: ++result_.ok; break;
    case OutcomeKind::kDoubt: ++result_.doubts; break;
    case OutcomeKind::kTold: ++result_.told; break;
    case OutcomeKind::kMismatch: ++result_.mismatches; break;
    case OutcomeKind::kPeerRefused: ++result_.refused; break;
    case OutcomeKind::kLost: ++result_.lost; break;
    case OutcomeKind::kDeadline:
    case OutcomeKind::kGivenUp:
    case OutcomeKind::kInterrupted: ++result_.withdrawn; break;
    case OutcomeKind::kDataFailed: break;
  }
  if (outcome.ok()) process.agreed_layouts.push_back(checks_->call(rank, action.call).digest.lo);
  if (process.blocked) {
    process.blocked = false;
    // A user who was told that rank 0 does not answer may well pause.
    const bool pause = outcome.kind == OutcomeKind::kDoubt && random_.Chance(0.5);
    At(now_ + random_.Time(0, pause ? 4 * kSecond : process.slow), EventType::kIssue, rank);
  }
  if (process.finals && process.next_call == calls_ + kFinalCalls && faults_.leave && process.machine->in_flight() == 0) {
    At(now_ + (random_.Chance(0.5) ? 0 : random_.Time(0, 20 * kMillisecond)), EventType::kLeave, rank);
  }
}

// ---- The data path -------------------------------------------------------------------------------------------------

void Simulation::Granted(uint32_t rank, const RankAction& action) {
  Process& process = processes_[rank];
  const uint32_t epoch = action.epoch;
  if (exchanges_.size() <= epoch) exchanges_.resize(epoch + 1);
  for (Process& each : processes_) {
    if (each.stopped.size() <= epoch) each.stopped.resize(epoch + 1, false), each.aborted.resize(epoch + 1, false);
  }
  if (process.stopped[epoch]) Violate(absl::StrCat("rank ", rank, " enqueues call ", action.call, " after a failure of its epoch (8)"));
  if (process.aborted[epoch]) Violate(absl::StrCat("rank ", rank, " enqueues call ", action.call, " in a dead context (8)"));
  checks_->Granted(rank, action.call, epoch);
  Exchange& exchange = exchanges_[epoch][action.call];
  if (exchange.entered.empty()) exchange.entered.resize(size_, false);
  if (exchange.entered[rank]) Violate(absl::StrCat("rank ", rank, " was granted call ", action.call, " twice"));
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
    if (each.stopped.size() <= epoch) each.stopped.resize(epoch + 1, false), each.aborted.resize(epoch + 1, false);
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
        if (process.stopped.size() <= action.epoch) process.stopped.resize(action.epoch + 1, false), process.aborted.resize(action.epoch + 1, false);
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

// ---- Events --------------------------------------------------------------------------------------------------------

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
      process.machine->Withdraw(event.call, random_.Chance(0.5) ? WithdrawKind::kInterrupt : WithdrawKind::kCancel, now_, out);
      break;
    case EventType::kDataDone:
      if (process.aborted[event.epoch]) break;
      checks_->DataDone(event.rank, event.call);
      process.machine->OnDataDone(event.call, now_, out);
      break;
    case EventType::kDataError:
      process.machine->OnDataFailed(event.call, FailKind::kError, "the data path failed", "", now_, out);
      // Rank 0 stands still just when it should hear of it.
      if (faults_.freezes && random_.Chance(0.3)) At(now_ + random_.Time(0, 100 * kMicro), EventType::kFreeze, 0);
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
      SteadyNanos time = random_.Chance(0.4) ? random_.Time(0, 30 * kMillisecond) : random_.Time(0, 4 * kSecond);
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
      for (uint32_t rank = 0; rank < size_; ++rank) At(now_ + random_.Time(0, 100 * kMicro), EventType::kDataDone, rank, event.call, event.epoch);
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

bool Simulation::AllIdle() const {
  for (const Process& process : processes_) {
    if (!process.alive) continue;
    if (process.next_call < calls_ || process.machine->in_flight() != 0) return false;
  }
  return true;
}

void Simulation::MaybeStartFinals() {
  if (finals_started_ || !AllIdle()) return;
  finals_started_ = true;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    At(now_ + 20 * kSecond + random_.Time(0, 5 * kMillisecond), EventType::kIssue, rank, kBeginFinals);
  }
}

void Simulation::CheckEnd() {
  for (uint32_t rank = 0; rank < size_; ++rank) {
    Process& process = processes_[rank];
    if (!process.alive) continue;
    if (process.next_call != calls_ + kFinalCalls) Violate(absl::StrCat("rank ", rank, " hangs after ", process.next_call, " calls"));
    if (process.machine->in_flight() != 0) Violate(absl::StrCat("rank ", rank, " has calls that never end"));
    if (dead_.empty() && process.machine->in_doubt()) Violate(absl::StrCat("rank ", rank, " stays in doubt"));
    for (int i = 2; i < kFinalCalls && result_.violation.empty(); ++i) {
      const uint64_t number = static_cast<uint64_t>(calls_ + i + 1);
      const Checks::Call& call = checks_->call(rank, number);
      if (dead_.empty()) {
        if (!call.ended || call.kind != OutcomeKind::kOk) {
          Violate(absl::StrCat("rank ", rank, ": last call ", number, " is not OK: ", call.text));
        }
      } else {
        const bool named = std::find(call.ranks.begin(), call.ranks.end(), dead_[0]) != call.ranks.end();
        const bool right = dead_unheard_ ? call.kind == OutcomeKind::kDeadline || call.kind == OutcomeKind::kGivenUp || call.kind == OutcomeKind::kLost
                                         : call.kind == OutcomeKind::kLost;
        if (!right || (!named && call.kind != OutcomeKind::kGivenUp)) {
          Violate(absl::StrCat("rank ", rank, ": last call ", number, " does not name dead rank ", dead_[0], ": ", call.text));
        }
      }
    }
  }
  if (dead_.empty() && !faults_.leave && coordinator_->table_size() != 0) {
    Violate(absl::StrCat("the coordinator keeps ", coordinator_->table_size(), " calls"));
  }
  checks_->AtEnd(dead_.empty() && !faults_.leave);
  if (!checks_->violation().empty()) Violate(checks_->violation());
}

SimulationResult Simulation::Run() {
  SetUp();
  result_.ranks = size_;
  uint64_t steps = 0;
  while (!events_.empty() && result_.violation.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    Handle(event);
    MaybeStartFinals();
    if (++steps > 1'000'000) Violate("a million events and no end");
  }
  if (result_.violation.empty()) CheckEnd();
  result_.retracted = checks_->retracted();
  return std::move(result_);
}

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace leafpack::protocol
