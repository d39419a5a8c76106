#include "distributed/store/url.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/store/group_testutil.h"

namespace leafpack {
namespace {

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

// Each rank makes two groups, as `make(rank)` says, and uses them in the other order.
void RunRanks(int size, const std::function<absl::StatusOr<Group>(int rank)>& make) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      absl::StatusOr<Group> first = make(rank), second = make(rank);
      EXPECT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
      if (first.ok() && second.ok()) {
        EXPECT_EQ(FrameSum(*second, 10).value_or(-1), 10 * size);
        EXPECT_EQ(FrameSum(*first, 1).value_or(-1), size);
        EXPECT_TRUE(second->Shutdown(absl::Seconds(30)).ok());
        EXPECT_TRUE(first->Shutdown(absl::Seconds(30)).ok());
      }
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(UrlTest, Tcp) {
  const std::string url = absl::StrCat("tcp://127.0.0.1:", FreePort());
  RunRanks(2, [&](int rank) { return GroupFromUrl(url, rank, 2); });
}

TEST(UrlTest, File) {
  const std::string url =
      absl::StrCat("file://", ::testing::TempDir(), "/url_test_", getpid());
  RunRanks(2, [&](int rank) { return GroupFromUrl(url, rank, 2); });
}

TEST(UrlTest, Environment) {
  const int port = FreePort();
  RunRanks(2, [&](int rank) {
    setenv("RANK", absl::StrCat(rank).c_str(), 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", absl::StrCat(port).c_str(), 1);
    absl::Status other = GroupFromUrl("env://", 1 - rank, 2).status();
    EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument) << other;
    return rank == 0 ? GroupFromUrl("env://") : GroupFromUrl("env://", rank, 2);
  });
}

TEST(UrlTest, BadOnesAreNamed) {
  for (const char* url : {"", "tcp", "http://a:1", "TCP://a:1", "tcp://", "tcp://host", "tcp://:1",
                          "tcp://host:", "tcp://host:0", "tcp://host:65536", "tcp://host:x",
                          "tcp://a/b:1", "tcp://::1:80", "tcp://[::1:80", "file://", "file:///tmp/"}) {
    const absl::Status status = GroupFromUrl(url, 0, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << url << ": " << status;
  }
  for (const char* url : {"tcp://a:1", "file:///tmp/x"}) {
    for (const auto& [rank, size] : {std::pair{-1, -1}, {2, 2}, {0, 0}, {-1, 2}}) {
      const absl::Status status = GroupFromUrl(url, rank, size).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), url)) << status;
    }
  }
  // What is missing or wrong is said with its value.
  for (const auto& [rank, size, text] :
       {std::tuple{-1, -1, "says neither"}, {-1, 2, "the rank in the group must be given, 0 to 1"},
        {0, -1, "the size of the group must be given too: only its rank 0 is"},
        {0, 0, "a group of 0 ranks"}, {2, 2, "rank 2 is not in a group of 2 ranks"}}) {
    const absl::Status status = GroupFromUrl("file:///tmp/x", rank, size).status();
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  }
  unsetenv("RANK");
  EXPECT_EQ(GroupFromUrl("env://").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GroupFromUrl("env://x").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(UrlTest, NamesWithNulAreEscaped) {
  GroupOptions options;
  options.backend = std::string("gl\0oo", 5);
  for (const auto& [url, text] : {std::pair{std::string("file:///tmp/a\0b", 15), "/tmp/a\\000b'"},
                                  {std::string("htt\0p://a", 9), "htt\\000p://"},
                                  {std::string("file:///tmp/x"), "'gl\\000oo'"}}) {
    const absl::Status status = GroupFromUrl(url, 0, 1, options).status();
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), std::string_view("\0", 1))) << status;
  }
}

TEST(UrlTest, NobodyServes) {
  GroupOptions options;
  options.timeout = absl::Milliseconds(1500);
  const std::string url = absl::StrCat("tcp://127.0.0.1:", FreePort());
  const absl::Time start = absl::Now();
  const absl::Status status = GroupFromUrl(url, 1, 2, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), url)) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
}

// A program that takes connections and says nothing, as a stopped rank 0 does.
class MuteServer {
 public:
  MuteServer() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, generic, size), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
    EXPECT_EQ(getsockname(socket_, generic, &size), 0);
    url_ = absl::StrCat("tcp://127.0.0.1:", ntohs(address.sin_port));
  }
  ~MuteServer() { close(socket_); }
  const std::string& url() const { return url_; }

 private:
  const int socket_;
  std::string url_;
};

TEST(UrlTest, AServerThatAnswersNothing) {
  const MuteServer server;
  GroupOptions options;
  options.timeout = absl::Milliseconds(500);
  const absl::Time start = absl::Now();
  const absl::Status status = GroupFromUrl(server.url(), 1, 2, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), server.url())) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
}

TEST(UrlTest, AnInterruptEndsTheWait) {
  const MuteServer server;
  for (const std::string& url : {server.url(), absl::StrCat("tcp://127.0.0.1:", FreePort())}) {
    const absl::Time start = absl::Now();
    const absl::Status status = GroupFromUrl(url, 1, 2, {}, [&] {
                                  return absl::Now() - start > absl::Milliseconds(100);
                                }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), url)) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(60));
  }
}

}  // namespace
}  // namespace leafpack
