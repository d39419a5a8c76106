// What makes rounds of several modes fair to each of them.
#ifndef LEAFPACK_BENCHMARKS_ROUNDS_H_
#define LEAFPACK_BENCHMARKS_ROUNDS_H_

#include <cstddef>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class ProcessGroupGloo;
class Store;
}  // namespace c10d

namespace leafpack {

// The order in which `modes` modes run in a round: another one in each round, the same on all ranks.
// Where one mode always follows another of its library, it finds caches and connections warm.
std::vector<size_t> OrderOfRound(size_t modes, int round);

// A c10d group over loopback Gloo, under `name` in `store`. Ranks meet before a mode is timed in a
// group that no mode uses, whose threads and sockets would be awake for that one alone. Throws.
c10::intrusive_ptr<c10d::ProcessGroupGloo> MakeGlooGroup(
    const c10::intrusive_ptr<c10d::Store>& store, const char* name, int rank, int ranks);

}  // namespace leafpack

#endif  // LEAFPACK_BENCHMARKS_ROUNDS_H_
