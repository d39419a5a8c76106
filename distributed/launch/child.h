// One rank as a child process: started in a process group of its own, with pipes for its output, and
// a keeper that ends the groups of all ranks when the launcher itself is killed.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_CHILD_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_CHILD_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/launch/hosts.h"

namespace leafpack {

using Environment = std::vector<std::pair<std::string, std::string>>;

// The file that execvp would run for `program`: itself when it holds a slash, else the first match
// in PATH. A relative one is taken from `directory`. NotFound, PermissionDenied name it.
absl::StatusOr<std::string> FindProgram(const std::string& program, const std::string& directory);

struct ChildSpec {
  std::string program;                 // a path; empty: call `body`
  std::vector<std::string> arguments;  // with argv[0]
  std::function<int()> body;           // its result is the exit code
  std::string directory;               // empty: the caller's
  const Hosts* hosts = nullptr;        // where the child runs; null: here
  int host = 0;
  Environment set;                     // added to the caller's environment, the last of a name wins
  std::vector<std::string> unset;
  bool merge_stderr = false;       // standard error goes into the pipe of standard output
  std::vector<int> close_in_child;  // descriptors that a `body` must not keep
  std::vector<std::pair<int, struct sigaction>> restore;  // signal actions for the child
};

struct Child {
  pid_t pid = -1;
  int out = -1;  // read ends, non-blocking
  int err = -1;  // -1 when merged
};

// Starts the child as leader of a new process group, with /dev/null as standard input. It dies with
// the calling thread (PR_SET_PDEATHSIG). An error when a pipe, fork, chdir or exec fails.
absl::StatusOr<Child> StartChild(const ChildSpec& spec);

// A small process beside the launcher. When the launcher ends without Done, even by SIGKILL, it
// kills the process groups that were added, so that children of ranks do not outlive the job either.
class Keeper {
 public:
  static absl::StatusOr<Keeper> Start();
  Keeper(Keeper&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}
  Keeper& operator=(Keeper&&) = delete;
  ~Keeper() { Done(); }

  void Add(pid_t pgid);
  void Done();
  int fd() const { return pipe_; }

 private:
  Keeper(pid_t pid, int pipe) : pid_(pid), pipe_(pipe) {}
  pid_t pid_;
  int pipe_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_CHILD_H_
