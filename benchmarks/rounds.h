// What benchmarks of several ranks share: processes to run in, and rounds that are fair to each mode.
#ifndef LEAFPACK_BENCHMARKS_ROUNDS_H_
#define LEAFPACK_BENCHMARKS_ROUNDS_H_

#include <cstddef>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace c10d {
class ProcessGroupGloo;
class Store;
}  // namespace c10d

namespace leafpack {

// Seconds of a clock that never goes back.
double Now();

// Of at least one value; of an even number the larger of the two in the middle.
double Median(std::vector<double> values);

// Calls `run(store_path, rank)` in a forked process for each rank, with the path of one FileStore for all,
// and `meanwhile` in this process while they run. The error tells which ranks failed; each says on stderr
// why. Forks: no thread may run yet.
absl::Status RunForkedRanks(
    int ranks, absl::FunctionRef<absl::Status(const std::string& store_path, int rank)> run,
    absl::FunctionRef<void()> meanwhile = [] {});

// The order in which `modes` modes run in a round: another one in each round, the same on all ranks.
// Where one mode always follows another of its library, it finds caches and connections warm.
std::vector<size_t> OrderOfRound(size_t modes, int round);

// A c10d group over loopback Gloo, under `name` in `store`. Ranks meet before a mode is timed in a
// group that no mode uses, whose threads and sockets would be awake for that one alone. Throws.
c10::intrusive_ptr<c10d::ProcessGroupGloo> MakeGlooGroup(
    const c10::intrusive_ptr<c10d::Store>& store, const char* name, int rank, int ranks);

}  // namespace leafpack

#endif  // LEAFPACK_BENCHMARKS_ROUNDS_H_
