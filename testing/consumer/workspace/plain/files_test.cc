// Ranks find their place in the environment, and one folder that they share.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

TEST(Files, EveryRankSeesThoseOfTheOthers) {
  const int ranks = std::stoi(Variable("WORLD_SIZE"));
  const std::string folder = Variable("TEST_TMPDIR");
  std::ofstream(folder + "/rank_" + Variable("RANK")) << "here";
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int rank = 0; rank < ranks; ++rank) {
    while (!std::ifstream(folder + "/rank_" + std::to_string(rank)).good()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "rank " << rank << " did not write";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

}  // namespace
