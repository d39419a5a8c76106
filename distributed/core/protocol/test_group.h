// A group of state machines for tests of single cases: records travel when the test pumps, clocks move when it says.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TEST_GROUP_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TEST_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distributed/core/protocol/coordinator_machine.h"
#include "distributed/core/protocol/manifest.h"
#include "distributed/core/protocol/rank_machine.h"
#include "gtest/gtest.h"

namespace leafpack::protocol {

class TestGroup {
 public:
  struct Rank {
    std::unique_ptr<RankMachine> machine;
    bool hold_out = false;  // its records stay in the machine
    bool hold_in = false;   // records for it stay on the way
    bool frozen = false;    // nothing of it runs
    std::deque<Record> inbox;
    std::map<uint64_t, Outcome> ended;
    std::vector<uint64_t> granted;
    std::vector<uint32_t> aborted;  // epochs
    std::vector<RecordType> sent;
    std::vector<Record> got;
    int stops = 0, resumes = 0;
    uint64_t wanted = 0;  // last call whose description was wanted
    absl::Status error;
  };

  explicit TestGroup(uint32_t ranks_in_group, bool open = true) : size(ranks_in_group), ranks(ranks_in_group) {
    coordinator = std::make_unique<CoordinatorMachine>(CoordinatorMachine::Options{
        size, nullptr,
        [](uint64_t, absl::Span<const std::string_view> payloads) -> absl::StatusOr<std::string> {
          std::string sum(payloads[0].size(), '\0');
          for (const std::string_view p : payloads) {
            for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<char>(sum[i] + p[i]);
          }
          return sum;
        },
        Mutation::kNone});
    for (uint32_t r = 0; r < size; ++r) {
      ranks[r].machine = std::make_unique<RankMachine>(RankMachine::Options{r, size, nullptr, Mutation::kNone});
      if (open) Open(r);
    }
  }

  void Open(uint32_t r) {
    RankActions out;
    coordinator->OnJoined(r);
    ranks[r].machine->OnChannelOpen(now, out);
    Take(r, out);
  }

  static CallSpec Data(uint64_t digest = 1, SteadyNanos deadline = kNever) {
    CallSpec spec;
    spec.digest = {digest, 0};
    spec.deadline = deadline;
    return spec;
  }
  static CallSpec Frame(std::string bytes = "\x01", SteadyNanos deadline = kNever) {
    CallSpec spec = Data(100, deadline);
    spec.frame = true;
    spec.payload = std::make_shared<const std::string>(std::move(bytes));
    return spec;
  }
  static CallSpec Restore(SteadyNanos deadline = kNever) {
    CallSpec spec = Data(200, deadline);
    spec.restore = true;
    return spec;
  }

  uint64_t Issue(uint32_t r, CallSpec spec) {
    RankActions out;
    const uint64_t call = ranks[r].machine->Issue(std::move(spec), now, out);
    Take(r, out);
    Pump();
    return call;
  }
  // On every rank that is not frozen, in order.
  void IssueAll(const CallSpec& spec) {
    for (uint32_t r = 0; r < size; ++r) Issue(r, spec);
  }
  void Refuse(uint32_t r, std::string_view reason = "bad dtype") {
    RankActions out;
    ranks[r].machine->IssueRefusal(reason, now, out);
    Take(r, out);
    Pump();
  }
  void Withdraw(uint32_t r, uint64_t call, WithdrawKind kind = WithdrawKind::kInterrupt) {
    RankActions out;
    ranks[r].machine->Withdraw(call, kind, now, out);
    Take(r, out);
    Pump();
  }
  void DataDone(uint32_t r, uint64_t call) {
    RankActions out;
    ranks[r].machine->OnDataDone(call, now, out);
    Take(r, out);
    Pump();
  }
  void DataFailed(uint32_t r, uint64_t call, FailKind kind = FailKind::kError) {
    RankActions out;
    ranks[r].machine->OnDataFailed(call, kind, "connection reset", "a", now, out);
    Take(r, out);
    Pump();
  }
  void Leave(uint32_t r) {
    RankActions out;
    ranks[r].machine->Leave("", now, out);
    Take(r, out);
    Pump();
  }
  // The rank dies: the coordinator reads the hang-up after what was sent.
  void Kill(uint32_t r) {
    ranks[r].frozen = true;
    ranks[r].machine->OnLinkLost("dead", now, scratch);
    scratch.clear();
    if (r == 0) {
      for (uint32_t peer = 1; peer < size; ++peer) {
        if (ranks[peer].frozen) continue;
        RankActions out;
        ranks[peer].machine->OnLinkLost("hang-up", now, out);
        Take(peer, out);
      }
    } else {
      CoordinatorActions out;
      coordinator->OnLost(r, LostKind::kHangUp, "hang-up", now, out);
      Route(out);
    }
    Pump();
  }
  // A record as from `r`, whatever its machine thinks.
  void Inject(uint32_t r, Record record) {
    CoordinatorActions out;
    coordinator->OnRecord(r, std::move(record), now, out);
    Route(out);
    Pump();
  }

  // Moves records until nothing moves.
  void Pump() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (uint32_t r = 0; r < size; ++r) {
        Rank& rank = ranks[r];
        while (!rank.frozen && !rank.hold_in && !rank.inbox.empty()) {
          Record record = std::move(rank.inbox.front());
          rank.inbox.pop_front();
          moved = true;
          rank.got.push_back(record);
          RankActions out;
          const absl::Status status = rank.machine->OnRecord(std::move(record), now, out);
          if (!status.ok()) rank.error = status;
          Take(r, out);
        }
        while (!rank.frozen && !rank.hold_out && rank.machine->HasOutgoing()) {
          std::optional<Record> record = rank.machine->TakeOutgoing();
          if (!record) break;
          moved = true;
          rank.sent.push_back(record->type);
          to_coordinator.emplace_back(r, *std::move(record));
        }
        while (!ranks[0].frozen && !to_coordinator.empty()) {
          auto [from, record] = std::move(to_coordinator.front());
          to_coordinator.pop_front();
          CoordinatorActions out;
          coordinator->OnRecord(from, std::move(record), now, out);
          Route(out);
        }
      }
    }
  }

  // Time passes; whoever is not frozen reads first, then looks at timers.
  void Advance(SteadyNanos time) {
    const SteadyNanos end = now + time;
    while (true) {
      Pump();
      SteadyNanos next = ranks[0].frozen ? kNever : coordinator->NextTimer();
      for (Rank& rank : ranks) {
        if (!rank.frozen) next = std::min(next, rank.machine->NextTimer());
      }
      if (next > end) break;
      now = std::max(now, next);
      if (!ranks[0].frozen) {
        CoordinatorActions out;
        coordinator->OnTick(now, out);
        Route(out);
        Pump();
      }
      for (uint32_t r = 0; r < size; ++r) {
        if (ranks[r].frozen) continue;
        RankActions out;
        ranks[r].machine->OnTick(now, out);
        Take(r, out);
      }
    }
    now = end;
  }

  const Outcome& End(uint32_t r, uint64_t call) {
    static const Outcome none{OutcomeKind::kDoubt, absl::StatusCode::kUnknown, TreeState::kPartial, false, {}, "HAS NOT ENDED", "", nullptr};
    const auto at = ranks[r].ended.find(call);
    return at == ranks[r].ended.end() ? none : at->second;
  }
  bool Ended(uint32_t r, uint64_t call) const { return ranks[r].ended.contains(call); }
  bool Granted(uint32_t r, uint64_t call) const {
    return std::find(ranks[r].granted.begin(), ranks[r].granted.end(), call) != ranks[r].granted.end();
  }
  // One frame call on all ranks must succeed: the group is usable.
  void ExpectUsable() {
    std::vector<uint64_t> calls;
    for (uint32_t r = 0; r < size; ++r) calls.push_back(Issue(r, Frame()));
    for (uint32_t r = 0; r < size; ++r) {
      EXPECT_EQ(calls[r], calls[0]);
      EXPECT_EQ(End(r, calls[r]).kind, OutcomeKind::kOk) << "rank " << r << ": " << End(r, calls[r]).text;
    }
    EXPECT_EQ(coordinator->table_size(), 0u);
  }

  void Take(uint32_t r, RankActions& out) {
    Rank& rank = ranks[r];
    for (RankAction& action : out) {
      switch (action.type) {
        case RankAction::Type::kEnded:
          EXPECT_FALSE(rank.ended.contains(action.call)) << "rank " << r << " ends call " << action.call << " twice";
          rank.ended[action.call] = std::move(action.outcome);
          break;
        case RankAction::Type::kGranted:
          rank.granted.push_back(action.call);
          break;
        case RankAction::Type::kStopEnqueue:
          ++(action.resume ? rank.resumes : rank.stops);
          break;
        case RankAction::Type::kAbortEpoch:
          rank.aborted.push_back(action.epoch);
          break;
        case RankAction::Type::kManifestWanted:
          rank.wanted = action.call;
          if (!manifests.empty()) rank.machine->ProvideManifest(action.call, manifests[r]);
          break;
        case RankAction::Type::kDecided:
          break;
      }
    }
    out.clear();
  }
  void Route(CoordinatorActions& out) {
    for (CoordinatorAction& action : out) {
      if (action.type == CoordinatorAction::Type::kDrop) {
        dropped[action.rank] = action.reason;
      } else {
        ranks[action.rank].inbox.push_back(std::move(action.record));
      }
    }
    out.clear();
  }

  const uint32_t size;
  SteadyNanos now = 1000;
  std::vector<Rank> ranks;
  std::unique_ptr<CoordinatorMachine> coordinator;
  std::vector<std::string> manifests;  // by rank; empty: nobody answers NEED
  std::map<uint32_t, std::string> dropped;
  std::deque<std::pair<uint32_t, Record>> to_coordinator;  // while rank 0 stands still
  RankActions scratch;
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_TEST_GROUP_H_
