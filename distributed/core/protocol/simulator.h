// A simulator of a whole group: ranks with the real state machines, links with delays, clocks, user
// programs and a model of the data path, all driven by one seed. After each run it checks the
// protocol's invariants.
//
//   SimulationResult result = Simulate({.seed = 7});
//   EXPECT_EQ(result.violation, "");
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATOR_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATOR_H_

#include <cstdint>
#include <string>

#include "distributed/core/protocol/types.h"

namespace leafpack::protocol {

struct SimulationOptions {
  uint64_t seed = 0;
  Mutation mutation = Mutation::kNone;
  bool trace = false;  // prints every event to stderr
};

// What one run did; counts show that faults were really met.
struct SimulationResult {
  std::string violation;  // empty if every invariant held; else the first that did not, with rank,
                          // call and time
  uint32_t ranks = 0;
  uint64_t calls = 0;  // issued, over all ranks
  uint64_t ok = 0;     // of these, ended OK
  uint64_t doubts = 0;
  uint64_t told = 0;
  uint64_t aborts = 0;
  uint64_t mismatches = 0;
  uint64_t refused = 0;
  uint64_t withdrawn = 0;
  uint64_t lost = 0;
  uint64_t retracted = 0;
  uint64_t held = 0;
  uint64_t commits = 0;
};

// Runs one random group of 2 to 5 ranks to its end. Deterministic in `options`.
SimulationResult Simulate(const SimulationOptions& options);

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_SIMULATOR_H_
