#include "benchmarks/rounds.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace leafpack {

std::vector<size_t> OrderOfRound(size_t modes, int round) {
  std::vector<size_t> order(modes);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(static_cast<std::mt19937::result_type>(round + 1000));
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> MakeGlooGroup(
    const c10::intrusive_ptr<c10d::Store>& store, const char* name, int rank, int ranks) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(5));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(name, store), rank, ranks, options);
}

}  // namespace leafpack
