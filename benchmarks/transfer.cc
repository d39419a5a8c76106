// bazel run //benchmarks:transfer -- --workload=1000x4KiB,mobilenet-v2
//
// A tree goes from rank 0 to rank 1 and back, by leafpack and by c10d over Gloo (a send and a recv per
// leaf, as tensordict does it; and one flat tensor of the same bytes), in turns, on two processes. Prints
// the median of one way, and the median of the ratios to one message per leaf.

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
#include "benchmarks/workload.h"
#include "distributed/p2p/transfer.h"
#include "distributed/store/groups.h"
#include "tensordict/flat_tree.h"

ABSL_FLAG(std::vector<std::string>, workload,
          std::vector<std::string>({"1x64B", "1x1MiB", "1000x4KiB", "mobilenet-v2"}),
          "workloads: COUNTxSIZE such as 1000x4KiB, a model's name, or a file");
ABSL_FLAG(int, rounds, 21, "rounds; every mode runs once in each");

namespace leafpack {
namespace {

struct Mode {
  std::string name;
  std::function<absl::Status(bool send)> run;
  std::vector<double> times = {};
};

absl::Status RunRank(const Workload& workload, const std::string& store_path, int rank, int rounds) {
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::FileStore>(store_path, 2);
  const auto peers = MakeGlooGroup(store, "c10d", rank, 2);
  const auto meeting = MakeGlooGroup(store, "meeting", rank, 2);
  absl::StatusOr<Group> group = GroupFromStore(store, "leafpack", rank, 2);
  if (!group.ok()) return group.status();
  absl::StatusOr<TensorDict> tree = workload.MakeTree(rank + 1);
  if (!tree.ok()) return tree.status();
  std::vector<at::Tensor> leaves = Flatten(*tree).leaves;
  at::Tensor flat = at::empty({std::max<int64_t>(workload.bytes(), 1)}, at::kByte);
  const int other = 1 - rank;
  const auto by_c10d = [&](std::vector<at::Tensor>& tensors, bool send) {
    for (at::Tensor& tensor : tensors) {
      std::vector<at::Tensor> one = {tensor};
      (send ? peers->send(one, other, 0) : peers->recv(one, other, 0))->wait();
    }
    return absl::OkStatus();
  };
  std::vector<at::Tensor> whole = {flat};
  std::vector<Mode> modes;
  modes.push_back({"leafpack", [&](bool send) {
                     return send ? Send(*tree, GroupRank(other), *group)
                                 : Recv(*tree, GroupRank(other), *group).status();
                   }});
  modes.push_back({"c10d per leaf", [&](bool send) { return by_c10d(leaves, send); }});
  modes.push_back({"c10d flat", [&](bool send) { return by_c10d(whole, send); }});
  for (int round = -2; round < rounds; ++round) {  // two rounds to warm up
    for (const size_t i : OrderOfRound(modes.size(), round)) {
      Mode& mode = modes[i];
      meeting->barrier()->wait();
      const double start = Now();
      absl::Status status = mode.run(rank == 0);
      status.Update(mode.run(rank != 0));
      if (!status.ok()) return status;
      if (round >= 0) mode.times.push_back((Now() - start) / 2);
    }
  }
  for (const at::Tensor& leaf : leaves) {
    if (leaf.numel() > 0 && !leaf.eq(1).all().item<bool>()) {
      return absl::InternalError("a leaf does not hold what rank 0 sent");
    }
  }
  if (rank == 0) {
    std::printf("%s: %zu leaves, %lld bytes\n", workload.name.c_str(), leaves.size(),
                static_cast<long long>(workload.bytes()));
    for (const Mode& mode : modes) {
      std::vector<double> ratios;
      for (size_t i = 0; i < mode.times.size(); ++i) {
        ratios.push_back(mode.times[i] / modes[1].times[i]);
      }
      std::printf("  %-14s %10.1f us   %.3f x per leaf\n", mode.name.c_str(),
                  Median(mode.times) * 1e6, Median(ratios));
    }
    std::fflush(stdout);
  }
  peers->barrier()->wait();
  return group->Shutdown(absl::Seconds(30));
}

}  // namespace
}  // namespace leafpack

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Transfers of trees between two local ranks, beside c10d's.");
  absl::ParseCommandLine(argc, argv);
  for (const std::string& name : absl::GetFlag(FLAGS_workload)) {
    const absl::StatusOr<leafpack::Workload> workload = leafpack::FindWorkload(name);
    if (!workload.ok()) {
      std::fprintf(stderr, "%s\n", workload.status().ToString().c_str());
      return 2;
    }
    const absl::Status status =
        leafpack::RunForkedRanks(2, [&](const std::string& store_path, int rank) {
          return leafpack::RunRank(*workload, store_path, rank, absl::GetFlag(FLAGS_rounds));
        });
    if (!status.ok()) return 1;
  }
  return 0;
}
