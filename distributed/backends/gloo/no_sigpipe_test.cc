#include "distributed/backends/gloo/no_sigpipe.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "gtest/gtest.h"

namespace leafpack::gloo_internal {
namespace {

bool Blocked() {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, SIGPIPE) == 1;
}

TEST(ScopedNoSigpipeTest, AWriteToAClosedSocketIsAnErrorAndNoSignal) {
  ASSERT_EQ(signal(SIGPIPE, SIG_DFL), SIG_DFL);
  for (int round = 0; round < 3; ++round) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    close(ends[1]);
    {
      const ScopedNoSigpipe guard;
      EXPECT_EQ(write(ends[0], "x", 1), -1);
      EXPECT_EQ(errno, EPIPE);
      const ScopedNoSigpipe inner;  // what is blocked already stays so
      EXPECT_EQ(write(ends[0], "x", 1), -1);
    }
    EXPECT_FALSE(Blocked());  // and nothing was pending: this process lives
    close(ends[0]);
  }
}

}  // namespace
}  // namespace leafpack::gloo_internal
