// Random calls between ranks that are late, refuse, differ, are interrupted, fail and are stopped; then
// what each rank saw of each call is held against the promises. A failure prints the seed; set
// LEAFPACK_SOAK_SEED to run it again.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/engine.h"
#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/ranks.h"

namespace leafpack {
namespace {

using testing::CallArgs;
using testing::Faults;
using testing::RunData;

constexpr int kMaxRanks = 4;
constexpr int kCalls = 300;
constexpr int kLastCalls = 30;

// What a rank saw of one call.
enum class Saw : uint8_t { kNothing, kOk, kFailed, kUnknown, kRefused };
enum class Kind : uint8_t { kFrame, kData, kRestore };

struct Record {
  std::atomic<Saw> saw;
  std::atomic<bool> wrong_values;
  std::atomic<bool> touched;  // failed with the tree changed
  std::atomic<bool> late;     // ended long after its deadline
};
struct Board {
  Record records[kMaxRanks][kCalls];
  std::atomic<int> last_ok[kMaxRanks];  // last calls in a row, up to the end, that were fine
  std::atomic<int> through;
};

uint64_t BaseSeed() {
  const char* text = std::getenv("LEAFPACK_SOAK_SEED");
  return text == nullptr ? static_cast<uint64_t>(absl::GetCurrentTimeNanos())
                         : std::strtoull(text, nullptr, 10);
}

void RunRank(int rank, Group& group, uint64_t seed, Board& board) {
  // What all ranks know of call i comes from `shared`, what a rank does on its own from `own`.
  std::mt19937_64 shared(seed), own(seed * 31 + static_cast<uint64_t>(rank) + 1);
  const auto chance = [](std::mt19937_64& random, double p) {
    return std::uniform_real_distribution<double>()(random) < p;
  };
  const auto below = [](std::mt19937_64& random, int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
  };
  for (int i = 0; i < kCalls; ++i) {
    Record& record = board.records[rank][i];
    const double pick = std::uniform_real_distribution<double>()(shared);
    const Kind kind = pick < 0.8 ? Kind::kFrame : pick < 0.9 ? Kind::kData : Kind::kRestore;
    const bool short_deadline = chance(shared, 0.3);
    if (chance(own, 0.05)) absl::SleepFor(absl::Microseconds(below(own, 40'000)));
    CallArgs args;
    args.digest = chance(own, 0.01) ? 99 : 1;
    args.restore = kind == Kind::kRestore;
    args.timeout = short_deadline ? absl::Microseconds(50 + below(own, 100'000)) : absl::Seconds(20);
    const bool interrupt = chance(own, 0.01);
    if (interrupt) args.interrupt = [] { return true; };
    if (chance(own, 0.02)) {
      group.engine()
          .Refuse(CollectiveKind::kAllReduce, absl::InternalError("by chance"), absl::Now())
          .IgnoreError();
      record.saw = Saw::kRefused;
      continue;
    }
    if (kind != Kind::kFrame && chance(own, 0.05)) Faults(group).fail_next_op = true;
    const float mine = static_cast<float>(rank + i);
    std::vector<float> values = {mine, 1};
    const absl::Time start = absl::Now();
    absl::Status status;
    CallSpec spec =
        kind == Kind::kFrame ? testing::MakeFrame(values, args) : testing::MakeSpec(args);
    absl::StatusOr<std::shared_ptr<Call>> call = group.engine().Post(std::move(spec));
    status = call.status();
    if (status.ok() && kind == Kind::kFrame) {
      status = (*call)->AwaitDecision(args.interrupt);
      if (status.ok()) values = testing::FrameValues(**call);
    } else if (status.ok()) {
      status = RunData(**call, values, args);
    }
    Faults(group).fail_next_op = false;
    const int size = group.size();
    const float sum = static_cast<float>(size * i + size * (size - 1) / 2);
    if (status.ok()) {
      record.saw = Saw::kOk;
      record.wrong_values = values != std::vector<float>{sum, static_cast<float>(size)};
    } else {
      const ErrorDetails details = GetErrorDetails(status);
      record.saw = details.outcome_unknown ? Saw::kUnknown : Saw::kFailed;
      record.touched = !details.tree_unchanged;
      if (details.tree_unchanged) {
        record.wrong_values = values != std::vector<float>{mine, 1};
      }
      if (absl::IsUnavailable(status)) {
        std::fprintf(stderr, "rank %d call %d: %s\n", rank, i, status.ToString().c_str());
      }
    }
    record.late = absl::Now() - start > args.timeout + absl::Seconds(10);
  }
  int ok = 0;
  for (int i = 0; i < kLastCalls; ++i) {
    std::vector<float> values = {1};
    const absl::Status status = testing::SumFrame(group, values);
    ok = status.ok() && values[0] == static_cast<float>(group.size()) ? ok + 1 : 0;
    if (i + 1 == kLastCalls && !status.ok()) {
      std::fprintf(stderr, "rank %d, last call: %s\n", rank, status.ToString().c_str());
    }
  }
  board.last_ok[rank] = ok;
  ++board.through;
  testing::Eventually([&] { return board.through == group.size(); });
}

void CheckBoard(const Board& board, int size, uint64_t seed) {
  std::mt19937_64 shared(seed);
  for (int i = 0; i < kCalls; ++i) {
    const double pick = std::uniform_real_distribution<double>()(shared);
    std::uniform_real_distribution<double>()(shared);
    const bool all_or_nothing = pick < 0.8 || pick >= 0.9;
    int ok = 0, failed = 0, refused = 0;
    for (int r = 0; r < size; ++r) {
      const Record& record = board.records[r][i];
      const Saw saw = record.saw;
      ok += saw == Saw::kOk;
      failed += saw == Saw::kFailed;
      refused += saw == Saw::kRefused;
      EXPECT_NE(saw, Saw::kNothing) << "rank " << r << " call " << i;
      EXPECT_FALSE(record.wrong_values) << "rank " << r << " call " << i;
      EXPECT_FALSE(record.late) << "rank " << r << " call " << i;
      EXPECT_FALSE(all_or_nothing && record.touched) << "rank " << r << " call " << i;
    }
    EXPECT_TRUE(ok == 0 || refused == 0) << "call " << i << " succeeded though a rank refused it";
    if (all_or_nothing) {
      EXPECT_TRUE(ok == 0 || failed == 0)
          << "call " << i << " succeeded on " << ok << " ranks and failed on " << failed;
    }
  }
  for (int r = 0; r < size; ++r) EXPECT_GT(board.last_ok[r], 0) << "rank " << r;
}

class SoakTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SoakTest, ::testing::Values(2, 3, 4));

TEST_P(SoakTest, Processes) {
  const int size = GetParam();
  const uint64_t seed = BaseSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  testing::TempDir dir;
  Board& board = testing::Shared<Board>();
  const std::vector<int> codes = testing::OnProcesses(size, [&](int rank) {
    Group group = testing::MakeFileGroup(dir.path() + "/store", rank, size);
    RunRank(rank, group, seed, board);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(size), 0));
  CheckBoard(board, size, seed);
}

TEST_P(SoakTest, ProcessesThatAreStopped) {
  const int size = GetParam();
  const uint64_t seed = BaseSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  testing::TempDir dir;
  Board& board = testing::Shared<Board>();
  std::vector<pid_t> pids;
  for (int r = 0; r < size; ++r) {
    pids.push_back(testing::Fork([&, r] {
      Group group = testing::MakeFileGroup(dir.path() + "/store", r, size);
      RunRank(r, group, seed, board);
      return 0;
    }));
  }
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int i = 0; i < 6; ++i) {
    const pid_t pid = pids[static_cast<size_t>(below(size))];
    usleep(static_cast<useconds_t>(50'000 + below(200'000)));
    if (board.through > 0) break;
    kill(pid, SIGSTOP);
    usleep(static_cast<useconds_t>(below(1'600'000)));
    kill(pid, SIGCONT);
  }
  for (pid_t pid : pids) EXPECT_EQ(testing::Wait(pid), 0);
  CheckBoard(board, size, seed);
}

TEST_P(SoakTest, Threads) {
  const int size = GetParam();
  const uint64_t seed = BaseSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::vector<Group> groups = testing::MakeGroups(size);
  auto board = std::make_unique<Board>();
  testing::OnRanks(groups, [&](int rank, Group& group) { RunRank(rank, group, seed, *board); });
  CheckBoard(*board, size, seed);
}

}  // namespace
}  // namespace leafpack
