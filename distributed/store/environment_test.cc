#include "distributed/store/environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/store/group_testutil.h"

namespace leafpack {
namespace {

void Set(const char* name, const std::string& value) {
  ASSERT_EQ(setenv(name, value.c_str(), 1), 0);
}

void SetAll(int rank, int size, int port) {
  Set("RANK", absl::StrCat(rank));
  Set("WORLD_SIZE", absl::StrCat(size));
  Set("MASTER_ADDR", "127.0.0.1");
  Set("MASTER_PORT", absl::StrCat(port));
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  unsetenv("TORCHELASTIC_RESTART_COUNT");
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return ntohs(address.sin_port);
}

void ExpectError(absl::StatusCode code, const std::vector<std::string>& parts) {
  const absl::Status status = ReadLaunchEnvironment().status();
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << " lacks " << part;
  }
  EXPECT_EQ(GroupFromEnvironment().status(), status);
}

TEST(EnvironmentTest, ErrorsNameTheVariableAndItsValue) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    SetAll(0, 2, 29500);
    unsetenv(name);
    ExpectError(absl::StatusCode::kFailedPrecondition, {name, "is not set"});
    Set(name, "");
    ExpectError(absl::StatusCode::kFailedPrecondition, {name, "is empty"});
  }
  SetAll(0, 2, 29500);
  Set("RANK", "2");
  ExpectError(absl::StatusCode::kInvalidArgument, {"RANK is '2'", "WORLD_SIZE, which is 2"});
  Set("RANK", "-1");
  ExpectError(absl::StatusCode::kInvalidArgument, {"RANK is '-1'"});
  Set("RANK", "1x");
  ExpectError(absl::StatusCode::kInvalidArgument, {"RANK is '1x'"});
  SetAll(0, 2, 29500);
  Set("WORLD_SIZE", "0");
  ExpectError(absl::StatusCode::kInvalidArgument, {"WORLD_SIZE is '0'"});
  SetAll(0, 2, 29500);
  Set("MASTER_PORT", "70000");
  ExpectError(absl::StatusCode::kInvalidArgument, {"MASTER_PORT is '70000'"});
}

TEST(EnvironmentTest, ReadsWhatTorchrunSets) {
  SetAll(1, 3, 29501);
  Set("TORCHELASTIC_USE_AGENT_STORE", "True");
  Set("TORCHELASTIC_RESTART_COUNT", "4");
  const absl::StatusOr<LaunchEnvironment> environment = ReadLaunchEnvironment();
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->rank, 1);
  EXPECT_EQ(environment->size, 3);
  EXPECT_EQ(environment->master_addr, "127.0.0.1");
  EXPECT_EQ(environment->master_port, 29501);
  EXPECT_TRUE(environment->agent_store);
  EXPECT_EQ(environment->restart_count, 4);
}

TEST(EnvironmentTest, NobodyServesTheStore) {
  SetAll(1, 2, FreePort());
  GroupOptions options;
  options.timeout = absl::Milliseconds(1500);
  const absl::Status status = GroupFromEnvironment(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), std::getenv("MASTER_PORT"))) << status;
}

// Two processes, two groups each, over a store that rank 0 serves.
TEST(EnvironmentTest, RanksAsProcesses) {
  const int port = FreePort();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      SetAll(rank, 2, port);
      absl::StatusOr<Group> first = GroupFromEnvironment();
      absl::StatusOr<Group> second = GroupFromEnvironment();
      int failures = 0;
      const auto check = [&](absl::StatusOr<int64_t> got, int64_t want) {
        if (!got.ok() || *got != want) {
          fprintf(stderr, "rank %d: %s\n", rank,
                  got.ok() ? absl::StrCat(*got).c_str() : got.status().ToString().c_str());
          ++failures;
        }
      };
      if (!first.ok() || !second.ok()) {
        fprintf(stderr, "rank %d: %s\n", rank, first.status().ToString().c_str());
        _exit(1);
      }
      check(FrameSum(*second, rank + 1), 3);
      check(FrameSum(*first, 10 * (rank + 1)), 30);
      check(DataSum(*first, rank + 1, 50000), 3);
      if (!first->Shutdown(absl::Seconds(30)).ok()) ++failures;
      if (!second->Shutdown(absl::Seconds(30)).ok()) ++failures;
      _exit(failures == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace
}  // namespace leafpack
