// The launcher as a program: exit codes, signals sent to it, and its death.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience(50);

// The launcher running, with its output in a file.
class Launcher {
 public:
  explicit Launcher(std::vector<std::string> arguments, std::string user_directory = "") {
    static int count = 0;
    path_ = absl::StrCat(::testing::TempDir(), "/main_", getpid(), "_", count++);
    arguments.insert(arguments.begin(), std::getenv("LAUNCH"));
    pid_ = fork();
    if (pid_ == 0) {
      const int fd = open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
      dup2(fd, 1);
      dup2(fd, 2);
      if (user_directory.empty()) {
        unsetenv("BUILD_WORKING_DIRECTORY");
      } else {
        setenv("BUILD_WORKING_DIRECTORY", user_directory.c_str(), 1);
      }
      std::vector<char*> pointers;
      for (std::string& argument : arguments) pointers.push_back(argument.data());
      pointers.push_back(nullptr);
      execv(pointers[0], pointers.data());
      _exit(99);
    }
  }
  ~Launcher() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }

  std::string Output() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // Waits until the output holds `text` `times` times.
  ::testing::AssertionResult WaitFor(absl::string_view text, int times) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      const std::string output = Output();
      int found = 0;
      for (size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) {
        ++found;
      }
      if (found >= times) return ::testing::AssertionSuccess();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return ::testing::AssertionFailure() << "no '" << text << "' in:\n" << Output();
  }

  // Exit code as a shell shows it, or -1 when it does not end.
  int Wait() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  std::string path_;
  pid_t pid_ = -1;
};

// The numbers that follow `word` in the output.
std::vector<pid_t> NumbersAfter(const std::string& output, absl::string_view word) {
  std::vector<pid_t> numbers;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t at = line.find(word);
    int number = 0;
    if (at != absl::string_view::npos && absl::SimpleAtoi(line.substr(at + word.size()), &number)) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

bool Living(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = stat.rfind(')');
  return end != std::string::npos && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}

::testing::AssertionResult AllGone(const std::vector<pid_t>& pids) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (pid_t pid : pids) {
    while (Living(pid)) {
      if (std::chrono::steady_clock::now() > until) {
        return ::testing::AssertionFailure() << "process " << pid << " still lives";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(LaunchProgram, ExitCodes) {
  EXPECT_EQ(Launcher({"-n", "2", "--", "true"}).Wait(), 0);
  EXPECT_EQ(Launcher({"-n", "2", "--", "sh", "-c", "exit 5"}).Wait(), 5);
  EXPECT_EQ(Launcher({"-n", "2", "--", "no-such-program"}).Wait(), 127);
  EXPECT_EQ(Launcher({"-n", "0", "--", "true"}).Wait(), 2);
  EXPECT_EQ(Launcher({"--what"}).Wait(), 2);
  EXPECT_EQ(Launcher({"--help"}).Wait(), 0);
  EXPECT_EQ(Launcher({"--timeout=500ms", "--", "sleep", "100"}).Wait(), 124);
  EXPECT_EQ(Launcher({"-n2", "--expect_exit=1:SIGKILL", "--", "sh", "-c",
                      "test $RANK = 0 || kill -KILL $$"})
                .Wait(),
            0);
}

TEST(LaunchProgram, RunsInTheFolderOfTheUserOfBazelRun) {
  Launcher launcher({"--", "pwd"}, "/usr");
  EXPECT_EQ(launcher.Wait(), 0);
  EXPECT_EQ(launcher.Output(), "[0] /usr\n");
}

TEST(LaunchProgram, SignalsArePassedOn) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Launcher launcher({"-n", "2", "--", "sh", "-c",
                       "trap 'echo stopped; kill $!; exit 3' INT TERM HUP QUIT; sleep 1000 & "
                       "echo ready; wait"});
    ASSERT_TRUE(launcher.WaitFor("] ready", 2));
    kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.Wait(), 3) << launcher.Output();
    EXPECT_TRUE(launcher.WaitFor("] stopped", 2));
    EXPECT_THAT(launcher.Output(), HasSubstr("was passed on"));
  }
}

TEST(LaunchProgram, OrdinarySignalsDoNotEndTheJob) {
  Launcher launcher({"-n", "2", "--", "sh", "-c",
                     "trap 'echo usr1; kill $!; exit 0' USR1; sleep 1000 & echo ready; wait"});
  ASSERT_TRUE(launcher.WaitFor("] ready", 2));
  kill(launcher.pid(), SIGUSR1);
  EXPECT_EQ(launcher.Wait(), 0) << launcher.Output();
  EXPECT_TRUE(launcher.WaitFor("] usr1", 2));
}

TEST(LaunchProgram, ARankThatDiesOfAPassedSignalGives128PlusIt) {
  Launcher launcher({"-n", "2", "--", "sh", "-c", "echo ready; exec sleep 1000"});
  ASSERT_TRUE(launcher.WaitFor("] ready", 2));
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.Wait(), 128 + SIGINT) << launcher.Output();
}

TEST(LaunchProgram, WhoIgnoresAPassedSignalIsKilledAfterTheGrace) {
  Launcher launcher({"-n", "2", "--grace=300ms", "--", "sh", "-c",
                     "trap '' INT TERM; echo ready; while :; do sleep 1000; done"});
  ASSERT_TRUE(launcher.WaitFor("] ready", 2));
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL) << launcher.Output();
}

TEST(LaunchProgram, NothingOutlivesAKilledLauncher) {
  Launcher launcher({"-n", "2", "--", "sh", "-c",
                     "trap '' TERM HUP; sleep 1000 & echo child $!; echo self $$; wait"});
  ASSERT_TRUE(launcher.WaitFor("] self", 2));
  const std::string output = launcher.Output();
  std::vector<pid_t> pids = NumbersAfter(output, "child ");
  for (pid_t pid : NumbersAfter(output, "self ")) pids.push_back(pid);
  ASSERT_EQ(pids.size(), 4u) << output;
  kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(AllGone(pids));
}

TEST(LaunchProgram, AReaderThatGoesEndsTheJob) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const std::string launch = std::getenv("LAUNCH");
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    execl(launch.c_str(), launch.c_str(), "-n", "2", "--", "yes", nullptr);
    _exit(99);
  }
  close(ends[1]);
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGPIPE);
}

TEST(LaunchProgram, AReaderThatStandsStillDoesNotStopTheTimeout) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const std::string launch = std::getenv("LAUNCH");
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    execl(launch.c_str(), launch.c_str(), "-n", "2", "--timeout=1s", "--", "yes", nullptr);
    _exit(99);
  }
  close(ends[1]);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);  // nobody reads
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 124);
  close(ends[0]);
}

}  // namespace
}  // namespace leafpack
