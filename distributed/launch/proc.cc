#include "distributed/launch/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace leafpack {
namespace {

constexpr size_t kMaxThreads = 32;

// Up to 16 KiB of a file in /proc; empty when it cannot be read.
std::string ReadSmallFile(const std::string& path) {
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char buffer[4096];
  ssize_t n;
  while (text.size() < (16 << 10) && (n = read(fd, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return text;
}

std::vector<pid_t> NumericEntries(const std::string& directory) {
  std::vector<pid_t> numbers;
  DIR* dir = opendir(directory.c_str());
  if (dir == nullptr) return numbers;
  while (const dirent* entry = readdir(dir)) {
    int number = 0;
    if (absl::SimpleAtoi(entry->d_name, &number)) numbers.push_back(number);
  }
  closedir(dir);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The fields of a stat file that follow the command's name: state, parent, process group, ...
std::vector<std::string> StatFields(const std::string& stat) {
  const size_t end = stat.rfind(')');  // the name itself may hold anything
  if (end == std::string::npos) return {};
  return absl::StrSplit(absl::string_view(stat).substr(end + 1), ' ', absl::SkipEmpty());
}

absl::string_view StateName(absl::string_view state) {
  if (state == "R") return "running";
  if (state == "S") return "sleeping";
  if (state == "D") return "waiting for the disk or a device";
  if (state == "T") return "stopped";
  if (state == "t") return "stopped by a debugger";
  if (state == "Z") return "ended";
  return state;
}

// The waits that ranks are usually found in.
std::string SyscallName(int64_t number) {
  switch (number) {
    case SYS_futex: return "futex";
    case SYS_ppoll: return "ppoll";
    case SYS_epoll_pwait: return "epoll_pwait";
    case SYS_pselect6: return "pselect";
    case SYS_read: return "read";
    case SYS_write: return "write";
    case SYS_recvfrom: return "recvfrom";
    case SYS_recvmsg: return "recvmsg";
    case SYS_sendmsg: return "sendmsg";
    case SYS_sendto: return "sendto";
    case SYS_accept: return "accept";
    case SYS_connect: return "connect";
    case SYS_wait4: return "wait4";
    case SYS_nanosleep: return "nanosleep";
    case SYS_clock_nanosleep: return "clock_nanosleep";
    case SYS_sched_yield: return "sched_yield";
    case SYS_rt_sigtimedwait: return "sigtimedwait";
    case SYS_rt_sigsuspend: return "sigsuspend";
    case SYS_flock: return "flock";
#ifdef SYS_poll
    case SYS_poll: return "poll";
    case SYS_select: return "select";
    case SYS_epoll_wait: return "epoll_wait";
    case SYS_pause: return "pause";
#endif
    default: return absl::StrCat("system call ", number);
  }
}

std::string DescribeThread(const std::string& directory, pid_t tid) {
  const std::vector<std::string> stat = StatFields(ReadSmallFile(absl::StrCat(directory, "stat")));
  if (stat.empty()) return "";
  const std::string comm = ReadSmallFile(absl::StrCat(directory, "comm"));
  std::string line = absl::StrCat("thread ", tid, " (", absl::StripAsciiWhitespace(comm), "): ",
                                  StateName(stat[0]));
  const std::string syscall = ReadSmallFile(absl::StrCat(directory, "syscall"));
  int64_t number = -1;
  const std::vector<absl::string_view> words = absl::StrSplit(syscall, ' ');
  if (absl::SimpleAtoi(words[0], &number) && number >= 0) {
    absl::StrAppend(&line, " in ", SyscallName(number));
  }
  const std::string wchan = ReadSmallFile(absl::StrCat(directory, "wchan"));
  if (!wchan.empty() && wchan != "0") absl::StrAppend(&line, ", kernel function ", wchan);
  const std::string stack = ReadSmallFile(absl::StrCat(directory, "stack"));
  std::vector<std::string> frames;
  for (absl::string_view frame : absl::StrSplit(stack, '\n', absl::SkipEmpty())) {
    const size_t name = frame.find("] ");
    const absl::string_view rest =
        name == absl::string_view::npos ? frame : frame.substr(name + 2);
    frames.emplace_back(rest.substr(0, rest.find('+')));
    if (frames.size() == 6) break;
  }
  for (size_t i = 0; i < frames.size(); ++i) {
    absl::StrAppend(&line, i == 0 ? ", kernel stack " : " < ", frames[i]);
  }
  return line;
}

}  // namespace

std::vector<std::string> DescribeThreads(pid_t pid) {
  std::vector<std::string> lines;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task/");
  const std::vector<pid_t> threads = NumericEntries(tasks);
  for (pid_t tid : threads) {
    if (lines.size() == kMaxThreads) {
      lines.push_back(absl::StrCat("and ", threads.size() - kMaxThreads, " more threads"));
      break;
    }
    std::string line = DescribeThread(absl::StrCat(tasks, tid, "/"), tid);
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<pid_t> LivingMembers(pid_t pgid) {
  std::vector<pid_t> members;
  for (pid_t pid : NumericEntries("/proc")) {
    const std::vector<std::string> stat =
        StatFields(ReadSmallFile(absl::StrCat("/proc/", pid, "/stat")));
    int group = 0;
    if (stat.size() > 2 && stat[0] != "Z" && stat[0] != "X" &&
        absl::SimpleAtoi(stat[2], &group) && group == pgid) {
      members.push_back(pid);
    }
  }
  return members;
}

}  // namespace leafpack
