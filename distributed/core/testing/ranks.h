// Ranks for tests of groups: as threads of this process, or as forked processes; and calls whose
// results are known.
#ifndef LEAFPACK_DISTRIBUTED_CORE_TESTING_RANKS_H_
#define LEAFPACK_DISTRIBUTED_CORE_TESTING_RANKS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/fake_backend.h"

namespace leafpack::testing {

// Long enough for a loaded machine; calls of healthy groups end in microseconds.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// One group of `size` ranks over a store in memory, a handle for each rank, with the fake backend.
std::vector<Group> MakeGroups(int size, absl::Duration timeout = kPatience,
                              std::vector<GlobalRank> global_ranks = {},
                              const std::string& backend = "fake");

// Calls body(rank, group) in a thread for each rank and returns when all have returned.
void OnRanks(std::vector<Group>& groups, const std::function<void(int rank, Group& group)>& body);

FakeFaults& Faults(const Group& group);

// What a frame or a data call of these tests says of itself.
struct CallArgs {
  std::string name = "call";
  uint64_t digest = 1;
  uint64_t soft_digest = 0;
  absl::Duration timeout = kPatience;
  bool restore = false;
  bool async = false;
  CheckMode check = CheckMode::kAlways;
  std::vector<DescriptionEntry> description = {};
  InterruptCheck interrupt = nullptr;
};
CallSpec MakeSpec(const CallArgs& args);
// A frame that sums float32 values in rank order.
CallSpec MakeFrame(const std::vector<float>& values, const CallArgs& args = {});
std::vector<float> FrameValues(const Call& call);

// A whole frame: `values` become the sums over the ranks, on success only.
absl::Status SumFrame(Group& group, std::vector<float>& values, const CallArgs& args = {});
// A whole data call in one operation, as the layer of collectives does it. With `restore` the values
// are put back after an error; without, they may be partly written.
absl::Status SumData(Group& group, std::vector<float>& values, const CallArgs& args = {});
// The same for a call that was posted.
absl::Status RunData(Call& call, std::vector<float>& values, const CallArgs& args = {});

// A folder that is removed at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A group of this process over a file that the other processes use too.
Group MakeFileGroup(const std::string& file, int rank, int size,
                    absl::Duration timeout = kPatience, const std::string& backend = "fake");

// The same over a TCP store, which rank 0 serves; `port` is shared memory, 0 at first.
Group MakeTcpGroup(std::atomic<int>& port, int rank, int size, absl::Duration timeout = kPatience);

// Starts a process that runs `body` and ends by _exit with what it returns: no hook, no destructor of
// static objects runs. The caller must have no threads.
pid_t Fork(const std::function<int()>& body);
// Waits for a process: its exit status, 128 + n for signal n, -1 (and SIGKILL) after kPatience.
int Wait(pid_t pid);
// Forks `size` processes, runs body(rank) in them, and returns what Wait says of each.
std::vector<int> OnProcesses(int size, const std::function<int(int rank)>& body);

// Memory that forked processes share, zero at first, e.g. for flags.
void* SharedMemory(size_t bytes);
template <typename T>
T& Shared() {
  return *static_cast<T*>(SharedMemory(sizeof(T)));
}

// Waits until `condition` holds; false after kPatience.
bool Eventually(const std::function<bool()>& condition);

// Threads and open descriptors of this process.
int CountThreads();
int CountDescriptors();

}  // namespace leafpack::testing

#endif  // LEAFPACK_DISTRIBUTED_CORE_TESTING_RANKS_H_
