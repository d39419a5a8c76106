#include "distributed/core/channel/channel_testutil.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

class DirectoryStore : public KeyValueStore {
 public:
  explicit DirectoryStore(std::string folder) : folder_(std::move(folder)) {}

  absl::StatusOr<bool> Check(std::string_view key) override { return access(Path(key).c_str(), R_OK) == 0; }

  absl::StatusOr<std::string> Get(std::string_view key) override {
    std::ifstream file(Path(key), std::ios::binary);
    if (!file) return absl::NotFoundError("no such key");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  absl::Status Set(std::string_view key, std::string_view value) override {
    const std::string fresh = absl::StrCat(Path(key), ".", getpid());
    std::ofstream(fresh, std::ios::binary) << value;
    if (rename(fresh.c_str(), Path(key).c_str()) != 0) return absl::UnavailableError("rename");
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<KeyValueStore>> Clone() override {
    return std::make_unique<DirectoryStore>(folder_);
  }

 private:
  std::string Path(std::string_view key) const { return absl::StrCat(folder_, "/", key); }
  const std::string folder_;
};

// Failures of the current test; the ones before a fork are in the child's count too.
int FailureCount() {
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr) return 0;
  int count = 0;
  for (int i = 0; i < info->result()->total_part_count(); ++i) {
    count += info->result()->GetTestPartResult(i).failed() ? 1 : 0;
  }
  return count;
}

}  // namespace

std::unique_ptr<KeyValueStore> NewDirectoryStore(std::string folder) {
  return std::make_unique<DirectoryStore>(std::move(folder));
}

std::string NewTestFolder() {
  std::string path = testing::TempDir() + "/channelXXXXXX";
  if (mkdtemp(path.data()) == nullptr) std::abort();
  return path;
}

std::vector<int> RunRanks(int ranks, absl::FunctionRef<void(int rank)> body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const int before = FailureCount();
      body(rank);
      fflush(nullptr);
      _exit(FailureCount() > before ? 1 : 0);
    }
    children.push_back(child);
  }
  std::vector<int> statuses(children.size(), -1);
  const absl::Time end = absl::Now() + kTestPatience;
  size_t left = children.size();
  while (left > 0) {
    for (size_t i = 0; i < children.size(); ++i) {
      if (children[i] == 0) continue;
      if (absl::Now() > end) kill(children[i], SIGKILL);
      if (waitpid(children[i], &statuses[i], WNOHANG) == children[i]) {
        children[i] = 0;
        --left;
      }
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return statuses;
}

std::pair<TrackedFd, TrackedFd> SocketPair() {
  int fds[2] = {-1, -1};
  std::pair<TrackedFd, TrackedFd> result;
  result.first = TrackedFd::Open([&] {
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0 ? fds[0] : -1;
  });
  result.second = TrackedFd::Open([&] { return fds[1]; });
  return result;
}

Connector::State StepUntil(Connector& connector, absl::Time until, std::vector<Connector::Joined>& joined) {
  while (true) {
    const Connector::State state = connector.Step();
    for (Connector::Joined& one : connector.TakeJoined()) joined.push_back(std::move(one));
    const absl::Duration left = until - absl::Now();
    if (state != Connector::State::kConnecting || left <= absl::ZeroDuration()) return state;
    pollfd wait = {connector.fd(), POLLIN, 0};
    poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
  }
}

}  // namespace leafpack
