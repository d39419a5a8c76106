// A simulated group while it runs: the state of the simulator, shared by the files that implement
// it.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATION_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "distributed/core/protocol/coordinator_machine.h"
#include "distributed/core/protocol/rank_machine.h"
#include "distributed/core/protocol/record.h"
#include "distributed/core/protocol/simulator.h"
#include "distributed/core/protocol/simulator_checks.h"
#include "distributed/core/protocol/types.h"

namespace leafpack::protocol::simulation {

inline constexpr SteadyNanos kMicro = 1000;
inline constexpr SteadyNanos kSecond = 1000 * kMillisecond;
// Calls at the end, long after the last fault; of these the last two must be right.
inline constexpr int kFinalCalls = 4;
inline constexpr uint64_t kBeginFinals = 1;

class SimulationRandom {
 public:
  explicit SimulationRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return Next() % n; }
  SteadyNanos Time(SteadyNanos from, SteadyNanos to) {
    return from + static_cast<SteadyNanos>(Below(static_cast<uint64_t>(to - from + 1)));
  }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) < p * 9007199254740992.0; }

 private:
  uint64_t state_;
};

// Which faults one run has.
struct Faults {
  bool deadlines, refusals, digests, interrupts, data_errors, freezes, kills, late_open, slow_links,
      trusted, unchecked, misuse, leave, lazy_manifests, slow_data;
};

// What the program does in one call; the same on all ranks but for the deviations.
struct Plan {
  bool frame = false;
  bool open = false;
  bool restore = false;
  bool unchecked = false;
  uint64_t layout = 0;
};

enum class EventType : uint8_t {
  kArrive,
  kTimer,
  kIssue,
  kInterrupt,
  kDataDone,
  kDataError,
  kExchange,
  kOpen,
  kFreeze,
  kThaw,
  kKill,
  kManifest,
  kLeave
};

struct Event {
  SteadyNanos time;
  uint64_t order;
  EventType type;
  uint32_t rank;
  uint32_t epoch;
  uint64_t call;
  friend bool operator>(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
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
  explicit Simulation(const SimulationOptions& options)
      : options_(options), random_(options.seed) {}
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
  SimulationRandom random_;
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
  bool calm_ = false;  // without any fault: every call must be OK
  bool finals_started_ = false;
  std::vector<uint32_t> dead_;
  bool dead_unheard_ = false;  // somebody died without the coordinator hearing of it
  SimulationResult result_;
};

}  // namespace leafpack::protocol::simulation

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATION_H_
