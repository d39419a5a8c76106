#include "distributed/core/channel/fork.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "distributed/core/channel/channel_testutil.h"
#include "distributed/core/channel/link.h"
#include "distributed/core/channel/understudy.h"
#include "distributed/core/channel/waiter.h"

namespace leafpack {
namespace {

TrackedFd OpenEvent() {
  return TrackedFd::Open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

// Open eventfds of this process.
int CountEvents() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (const dirent* entry = readdir(folder)) {
    char target[100];
    const ssize_t n = readlinkat(dirfd(folder), entry->d_name, target, sizeof target);
    if (n > 0 && std::string(target, static_cast<size_t>(n)).find("eventfd") != std::string::npos) ++count;
  }
  closedir(folder);
  return count;
}

// Runs `body` in a forked child and returns its exit status: the value of `body`.
template <typename F>
int InChild(F body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return WEXITSTATUS(status);
}

TEST(ForkTest, ChildHasNoDescriptors) {
  TrackedFd fd = OpenEvent();
  const int number = fd.get();
  ASSERT_GE(number, 0);
  const uint64_t generation = ForkGeneration();
  EXPECT_EQ(InChild([&] {
              if (ForkGeneration() != generation + 1) return 1;
              if (fd.get() != -1 || fd.valid()) return 2;
              if (fcntl(number, F_GETFD) != -1) return 3;
              // The number now means another file, which must not be closed with the TrackedFd.
              const int other = open("/dev/null", O_RDONLY);
              if (other != number) return 4;
              fd.Close();
              if (fcntl(other, F_GETFD) == -1) return 5;
              TrackedFd fresh = OpenEvent();
              return fresh.valid() ? 0 : 6;
            }),
            0);
  EXPECT_EQ(ForkGeneration(), generation);
  EXPECT_EQ(fd.get(), number);
  EXPECT_NE(fcntl(number, F_GETFD), -1);
}

TEST(ForkTest, GrandchildrenToo) {
  TrackedFd fd = OpenEvent();
  EXPECT_EQ(InChild([&] {
              TrackedFd own = OpenEvent();
              return InChild([&] { return !own.valid() && ForkGeneration() == 2 && CountEvents() == 0 ? 0 : 1; });
            }),
            0);
}

TEST(ForkTest, MovedDescriptorsStayTracked) {
  TrackedFd a = OpenEvent();
  const int number = a.get();
  TrackedFd b = std::move(a);
  EXPECT_EQ(b.get(), number);
  EXPECT_FALSE(a.valid());  // NOLINT: a moved-from TrackedFd is empty
  a = std::move(b);
  EXPECT_EQ(a.get(), number);
  a.Close();
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
  EXPECT_EQ(TrackedFd::Open([] {
              errno = EMFILE;
              return -1;
            }).get(),
            -1);
}

// A rank forks a child and dies: its peer must see it, though the child lives on.
TEST(ForkTest, ChildDoesNotHideTheDeathOfItsParent) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  int alive[2];  // the grandchild holds the writing end for as long as it lives
  int leave[2];  // and lives until our writing end of this closes
  ASSERT_EQ(pipe(alive), 0);
  ASSERT_EQ(pipe(leave), 0);
  const pid_t rank = fork();
  if (rank == 0) {
    close(fds[0]);
    Link link;
    link.Attach(TrackedFd::Open([&] { return fds[1]; }));
    close(leave[1]);
    if (fork() == 0) {
      char byte;
      _exit(read(leave[0], &byte, 1) == 0 ? 0 : 1);
    }
    // Only now: so that the peer knows that the grandchild exists.
    if (!link.Send("forked").ok()) _exit(1);
    pause();
  }
  close(fds[1]);
  close(alive[1]);
  Link link;
  link.Attach(TrackedFd::Open([&] { return fds[0]; }));
  std::string received, scratch(100, '\0');
  const auto read_link = [&] {
    pollfd wait = {link.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&wait, 1, 60000), 1);
    return link.ReadAvailable(absl::MakeSpan(scratch), [&](absl::Span<const char> bytes) {
      received.append(bytes.data(), bytes.size());
      return true;
    });
  };
  EXPECT_EQ(read_link(), Link::ReadState::kDrained);
  EXPECT_EQ(received, "forked");
  kill(rank, SIGKILL);
  EXPECT_EQ(read_link(), Link::ReadState::kHungUp);
  EXPECT_EQ(waitpid(rank, nullptr, 0), rank);
  pollfd wait = {alive[0], POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0) << "the grandchild ended before the hang-up was seen: nothing is proved";
  for (int fd : {alive[0], leave[0], leave[1]}) close(fd);
}

// Descriptors are opened and closed by other threads while the process forks: no child keeps one.
TEST(ForkTest, NoDescriptorSlipsThroughARace) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      std::vector<TrackedFd> fds(8);
      for (size_t i = 0; !stop; ++i) fds[i % fds.size()] = OpenEvent();
    });
  }
  for (int round = 0; round < 100; ++round) EXPECT_EQ(InChild([] { return CountEvents(); }), 0);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

class PokedClient : public Understudy::Client {
 public:
  Understudy::Next OnReady(absl::Time) override { return {}; }
  Understudy::Next OnTick(absl::Time) override {
    ++ticks;
    return {};
  }
  std::atomic<int> ticks{0};
};

TEST(ForkTest, UnderstudyOfTheChildIsItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not allow threads in a child of a process with threads";
#endif
  PokedClient client;
  auto registration = *Understudy::Get().Register(&client);
  WakeEvent event;
  ASSERT_TRUE(registration->Watch(event.fd(), false).ok());
  Understudy* const parents = &Understudy::Get();
  EXPECT_EQ(InChild([&] {
              registration->Poke();
              registration->NoteUse();
              registration->Unwatch(event.fd());
              registration.reset();
              if (&Understudy::Get() == parents) return 1;
              PokedClient own;
              auto fresh = Understudy::Get().Register(&own);
              if (!fresh.ok()) return 2;
              (*fresh)->Poke();
              for (int i = 0; own.ticks == 0; ++i) {
                if (i > 10000) return 3;
                absl::SleepFor(absl::Milliseconds(1));
              }
              return client.ticks == 0 ? 0 : 4;
            }),
            0);
  registration->Poke();
  while (client.ticks == 0) absl::SleepFor(absl::Milliseconds(1));
}

// A child that inherits the parent's exit handlers and calls exit() must end.
TEST(ForkTest, ChildExitsThoughTheParentHasAnUnderstudy) {
  PokedClient client;
  auto registration = *Understudy::Get().Register(&client);
  const pid_t child = fork();
  if (child == 0) std::exit(9);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 9) << status;
}

TEST(ForkTest, ErrorSaysWhatToDo) {
  EXPECT_EQ(ForkedError().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(ForkedError().message().find("forked"), std::string::npos);
}

}  // namespace
}  // namespace leafpack
