// How long an agreement and a frame take between forked processes on this host, next to a bare
// ping-pong over a socket pair in the same run, and what of it the flight recorder takes. Prints medians
// in microseconds as rank 0 sees them.
//
//   agreement_benchmark [calls per round, default 300]
//
// Rounds of the kinds are interleaved, so that a busy machine troubles all of them alike.
#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/core/channel/understudy.h"
#include "distributed/core/engine.h"
#include "distributed/core/flight/recorder.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/ranks.h"

namespace leafpack {
namespace {

constexpr int kRounds = 10;
constexpr int kWarmUp = 200;

// One byte there and back; reads spin and yield as the engine's callers do, but without end.
void Exchange(int fd, bool first) {
  char byte = 1;
  const auto send_byte = [&] { CHECK_EQ(write(fd, &byte, 1), 1); };
  const auto receive_byte = [&] {
    while (recv(fd, &byte, 1, MSG_DONTWAIT) != 1) {
      CHECK(errno == EAGAIN || errno == EWOULDBLOCK);
      sched_yield();
    }
  };
  if (first) {
    send_byte();
    receive_byte();
  } else {
    receive_byte();
    send_byte();
  }
}

double Median(std::vector<double>& values) {
  CHECK(!values.empty());
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void Agree(Group& group) {
  absl::StatusOr<std::shared_ptr<Call>> call = group.engine().Post(testing::MakeSpec({}));
  CHECK_OK(call.status());
  CHECK_OK((*call)->AwaitDecision());
  CHECK_OK((*call)->FinishData(absl::OkStatus(), {}));
}

int RunRank(int rank, int size, int calls, const std::string& file, int pair) {
  Group group = testing::MakeFileGroup(file, rank, size);
  const std::vector<size_t> sizes = {64, 4 << 10, 16 << 10, 64 << 10};
  std::vector<double> ping, agree, agree_off;
  std::vector<std::vector<double>> frames(sizes.size());
  const auto timed = [&](std::vector<double>& into, const auto& body) {
    const int64_t start = absl::GetCurrentTimeNanos();
    body();
    into.push_back(static_cast<double>(absl::GetCurrentTimeNanos() - start) / 1e3);
  };
  for (int i = 0; i < kWarmUp; ++i) Agree(group);
  const uint64_t wakeups = Understudy::Get().wakeups();
  for (int round = 0; round < kRounds; ++round) {
    if (rank < 2) {
      for (int i = 0; i < calls; ++i) timed(ping, [&] { Exchange(pair, rank == 0); });
    }
    Agree(group);
    for (int i = 0; i < calls; ++i) {
      // On all ranks alike, so call by call.
      FlightRecorder::SetEnabled(true);
      timed(agree, [&] { Agree(group); });
      FlightRecorder::SetEnabled(false);
      timed(agree_off, [&] { Agree(group); });
    }
    FlightRecorder::SetEnabled(true);
    for (size_t s = 0; s < sizes.size(); ++s) {
      if (!FitsInFrame(static_cast<int64_t>(sizes[s]), size)) continue;
      std::vector<float> values(sizes[s] / sizeof(float), 1);
      for (int i = 0; i < calls; ++i) {
        timed(frames[s], [&] { CHECK_OK(testing::SumFrame(group, values)); });
        std::fill(values.begin(), values.end(), 1.0f);
      }
    }
  }
  if (rank == 0) {
    const double base = Median(ping);
    std::printf("%d ranks, median of %d\n", size, kRounds * calls);
    std::printf("  %-24s %8.1f us\n", "socket pair ping-pong", base);
    const double agreement = Median(agree);
    std::printf("  %-24s %8.1f us   x %.2f\n", "agreement", agreement, agreement / base);
    const double unrecorded = Median(agree_off);
    std::printf("  %-24s %8.1f us   x %.3f with it\n", "  no flight recorder", unrecorded,
                agreement / unrecorded);
    for (size_t s = 0; s < sizes.size(); ++s) {
      if (frames[s].empty()) continue;
      const double frame = Median(frames[s]);
      std::printf("  %-24s %8.1f us   x %.2f\n",
                  absl::StrCat("frame of ", sizes[s], " bytes").c_str(), frame, frame / base);
    }
    std::printf("  understudy woken %llu times\n",
                static_cast<unsigned long long>(Understudy::Get().wakeups() - wakeups));
  }
  CHECK_OK(group.Shutdown(absl::Seconds(5)));
  return 0;
}

// One entry of the flight recorder, from its begin to its end, in nanoseconds of CPU time.
double FlightEntryNanos() {
  constexpr int kEntries = 200000;
  FlightRecorder recorder({.group = "g", .global_ranks = {0}});
  const std::clock_t start = std::clock();
  for (int i = 1; i <= kEntries; ++i) {
    const FlightRecorder::Ticket ticket = recorder.Begin(
        {.kind = "all_reduce", .name = "grads", .number = static_cast<uint64_t>(i), .digest = 1}, i);
    recorder.Advance(ticket, FlightState::kAgreed, /*epoch=*/0, i);
    recorder.Advance(ticket, FlightState::kInData, i);
    recorder.EndWith(ticket, /*ok=*/true, {}, i);
  }
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC * 1e9 / kEntries;
}

int Main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 300;
  if (calls <= 0) {
    std::fprintf(stderr, "usage: %s [calls per round]\n", argv[0]);
    return 2;
  }
  std::vector<double> entries;
  for (int i = 0; i < kRounds; ++i) entries.push_back(FlightEntryNanos());
  std::printf("flight recorder: %.0f ns of CPU an entry\n", Median(entries));
  std::fflush(stdout);
  for (int size : {2, 4}) {
    testing::TempDir dir;
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const std::vector<int> codes = testing::OnProcesses(size, [&](int rank) {
      return RunRank(rank, size, calls, dir.path() + "/store", pair[rank == 0 ? 0 : 1]);
    });
    close(pair[0]);
    close(pair[1]);
    for (int code : codes) {
      if (code != 0) return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace leafpack

int main(int argc, char** argv) { return leafpack::Main(argc, argv); }
