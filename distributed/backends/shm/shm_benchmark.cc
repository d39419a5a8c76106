// bazel run //distributed/backends/shm:shm_benchmark -- [ranks] [rounds] [SLOTS:BYTES] [LEAVESxBYTES ...]
//
// The core alone (no group, no agreement) beside a local addition of as many bytes: float32 SUM between
// processes. Prints medians of rank 0 in microseconds, and the median of the ratios.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "absl/log/absl_check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "distributed/backends/shm/shared_memory.h"
#include "distributed/core/channel/c10d_key_value_store.h"

namespace leafpack::shm {
namespace {

double Now() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void Finish(absl::StatusOr<std::unique_ptr<DataWork>> work) {
  ABSL_CHECK_OK(work.status());
  while (true) {
    absl::StatusOr<bool> done = (*work)->WaitFor(absl::Milliseconds(50));
    ABSL_CHECK_OK(done.status());
    if (*done) return;
  }
}

__attribute__((noinline)) void Add(float* __restrict to, const float* __restrict from, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] += from[i];
}

void Run(int rank, int ranks, int rounds, const Geometry& geometry, const std::string& store_path,
         const std::vector<std::pair<size_t, size_t>>& workloads) {
  auto store = WrapC10dStore(c10::make_intrusive<c10d::FileStore>(store_path, ranks), "benchmark");
  auto peers = Peers::Connect(*store, rank, geometry, absl::Now() + absl::Minutes(1));
  ABSL_CHECK_OK(peers.status());
  const std::shared_ptr<SharedMemory> memory = SharedMemory::Make(*std::move(peers));
  for (const auto& [leaves, bytes] : workloads) {
    const size_t each = bytes / 4;
    std::vector<std::vector<float>> tree(leaves, std::vector<float>(each, 1.0f));
    std::vector<float> flat(leaves * each, 1.0f), other(leaves * each, 1.0f);
    std::vector<double> ours, local, ratios;
    const int repeats = static_cast<int>(std::max<size_t>(1, (64 << 10) / (leaves * bytes)));
    for (int round = -1; round < rounds; ++round) {
      float one = 1;
      LeafView barrier;
      barrier.data = &one;
      barrier.dtype = at::kFloat;
      Finish(memory->AllReduce({barrier}, ReduceOpKind::kSum));
      const double start = Now();
      for (int repeat = 0; repeat < repeats; ++repeat) {
        std::vector<LeafView> views(leaves);
        for (size_t i = 0; i < leaves; ++i) {
          views[i].data = tree[i].data();
          views[i].dtype = at::kFloat;
          views[i].sizes = {static_cast<int64_t>(each)};
          views[i].strides = {1};
        }
        Finish(memory->AllReduce(std::move(views), ReduceOpKind::kSum));
      }
      const double middle = Now();
      Finish(memory->AllReduce({barrier}, ReduceOpKind::kSum));
      const double restart = Now();
      for (int repeat = 0; repeat < repeats; ++repeat) Add(flat.data(), other.data(), flat.size());
      const double end = Now();
      for (std::vector<float>& leaf : tree) std::fill(leaf.begin(), leaf.end(), 1.0f);
      if (round < 0) continue;
      ours.push_back((middle - start) / repeats);
      local.push_back((end - restart) / repeats);
      ratios.push_back(ours.back() / local.back());
    }
    if (rank == 0) {
      printf("%6zu x %9zu bytes: %10.2f us (least %10.2f)  local addition %10.2f us  %6.2f x\n",
             leaves, bytes, Median(ours), *std::min_element(ours.begin(), ours.end()),
             Median(local), Median(ratios));
      fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace leafpack::shm

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 51;
  std::vector<std::pair<size_t, size_t>> workloads;
  leafpack::shm::Geometry geometry = leafpack::shm::DefaultGeometry(ranks);
  for (int i = 3; i < argc; ++i) {
    int slots;
    int64_t slot_bytes;
    const std::vector<std::string> form = absl::StrSplit(argv[i], ':');
    if (form.size() == 2 && absl::SimpleAtoi(form[0], &slots) &&
        absl::SimpleAtoi(form[1], &slot_bytes)) {
      geometry = leafpack::shm::Geometry(ranks, slots, slot_bytes, geometry.ring_bytes());
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(argv[i], 'x');
    auto& [leaves, bytes] = workloads.emplace_back();
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &leaves) ||
        !absl::SimpleAtoi(parts[1], &bytes)) {
      fprintf(stderr, "'%s' is not LEAVESxBYTES\n", argv[i]);
      return 2;
    }
  }
  if (workloads.empty()) {
    workloads = {{1, 4},       {1, 4 << 10},  {1, 64 << 10},  {1, 256 << 10}, {1, 1 << 20},
                 {1, 4 << 20}, {1, 16 << 20}, {1, 64 << 20}, {1000, 4 << 10}, {10000, 256}};
  }
  std::string folder = "/tmp/shm_benchmark_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      leafpack::shm::Run(rank, ranks, rounds, geometry, folder + "/store", workloads);
      _exit(0);
    }
    children.push_back(child);
  }
  bool ok = true;
  for (const pid_t child : children) {
    int status = 0;
    ok = waitpid(child, &status, 0) == child && status == 0 && ok;
  }
  unlink((folder + "/store").c_str());
  rmdir(folder.c_str());
  return ok ? 0 : 1;
}
