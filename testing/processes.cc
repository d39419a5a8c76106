#include "testing/processes.h"

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "absl/log/check.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/launch/launcher.h"

namespace leafpack {
namespace internal {

constexpr int kMaxRanks = 64;

struct SharedBoard {
  std::atomic<int> events[RankContext::kEvents];
  std::atomic<pid_t> pids[kMaxRanks];
};

}  // namespace internal

namespace {

// Failed expectations of the running test so far.
int CountFailures() {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  CHECK(test != nullptr) << "RankProcesses is for use within a test";
  int count = 0;
  for (int i = 0; i < test->result()->total_part_count(); ++i) {
    if (test->result()->GetTestPartResult(i).failed()) ++count;
  }
  return count;
}

}  // namespace

pid_t RankContext::PidOf(int rank) const { return board_->pids[rank].load(); }

void RankContext::Signal(int event) { board_->events[event].fetch_add(1); }

int RankContext::Count(int event) const { return board_->events[event].load(); }

bool RankContext::Await(int event, int count, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (Count(event) < count) {
    if (absl::Now() > until) {
      ADD_FAILURE() << "rank " << rank_ << " waited for " << count << " signals of event " << event
                    << " and saw " << Count(event);
      return false;
    }
    absl::SleepFor(absl::Microseconds(200));
  }
  return true;
}

RankProcesses::RankProcesses(int ranks) {
  CHECK(ranks >= 1 && ranks <= internal::kMaxRanks) << ranks;
  options_.ranks = ranks;
  options_.timeout = absl::Seconds(60);
  options_.grace = absl::Seconds(3);
  options_.failure_linger = absl::Seconds(1);
  options_.merge_stderr = true;
  options_.name = "ranks";
  void* memory = mmap(nullptr, sizeof(internal::SharedBoard), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PCHECK(memory != MAP_FAILED);
  context_.board_ = new (memory) internal::SharedBoard();
  context_.size_ = ranks;
  std::string name = absl::StrCat(::testing::TempDir(), "/ranks_XXXXXX");
  PCHECK(mkdtemp(name.data()) != nullptr);
  context_.directory_ = std::move(name);
}

RankProcesses::~RankProcesses() {
  munmap(context_.board_, sizeof(internal::SharedBoard));
  std::error_code ignored;
  std::filesystem::remove_all(context_.directory_, ignored);
}

void RankProcesses::Run(const std::function<void(RankContext&)>& body) {
  // A rank inherits the record of what failed before; only what fails in it counts.
  const int failed_before = CountFailures();
  absl::StatusOr<LaunchResult> result = LaunchFunction(options_, [&](int rank) {
    context_.rank_ = rank;
    context_.board_->pids[rank].store(getpid());
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    try {
      body(context_);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << rank << " threw: " << e.what();
    }
    return CountFailures() > failed_before ? 1 : 0;
  });
  if (!result.ok()) {
    ADD_FAILURE() << "the ranks did not start: " << result.status();
    return;
  }
  result_ = *std::move(result);
  if (result_.exit_code != 0) ADD_FAILURE() << result_.summary;
}

}  // namespace leafpack
