// Ranks on pretended hosts; skipped where the machine does not let them be pretended.
#include "distributed/launch/hosts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/launch/launcher.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;

TEST(Hosts, TheNumberIsChecked) {
  EXPECT_EQ(Hosts::Make(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Hosts::Make(201).status().code(), absl::StatusCode::kInvalidArgument);
}

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<Hosts> hosts = Hosts::Make(3);
    if (hosts.ok()) return;
    ASSERT_EQ(hosts.status().code(), absl::StatusCode::kUnimplemented) << hosts.status();
    EXPECT_THAT(std::string(hosts.status().message()), HasSubstr("3 hosts be pretended: "));
    GTEST_SKIP() << hosts.status();
  }

  // Runs a script of bash on every rank; the lines of a rank have its number before them.
  std::string Run(int ranks, int hosts, const std::string& script, int expected_code = 0) {
    LaunchOptions options;
    options.ranks = ranks;
    options.hosts = hosts;
    options.timeout = absl::Seconds(100);
    const std::string path = absl::StrCat(::testing::TempDir(), "/out_", getpid());
    options.stdout_fd = options.stderr_fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
    const absl::StatusOr<LaunchResult> result = Launch(options, {"bash", "-c", script});
    close(options.stdout_fd);
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) {
      EXPECT_EQ(result->exit_code, expected_code) << text.str();
    }
    return text.str();
  }
};

TEST_F(HostsTest, RanksKnowTheirPlace) {
  const std::string text =
      Run(5, 2, "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $(uname -n)");
  EXPECT_THAT(text, HasSubstr("[0] 0/3 0/2 10.77.0.1 host0\n"));
  EXPECT_THAT(text, HasSubstr("[2] 2/3 0/2 10.77.0.1 host0\n"));
  EXPECT_THAT(text, HasSubstr("[3] 0/2 1/2 10.77.0.1 host1\n"));
  EXPECT_THAT(text, HasSubstr("[4] 1/2 1/2 10.77.0.1 host1\n"));
}

// Each of three hosts listens and each other one reaches it, through files that say who is ready.
TEST_F(HostsTest, HostsReachEachOtherByTcpAlone) {
  const std::string script = absl::StrCat(R"(
    cd ')", ::testing::TempDir(), R"('
    python3 - <<'PY'
import os, socket, time
rank = int(os.environ["RANK"])
server = socket.create_server(("0.0.0.0", 7000))
server.settimeout(60)
local = socket.socket(socket.AF_UNIX)
local.bind("\0leafpack_hosts_test")  # free on each host
local.listen()
open(f"/dev/shm/of_{rank}", "w").close()
open(f"ready_{rank}", "w").close()
until = time.monotonic() + 60
while not all(os.path.exists(f"ready_{r}") for r in range(3)):
    assert time.monotonic() < until
    time.sleep(0.01)
assert os.listdir("/dev/shm") == [f"of_{rank}"], os.listdir("/dev/shm")
peers = [socket.create_connection((f"10.77.0.{r + 1}", 7000), timeout=60) for r in range(3) if r != rank]
for peer in peers:
    peer.sendall(b"%d" % rank)
heard = sorted(server.accept()[0].recv(1) for _ in peers)
assert heard == [b"%d" % r for r in range(3) if r != rank], heard
print("heard the others")
PY
)");
  const std::string text = Run(3, 3, script);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("[", rank, "] heard the others\n")));
  }
}

TEST_F(HostsTest, TheWorkingFolderStaysAndRankZeroCanListenOnTheMasterPort) {
  char folder[4096];
  ASSERT_NE(getcwd(folder, sizeof(folder)), nullptr);
  const std::string text = Run(2, 2, R"(pwd; python3 -c '
import os, socket, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    server = socket.create_server(address)
    server.settimeout(60)
    assert server.accept()[1][0] == "10.77.0.2"
else:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(address, timeout=60)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)
')");
  EXPECT_THAT(text, HasSubstr(absl::StrCat("[1] ", folder, "\n")));
}

}  // namespace
}  // namespace leafpack
