#include "benchmarks/rounds.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace leafpack {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

absl::Status RunForkedRanks(
    int ranks, absl::FunctionRef<absl::Status(const std::string& store_path, int rank)> run,
    absl::FunctionRef<void()> meanwhile) {
  const char* parent = std::getenv("TEST_TMPDIR");
  std::string folder = absl::StrCat(parent != nullptr ? parent : "/tmp", "/benchmark_XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("no temporary folder ", folder));
  }
  const std::string store_path = folder + "/store";
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      absl::Status status;
      try {
        status = run(store_path, rank);
      } catch (const std::exception& e) {
        status = absl::InternalError(e.what());
      }
      if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
      _exit(status.ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  meanwhile();
  std::vector<size_t> failed;
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    const bool ok = children[rank] > 0 && waitpid(children[rank], &status, 0) == children[rank] &&
                    WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok) failed.push_back(rank);
  }
  unlink(store_path.c_str());
  rmdir(folder.c_str());
  if (failed.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ranks that failed: ", absl::StrJoin(failed, ", ")));
}

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
