// How long the smallest agreement takes over the channel's transport: each rank posts a record, rank 0
// answers with one of the same size when all have. Prints medians and tails by ranks and kind of socket.
//
//   bazel run -c opt //distributed/core/channel:channel_benchmark [rounds]
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

#include "distributed/core/channel/channel_testutil.h"
#include "distributed/core/channel/star_testutil.h"

namespace leafpack {
namespace {

// `rounds` agreements of rank 0, in microseconds, sorted.
void Measure(int size, bool tcp, size_t bytes, int rounds) {
  std::string folder = "/tmp/leafpack-channelXXXXXX";
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  const std::vector<int> statuses = RunRanks(size, [&](int rank) {
    ConnectorOptions options;
    options.rank = rank;
    options.size = size;
    options.library_version = "1";
    options.loopback_only = true;
    options.use_unix = !tcp;
    Star star(NewDirectoryStore(folder), options, bytes);
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      if (!star.Agree(absl::Now() + absl::Seconds(30)).ok()) _exit(1);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      if (round > rounds / 10) times.push_back(took.count());
    }
    if (rank != size - 1) return;
    std::sort(times.begin(), times.end());
    std::printf("%d ranks, %s, %6zu bytes: median %7.1f us, p90 %8.1f, p99 %8.1f, longest pause %u\n", size,
                tcp ? "tcp " : "unix", bytes, times[times.size() / 2], times[times.size() * 9 / 10],
                times[times.size() * 99 / 100], star.waiter().brake().pause());
  });
  for (int status : statuses) {
    if (status != 0) std::printf("a rank failed with status %d\n", status);
  }
  unlink((folder + "/channel").c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace leafpack

int main(int argc, char** argv) {
  int rounds = 20000;
  if (argc > 1 && !absl::SimpleAtoi(argv[1], &rounds)) return 2;
  for (size_t bytes : {size_t{56}, size_t{4} << 10, size_t{64} << 10}) {
    for (int size : {2, 3, 4}) {
      for (bool tcp : {false, true}) leafpack::Measure(size, tcp, bytes, rounds);
    }
  }
}
