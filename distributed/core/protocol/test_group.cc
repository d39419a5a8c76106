#include "distributed/core/protocol/test_group.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace leafpack::protocol {

TestGroup::TestGroup(uint32_t ranks_in_group, bool open)
    : size(ranks_in_group), ranks(ranks_in_group) {
  coordinator = std::make_unique<CoordinatorMachine>(CoordinatorMachine::Options{
      size, nullptr,
      [this](uint64_t,
             absl::Span<const std::string_view> payloads) -> absl::StatusOr<FrameOutcome> {
        if (join) return join(payloads);
        std::string sum(payloads[0].size(), '\0');
        for (const std::string_view p : payloads) {
          for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<char>(sum[i] + p[i]);
        }
        return sum;
      },
      Mutation::kNone});
  for (uint32_t r = 0; r < size; ++r) {
    ranks[r].machine =
        std::make_unique<RankMachine>(RankMachine::Options{r, size, nullptr, Mutation::kNone});
    if (open) Open(r);
  }
}

void TestGroup::Open(uint32_t r) {
  RankActions out;
  coordinator->OnJoined(r);
  ranks[r].machine->OnChannelOpen(now, out);
  Take(r, out);
}

CallSpec TestGroup::Data(uint64_t digest, SteadyNanos deadline) {
  CallSpec spec;
  spec.digest = {digest, 0};
  spec.deadline = deadline;
  return spec;
}

CallSpec TestGroup::Frame(std::string bytes, SteadyNanos deadline) {
  CallSpec spec = Data(100, deadline);
  spec.frame = true;
  spec.payload = std::make_shared<const std::string>(std::move(bytes));
  return spec;
}

CallSpec TestGroup::OpenCall(std::optional<std::string> bytes, SteadyNanos deadline) {
  CallSpec spec = Data(300, deadline);
  spec.open = true;
  spec.frame = bytes.has_value();
  if (bytes) spec.payload = std::make_shared<const std::string>(*std::move(bytes));
  return spec;
}

CallSpec TestGroup::Restore(SteadyNanos deadline) {
  CallSpec spec = Data(200, deadline);
  spec.restore = true;
  return spec;
}

uint64_t TestGroup::Issue(uint32_t r, CallSpec spec) {
  RankActions out;
  const uint64_t call = ranks[r].machine->Issue(std::move(spec), now, out);
  Take(r, out);
  Pump();
  return call;
}

void TestGroup::IssueAll(const CallSpec& spec) {
  for (uint32_t r = 0; r < size; ++r) Issue(r, spec);
}

void TestGroup::Refuse(uint32_t r, std::string_view reason) {
  RankActions out;
  ranks[r].machine->IssueRefusal(reason, now, out);
  Take(r, out);
  Pump();
}

void TestGroup::Withdraw(uint32_t r, uint64_t call, WithdrawKind kind) {
  RankActions out;
  ranks[r].machine->Withdraw(call, kind, now, out);
  Take(r, out);
  Pump();
}

void TestGroup::DataDone(uint32_t r, uint64_t call) {
  RankActions out;
  ranks[r].machine->OnDataDone(call, now, out);
  Take(r, out);
  Pump();
}

void TestGroup::DataFailed(uint32_t r, uint64_t call, FailKind kind) {
  RankActions out;
  ranks[r].machine->OnDataFailed(call, kind, "connection reset", "a", now, out);
  Take(r, out);
  Pump();
}

void TestGroup::Leave(uint32_t r) {
  RankActions out;
  ranks[r].machine->Leave("", now, out);
  Take(r, out);
  Pump();
}

void TestGroup::Kill(uint32_t r) {
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

void TestGroup::Inject(uint32_t r, Record record) {
  CoordinatorActions out;
  coordinator->OnRecord(r, std::move(record), now, out);
  Route(out);
  Pump();
}

void TestGroup::Pump() {
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

void TestGroup::Advance(SteadyNanos time) {
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

const Outcome& TestGroup::End(uint32_t r, uint64_t call) {
  static const Outcome none{OutcomeKind::kDoubt,
                            absl::StatusCode::kUnknown,
                            TreeState::kPartial,
                            false,
                            {},
                            "HAS NOT ENDED",
                            "",
                            nullptr};
  const auto at = ranks[r].ended.find(call);
  return at == ranks[r].ended.end() ? none : at->second;
}

bool TestGroup::Granted(uint32_t r, uint64_t call) const {
  return std::find(ranks[r].granted.begin(), ranks[r].granted.end(), call) !=
         ranks[r].granted.end();
}

void TestGroup::ExpectUsable() {
  std::vector<uint64_t> calls;
  for (uint32_t r = 0; r < size; ++r) calls.push_back(Issue(r, Frame()));
  for (uint32_t r = 0; r < size; ++r) {
    EXPECT_EQ(calls[r], calls[0]);
    EXPECT_EQ(End(r, calls[r]).kind, OutcomeKind::kOk)
        << "rank " << r << ": " << End(r, calls[r]).text;
  }
  EXPECT_EQ(coordinator->table_size(), 0u);
}

void TestGroup::Take(uint32_t r, RankActions& out) {
  Rank& rank = ranks[r];
  for (RankAction& action : out) {
    switch (action.type) {
      case RankAction::Type::kEnded:
        EXPECT_FALSE(rank.ended.contains(action.call))
            << "rank " << r << " ends call " << action.call << " twice";
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

void TestGroup::Route(CoordinatorActions& out) {
  for (CoordinatorAction& action : out) {
    if (action.type == CoordinatorAction::Type::kDrop) {
      dropped[action.rank] = action.reason;
    } else {
      ranks[action.rank].inbox.push_back(std::move(action.record));
    }
  }
  out.clear();
}

}  // namespace leafpack::protocol
