#include "benchmarks/all_reduce.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

#include "benchmarks/rounds.h"
#include "distributed/store/groups.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/share.h"
#include "tensordict/flat_tree.h"

namespace leafpack {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(5);

struct Mode {
  std::string name;
  std::function<absl::Status()> prepare;
  std::function<absl::Status()> run;
  std::vector<double> times = {};
  std::vector<AllReduceStats> stats = {};  // of leafpack's modes

  Mode(std::string n, std::function<absl::Status()> p, std::function<absl::Status()> r)
      : name(std::move(n)), prepare(std::move(p)), run(std::move(r)) {}
};

// One rank's part; rank 0 fills `result`.
absl::Status RunRank(const Workload& workload, const AllReduceBenchmarkOptions& options,
                     const std::string& store_path, int rank, AllReduceBenchmarkResult& result) {
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::FileStore>(store_path, options.ranks);
  const auto peers = MakeGlooGroup(store, "c10d", rank, options.ranks);
  const auto meeting = MakeGlooGroup(store, "meeting", rank, options.ranks);
  GroupOptions group_options;
  group_options.timeout = kDeadline;
  absl::StatusOr<Group> over_gloo =
      GroupFromStore(store, "gloo", rank, options.ranks, {}, group_options);
  if (!over_gloo.ok()) return over_gloo.status();
  group_options.backend = options.backend;
  absl::StatusOr<Group> group =
      GroupFromStore(store, "leafpack", rank, options.ranks, {}, group_options);
  if (!group.ok()) return group.status();
  absl::StatusOr<TensorDict> tree = workload.MakeTree(0);
  if (!tree.ok()) return tree.status();
  std::vector<at::Tensor> leaves = Flatten(*tree).leaves;
  const int64_t flat_elements = (workload.bytes() + 3) / 4;
  at::Tensor flat = at::empty({flat_elements}, at::kFloat);
  at::Tensor other = at::empty({flat_elements}, at::kFloat);
  other.fill_(1.0);

  const auto fill_tree = [&] {
    for (at::Tensor& leaf : leaves) leaf.fill_(rank + 1);
    return absl::OkStatus();
  };
  const auto fill_flat = [&] {
    flat.fill_(rank + 1);
    return absl::OkStatus();
  };
  std::vector<Mode> modes;
  const auto add = [&](std::string name, Bucketing bucketing, const Group& in) {
    const size_t index = modes.size();
    modes.emplace_back(std::move(name), fill_tree, [&, index, bucketing] {
      AllReduceOptions call;
      call.bucketing = bucketing;
      call.stats = &modes[index].stats.emplace_back();
      return AllReduce(*tree, in, call);
    });
  };
  add("auto", Bucketing::Auto(), *group);
  if (options.per_leaf) add("per leaf", Bucketing::PerLeaf(), *group);
  for (int64_t cap : options.caps) {
    add(absl::StrCat("cap ", cap >> 10, " KiB"), Bucketing::MaxBytes(cap), *group);
  }
  // The same leaves in memory that all ranks map.
  std::vector<at::Tensor> shared_leaves;
  if (options.backend == "shm") {
    absl::StatusOr<TensorDict> shared = Share(*tree, *group);
    if (!shared.ok()) return shared.status();
    shared_leaves = Flatten(*shared).leaves;
    const auto fill = [&] {
      for (at::Tensor& leaf : shared_leaves) leaf.fill_(rank + 1);
      return absl::OkStatus();
    };
    const size_t index = modes.size();
    modes.emplace_back("arena", fill, [&, index, shared = *std::move(shared)] {
      AllReduceOptions call;
      call.stats = &modes[index].stats.emplace_back();
      return AllReduce(shared, *group, call);
    });
  }
  if (options.backend != "gloo") add("gloo auto", Bucketing::Auto(), *over_gloo);
  modes.emplace_back("flat c10d", fill_flat, [&] {
    std::vector<at::Tensor> tensors = {flat};
    peers->allreduce(tensors)->wait();
    return absl::OkStatus();
  });
  modes.emplace_back("local add_", fill_flat, [&] {
    flat.add_(other);
    return absl::OkStatus();
  });

  for (int round = -1; round < options.rounds; ++round) {  // one round to warm up
    for (const size_t i : OrderOfRound(modes.size(), round)) {
      Mode& mode = modes[i];
      if (absl::Status status = mode.prepare(); !status.ok()) return status;
      meeting->barrier()->wait();
      const double start = Now();
      absl::Status status = mode.run();
      const double seconds = Now() - start;
      if (!status.ok()) return status;
      if (round >= 0) mode.times.push_back(seconds);
    }
  }

  if (absl::Status status = fill_tree(); !status.ok()) return status;
  if (absl::Status status = AllReduce(*tree, *group); !status.ok()) return status;
  const size_t leaf_count = leaves.size();
  for (Mode& mode : modes) {
    if (mode.name != "arena") continue;
    if (absl::Status status = mode.prepare(); !status.ok()) return status;
    if (absl::Status status = mode.run(); !status.ok()) return status;
    leaves.insert(leaves.end(), shared_leaves.begin(), shared_leaves.end());
  }
  const double want = options.ranks * (options.ranks + 1) / 2.0;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.numel() > 0 && !leaf.eq(want).all().item<bool>()) {
      return absl::InternalError("a leaf does not hold the sum over the ranks");
    }
  }
  const std::vector<double>* flat_times = nullptr;
  const std::vector<double>* local_times = nullptr;
  for (const Mode& mode : modes) {
    if (mode.name == "flat c10d") flat_times = &mode.times;
    if (mode.name == "local add_") local_times = &mode.times;
  }
  result.workload = workload.name;
  result.ranks = options.ranks;
  result.leaves = static_cast<int64_t>(leaf_count);
  result.bytes = workload.bytes();
  for (const Mode& mode : modes) {
    std::vector<double> ratios, to_local;
    for (size_t i = 0; i < mode.times.size(); ++i) {
      ratios.push_back(mode.times[i] / (*flat_times)[i]);
      to_local.push_back(mode.times[i] / (*local_times)[i]);
    }
    ModeResult& out = result.modes.emplace_back();
    out.mode = mode.name;
    out.median = Median(mode.times);
    out.least = *std::min_element(mode.times.begin(), mode.times.end());
    out.ratio_to_flat = Median(ratios);
    out.ratio_to_local = Median(to_local);
    for (const AllReduceStats& stats : mode.stats) {
      const double share = 1.0 / static_cast<double>(mode.stats.size());
      out.messages = stats.buckets;
      out.agree += share * stats.agree;
      out.pack += share * stats.pack;
      out.communicate += share * stats.communicate;
      out.unpack += share * stats.unpack;
    }
  }
  peers->barrier()->wait();
  if (absl::Status status = over_gloo->Shutdown(absl::Seconds(30)); !status.ok()) return status;
  return group->Shutdown(absl::Seconds(30));
}

// What rank 0 tells the parent: one line a mode, fields separated by tabs.
std::string Serialize(const AllReduceBenchmarkResult& result) {
  std::string text = absl::StrCat(result.leaves, "\t", result.bytes, "\n");
  for (const ModeResult& mode : result.modes) {
    absl::StrAppendFormat(&text, "%s\t%.9g\t%.9g\t%.9g\t%.9g\t%d\t%.9g\t%.9g\t%.9g\t%.9g\n", mode.mode,
                          mode.median, mode.least, mode.ratio_to_flat, mode.ratio_to_local,
                          mode.messages, mode.agree, mode.pack, mode.communicate, mode.unpack);
  }
  return text;
}

bool Deserialize(std::string_view text, AllReduceBenchmarkResult& result) {
  bool first = true;
  for (std::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string_view> fields = absl::StrSplit(line, '\t');
    if (first) {
      first = false;
      if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &result.leaves) ||
          !absl::SimpleAtoi(fields[1], &result.bytes)) {
        return false;
      }
      continue;
    }
    ModeResult mode;
    if (fields.size() != 10 || !absl::SimpleAtod(fields[1], &mode.median) ||
        !absl::SimpleAtod(fields[2], &mode.least) ||
        !absl::SimpleAtod(fields[3], &mode.ratio_to_flat) ||
        !absl::SimpleAtod(fields[4], &mode.ratio_to_local) ||
        !absl::SimpleAtoi(fields[5], &mode.messages) || !absl::SimpleAtod(fields[6], &mode.agree) ||
        !absl::SimpleAtod(fields[7], &mode.pack) ||
        !absl::SimpleAtod(fields[8], &mode.communicate) ||
        !absl::SimpleAtod(fields[9], &mode.unpack)) {
      return false;
    }
    mode.mode = std::string(fields[0]);
    result.modes.push_back(std::move(mode));
  }
  return !result.modes.empty();
}

}  // namespace

absl::StatusOr<AllReduceBenchmarkResult> RunAllReduceBenchmark(
    const Workload& workload, const AllReduceBenchmarkOptions& options) {
  if (options.ranks < 1 || options.rounds < 1) {
    return absl::InvalidArgumentError("ranks and rounds must be at least 1");
  }
  int ends[2];
  if (pipe(ends) != 0) return absl::UnavailableError("no pipe");
  std::string text;
  const absl::Status status = RunForkedRanks(
      options.ranks,
      [&](const std::string& store_path, int rank) {
        close(ends[0]);
        AllReduceBenchmarkResult result;
        absl::Status ran = RunRank(workload, options, store_path, rank, result);
        if (!ran.ok() || rank != 0) return ran;
        const std::string told = Serialize(result);
        if (write(ends[1], told.data(), told.size()) == static_cast<ssize_t>(told.size())) return ran;
        return absl::UnavailableError("the pipe is closed");
      },
      [&] {
        close(ends[1]);
        char buffer[4096];
        for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
          text.append(buffer, static_cast<size_t>(n));
        }
      });
  close(ends[0]);
  AllReduceBenchmarkResult result;
  result.workload = workload.name;
  result.ranks = options.ranks;
  if (!status.ok() || !Deserialize(text, result)) {
    return absl::InternalError(
        absl::StrCat("on workload ", workload.name, ": ", status.message()));
  }
  return result;
}

std::string FormatTable(const AllReduceBenchmarkResult& result) {
  std::string text =
      absl::StrFormat("%s: %d leaves, %.3f MB, %d ranks\n", result.workload, result.leaves,
                      static_cast<double>(result.bytes) / 1e6, result.ranks);
  for (const ModeResult& mode : result.modes) {
    absl::StrAppendFormat(&text, "  %-12s %10.3f ms  (least %10.3f)  %8.3f x flat  %8.3f x add_",
                          mode.mode, mode.median * 1e3, mode.least * 1e3, mode.ratio_to_flat,
                          mode.ratio_to_local);
    if (mode.messages > 0) {
      absl::StrAppendFormat(
          &text, "  %d messages; means: agree %.3f, pack %.3f, communicate %.3f, unpack %.3f ms",
          mode.messages, mode.agree * 1e3, mode.pack * 1e3, mode.communicate * 1e3,
          mode.unpack * 1e3);
    }
    text += '\n';
  }
  return text;
}

std::string FormatJson(const AllReduceBenchmarkResult& result) {
  std::string text = absl::StrFormat(
      "{\"workload\": \"%s\", \"ranks\": %d, \"leaves\": %d, \"bytes\": %d, \"modes\": [",
      result.workload, result.ranks, result.leaves, result.bytes);
  const char* separator = "";
  for (const ModeResult& mode : result.modes) {
    absl::StrAppendFormat(&text,
                          "%s{\"mode\": \"%s\", \"median_s\": %.9g, \"least_s\": %.9g, "
                          "\"ratio_to_flat\": %.6g, \"ratio_to_local\": %.6g, \"messages\": %d, \"agree_s\": %.6g, "
                          "\"pack_s\": %.6g, \"communicate_s\": %.6g, \"unpack_s\": %.6g}",
                          separator, mode.mode, mode.median, mode.least, mode.ratio_to_flat,
                          mode.ratio_to_local, mode.messages, mode.agree, mode.pack, mode.communicate, mode.unpack);
    separator = ", ";
  }
  return text + "]}";
}

}  // namespace leafpack
