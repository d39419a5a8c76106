#include "distributed/core/protocol/simulator.h"

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

void Simulation::Violate(const std::string& text) {
  if (result_.violation.empty())
    result_.violation = absl::StrCat("seed ", options_.seed, ", at ", now_ / kMicro, " us: ", text);
}

void Simulation::At(SteadyNanos time, EventType type, uint32_t rank, uint64_t call,
                    uint32_t epoch) {
  events_.push(Event{std::max(time, now_), ++order_, type, rank, epoch, call});
}

void Simulation::SetUp() {
  size_ = 2 + static_cast<uint32_t>(random_.Below(4));
  calm_ = random_.Chance(0.05);
  auto with = [&](double p) { return !calm_ && random_.Chance(p); };
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
    plan.frame = kind < 6;
    plan.open = kind == 6 || kind == 7 || kind == 15;
    plan.restore = kind >= 15;
    plan.layout = 1 + random_.Below(3);
    plan.unchecked = faults_.unchecked && !plan.frame && !plan.open && !plan.restore && random_.Chance(0.5);
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
        // Open calls have payloads of other sizes, which are strung together.
        if (payloads[0].size() != 8) return Checks::Joined(payloads);
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
    process.machine = std::make_unique<RankMachine>(
        RankMachine::Options{rank, size_, nullptr, options_.mutation});
    process.window = async ? 1 + random_.Below(6) : 1;
    process.slow = random_.Chance(0.2) && !calm_ ? random_.Time(0, 20 * kMillisecond) : 200 * kMicro;
    process.open_at = random_.Time(0, 300 * kMicro);
    if (faults_.late_open && random_.Chance(0.5))
      process.open_at = random_.Time(0, 400 * kMillisecond);
    if (rank == 0) process.open_at = 0;
    At(process.open_at, EventType::kOpen, rank);
    At(random_.Time(0, 500 * kMicro), EventType::kIssue, rank);
    if (faults_.freezes && random_.Chance(0.5)) {
      const int freezes = 1 + static_cast<int>(random_.Below(3));
      for (int i = 0; i < freezes; ++i)
        At(random_.Time(0, random_.Chance(0.7) ? 20 * kMillisecond : 3 * kSecond),
           EventType::kFreeze, rank);
    }
  }
  if (faults_.kills) {
    const auto rank = static_cast<uint32_t>(random_.Below(size_));
    At(random_.Time(0, random_.Chance(0.7) ? 15 * kMillisecond : 2 * kSecond), EventType::kKill,
       rank);
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
    At(now_ + 20 * kSecond + random_.Time(0, 5 * kMillisecond), EventType::kIssue, rank,
       kBeginFinals);
  }
}

void Simulation::CheckEnd() {
  if (calm_ && result_.ok != result_.calls) {
    Violate(absl::StrCat("without a fault ", result_.calls - result_.ok, " calls are not OK"));
  }
  for (uint32_t rank = 0; rank < size_; ++rank) {
    Process& process = processes_[rank];
    if (!process.alive) continue;
    if (process.next_call != calls_ + kFinalCalls)
      Violate(absl::StrCat("rank ", rank, " hangs after ", process.next_call, " calls"));
    if (process.machine->in_flight() != 0)
      Violate(absl::StrCat("rank ", rank, " has calls that never end"));
    if (dead_.empty() && process.machine->in_doubt())
      Violate(absl::StrCat("rank ", rank, " stays in doubt"));
    for (int i = 2; i < kFinalCalls && result_.violation.empty(); ++i) {
      const uint64_t number = static_cast<uint64_t>(calls_ + i + 1);
      const Checks::Call& call = checks_->call(rank, number);
      if (dead_.empty()) {
        if (!call.ended || call.kind != OutcomeKind::kOk) {
          Violate(absl::StrCat("rank ", rank, ": last call ", number, " is not OK: ", call.text));
        }
      } else {
        const bool named =
            std::find(call.ranks.begin(), call.ranks.end(), dead_[0]) != call.ranks.end();
        bool right = named && call.kind == OutcomeKind::kLost;
        // Nobody heard of a death before the connection: deadlines speak, and an answer may be late.
        if (dead_unheard_) {
          right = right || call.kind == OutcomeKind::kGivenUp || call.kind == OutcomeKind::kDoubt ||
                  (named && call.kind == OutcomeKind::kDeadline);
        }
        if (!right) {
          Violate(absl::StrCat("rank ", rank, ": last call ", number, " does not name dead rank ",
                               dead_[0], ": ", call.text));
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

}  // namespace leafpack::protocol::simulation

namespace leafpack::protocol {

SimulationResult Simulate(const SimulationOptions& options) {
  return simulation::Simulation(options).Run();
}

}  // namespace leafpack::protocol
