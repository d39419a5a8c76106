// Times the collectives that move trees, beside one c10d Gloo call per leaf (what tensordict does) and one
// call of all bytes, in the same run.
//   bazel run //benchmarks:collectives -- --ranks=2 --workloads=1000x4KiB,resnet50

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "benchmarks/rounds.h"
#include "benchmarks/workload.h"
#include "distributed/store/groups.h"
#include "distributed/tree/collectives.h"
#include "tensordict/flat_tree.h"

ABSL_FLAG(int, ranks, 2, "ranks on this machine");
ABSL_FLAG(int, rounds, 9, "timed rounds of each mode, interleaved");
ABSL_FLAG(std::vector<std::string>, workloads, std::vector<std::string>({"1000x4KiB"}),
          "grid points or models, see benchmarks/workload.h");

namespace leafpack {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(5);
constexpr int64_t kMostPerLeafBytes = int64_t{1} << 30;

struct Mode {
  std::string name;
  std::function<absl::Status()> run;
  std::vector<double> times = {};
};

absl::Status RunRank(const Workload& workload, const std::string& store_path, int rank) {
  const int ranks = absl::GetFlag(FLAGS_ranks);
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::FileStore>(store_path, ranks);
  const auto peers = MakeGlooGroup(store, "c10d", rank, ranks);
  const auto meeting = MakeGlooGroup(store, "meeting", rank, ranks);
  absl::StatusOr<Group> group =
      GroupFromStore(store, "leafpack", rank, ranks, {}, {.timeout = kDeadline});
  if (!group.ok()) return group.status();
  absl::StatusOr<TensorDict> tree = workload.MakeTree(rank + 1);
  if (!tree.ok()) return tree.status();
  std::vector<at::Tensor> leaves = Flatten(*tree).leaves;
  std::vector<at::Tensor> flat = {at::empty({(workload.bytes() + 3) / 4}, at::kFloat).fill_(1.0)};

  const auto all_gather = [&](const at::Tensor& leaf) {
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int r = 0; r < ranks; ++r) outputs[0].push_back(at::empty_like(leaf));
    std::vector<at::Tensor> inputs = {leaf};
    peers->allgather(outputs, inputs)->wait();
  };
  std::vector<Mode> modes;
  modes.push_back({"broadcast", [&] { return Broadcast(*tree, GroupRank(0), *group).status(); }});
  modes.push_back({"broadcast, new tree", [&] {
                     return Broadcast(rank == 0 ? std::optional<TreeArg>(*tree) : std::nullopt,
                                      GroupRank(0), *group)
                         .status();
                   }});
  modes.push_back({"  c10d, a call per leaf", [&] {
                     for (const at::Tensor& leaf : leaves) {
                       std::vector<at::Tensor> one = {leaf};
                       peers->broadcast(one)->wait();
                     }
                     return absl::OkStatus();
                   }});
  modes.push_back({"  c10d, one call", [&] {
                     peers->broadcast(flat)->wait();
                     return absl::OkStatus();
                   }});
  modes.push_back({"all_gather", [&] { return AllGather(*tree, *group).status(); }});
  modes.push_back({"  c10d, a call per leaf", [&] {
                     for (const at::Tensor& leaf : leaves) all_gather(leaf);
                     return absl::OkStatus();
                   }});
  modes.push_back({"  c10d, one call", [&] {
                     all_gather(flat[0]);
                     return absl::OkStatus();
                   }});
  modes.push_back({"scatter", [&] {
                     std::vector<TreeArg> trees;
                     if (rank == 0) trees.assign(static_cast<size_t>(ranks), TreeArg(*tree));
                     return Scatter(*tree, trees, GroupRank(0), *group).status();
                   }});
  modes.push_back({"  c10d, a call per leaf", [&] {
                     for (const at::Tensor& leaf : leaves) {
                       std::vector<at::Tensor> outputs = {leaf};
                       std::vector<std::vector<at::Tensor>> inputs;
                       if (rank == 0) {
                         inputs.emplace_back();
                         for (int r = 0; r < ranks; ++r) inputs[0].push_back(leaf);
                       }
                       peers->scatter(outputs, inputs)->wait();
                     }
                     return absl::OkStatus();
                   }});
  modes.push_back({"gather_and_stack",
                   [&] { return GatherAndStack(*tree, GroupRank(0), *group).status(); }});
  modes.push_back({"all_to_all", [&] {
                     return AllToAll(std::vector<TreeArg>(static_cast<size_t>(ranks), *tree), *group)
                         .status();
                   }});

  for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {  // one round to warm up
    for (const size_t i : OrderOfRound(modes.size(), round)) {
      Mode& mode = modes[i];
      meeting->barrier()->wait();
      const double start = Now();
      if (absl::Status status = mode.run(); !status.ok()) return status;
      meeting->barrier()->wait();
      if (round >= 0) mode.times.push_back(Now() - start);
    }
  }
  if (rank == 0) {
    std::printf("%s: %zu leaves, %.3f MB, %d ranks\n", workload.name.c_str(), leaves.size(),
                static_cast<double>(workload.bytes()) / 1e6, ranks);
    for (const Mode& mode : modes) {
      std::printf("  %-26s %10.3f ms  (least %10.3f)\n", mode.name.c_str(),
                  Median(mode.times) * 1e3,
                  *std::min_element(mode.times.begin(), mode.times.end()) * 1e3);
    }
    std::fflush(stdout);
  }
  return group->Shutdown(absl::Seconds(30));
}

bool RunWorkload(const std::string& name) {
  absl::StatusOr<Workload> workload = FindWorkload(name);
  if (!workload.ok() || workload->bytes() > kMostPerLeafBytes) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), workload.status().ToString().c_str());
    return false;
  }
  return RunForkedRanks(absl::GetFlag(FLAGS_ranks),
                        [&](const std::string& store_path, int rank) {
                          return RunRank(*workload, store_path, rank);
                        })
      .ok();
}

}  // namespace
}  // namespace leafpack

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times the collectives that move trees.");
  absl::ParseCommandLine(argc, argv);
  bool ok = true;
  for (const std::string& name : absl::GetFlag(FLAGS_workloads)) {
    ok = leafpack::RunWorkload(name) && ok;
  }
  return ok ? 0 : 1;
}
