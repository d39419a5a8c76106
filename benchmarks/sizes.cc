// bazel run //benchmarks:sizes -- --ranks=2
//
// One float32 leaf of 64 B to 64 MiB, summed over local ranks by call after call, as MPI's benchmarks do:
// leafpack over shared memory and over Gloo, and c10d's flat call over Gloo. benchmarks/mpich/compare.py sets
// them beside MPICH.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "benchmarks/rounds.h"
#include "distributed/store/groups.h"
#include "distributed/tree/all_reduce.h"
#include "tensordict/tensor_dict.h"

ABSL_FLAG(int, ranks, 2, "local ranks");
ABSL_FLAG(int, rounds, 9, "rounds; every mode runs once in each");
ABSL_FLAG(int64_t, least, 64, "bytes of the smallest leaf; each next one has four times as many");
ABSL_FLAG(int64_t, most, int64_t{64} << 20, "bytes of the largest leaf");

namespace leafpack {
namespace {

// Calls in a row, so that what a call takes is far above what a clock and the ranks' skew take.
int CallsFor(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>((int64_t{4} << 20) / bytes, 2, 500));
}

struct Mode {
  const char* name;
  std::function<absl::Status()> run;
  std::vector<double> times = {};
};

absl::Status RunRank(const std::string& store_path, int rank, int ranks) {
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::FileStore>(store_path, ranks);
  const auto peers = MakeGlooGroup(store, "c10d", rank, ranks);
  const auto meeting = MakeGlooGroup(store, "meeting", rank, ranks);
  GroupOptions options;
  absl::StatusOr<Group> gloo = GroupFromStore(store, "gloo", rank, ranks, {}, options);
  if (!gloo.ok()) return gloo.status();
  options.backend = "shm";
  absl::StatusOr<Group> shm = GroupFromStore(store, "shm", rank, ranks, {}, options);
  if (!shm.ok()) return shm.status();
  for (int64_t bytes = absl::GetFlag(FLAGS_least); bytes <= absl::GetFlag(FLAGS_most); bytes *= 4) {
    // A sum of zeros stays what it is, however many calls there are.
    at::Tensor leaf = at::empty({bytes / 4}, at::kFloat);
    leaf.zero_();
    TensorDict tree;
    if (absl::Status status = tree.Set({"leaf"}, leaf); !status.ok()) return status;
    std::vector<Mode> modes;
    modes.push_back({"leafpack, shm", [&] { return AllReduce(tree, *shm); }});
    modes.push_back({"leafpack, gloo", [&] { return AllReduce(tree, *gloo); }});
    modes.push_back({"c10d, gloo", [&] {
                       std::vector<at::Tensor> tensors = {leaf};
                       peers->allreduce(tensors)->wait();
                       return absl::OkStatus();
                     }});
    const int calls = CallsFor(bytes);
    for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {  // one round to warm up
      for (const size_t i : OrderOfRound(modes.size(), round)) {
        meeting->barrier()->wait();
        const double start = Now();
        for (int call = 0; call < calls; ++call) {
          if (absl::Status status = modes[i].run(); !status.ok()) return status;
        }
        if (round >= 0) modes[i].times.push_back((Now() - start) / calls);
      }
    }
    for (const Mode& mode : modes) {
      if (rank > 0) continue;
      std::printf("{\"mode\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"median_s\": %.9g, \"least_s\": %.9g}\n",
                  mode.name, ranks, static_cast<long long>(bytes), Median(mode.times),
                  *std::min_element(mode.times.begin(), mode.times.end()));
      std::fflush(stdout);
    }
  }
  peers->barrier()->wait();
  for (const Group& group : {*gloo, *shm}) {
    if (absl::Status status = Group(group).Shutdown(absl::Seconds(30)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace leafpack

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("All-reduce of one leaf of each size, a JSON object a mode and size.");
  absl::ParseCommandLine(argc, argv);
  const int ranks = absl::GetFlag(FLAGS_ranks);
  if (ranks < 1) return 2;
  const absl::Status status = leafpack::RunForkedRanks(
      ranks, [&](const std::string& store_path, int rank) {
        return leafpack::RunRank(store_path, rank, ranks);
      });
  return status.ok() ? 0 : 1;
}
