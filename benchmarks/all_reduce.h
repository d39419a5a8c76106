// All-reduce of a workload's tree in several ways, interleaved, on local ranks.
#ifndef LEAFPACK_BENCHMARKS_ALL_REDUCE_H_
#define LEAFPACK_BENCHMARKS_ALL_REDUCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "benchmarks/workload.h"

namespace leafpack {

struct AllReduceBenchmarkOptions {
  int ranks = 2;
  int rounds = 21;
  std::vector<int64_t> caps = {int64_t{1} << 20, int64_t{25} << 20};  // bytes, of Bucketing::MaxBytes
  bool per_leaf = true;
  // Of leafpack's modes. If it is not "gloo" the automatic plan over Gloo runs as one more mode; if it is
  // "shm", so does the automatic plan on leaves in an arena (leafpack::Share).
  std::string backend = "gloo";
};

struct ModeResult {
  std::string mode;       // "auto", "per leaf", "cap 1 MiB", "arena", "gloo auto", "flat c10d", "local add_"
  double median = 0;      // s a call, on rank 0
  double least = 0;       // s
  // Median over the rounds of this mode's time by that of "flat c10d" in the same round.
  double ratio_to_flat = 0;
  double ratio_to_local = 0;  // the same to "local add_"
  int64_t messages = 0;   // of leafpack's modes; 0: the tree rode with its digest
  // Of leafpack's modes: where the time of a call went, s, means over the rounds.
  double agree = 0;
  double pack = 0;
  double communicate = 0;
  double unpack = 0;
};

struct AllReduceBenchmarkResult {
  std::string workload;
  int ranks = 0;
  int64_t leaves = 0;
  int64_t bytes = 0;
  std::vector<ModeResult> modes;
};

// Forks `ranks` processes, so it must be called before anything made threads. Every mode runs once
// a round, in an order that rotates, after its inputs were written anew and a barrier. At the end the
// result of "auto" is checked on every rank. Internal when a rank fails.
absl::StatusOr<AllReduceBenchmarkResult> RunAllReduceBenchmark(
    const Workload& workload, const AllReduceBenchmarkOptions& options);

// A table for people, and an object of JSON.
std::string FormatTable(const AllReduceBenchmarkResult& result);
std::string FormatJson(const AllReduceBenchmarkResult& result);

}  // namespace leafpack

#endif  // LEAFPACK_BENCHMARKS_ALL_REDUCE_H_
