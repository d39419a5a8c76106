#include "distributed/launch/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

extern char** environ;

namespace leafpack {
namespace {

// Keeper's words: a process group to add, or this.
constexpr pid_t kDone = 0;

// What failed in the child before the program ran.
enum class Step : int { kDirectory, kExec, kHost, kRedirect };
struct StartError {
  Step step;
  int error;
};

std::vector<std::string> BuildEnvironment(const ChildSpec& spec) {
  std::map<std::string, std::string> values;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    values[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  for (const std::string& name : spec.unset) values.erase(name);
  for (const auto& [name, value] : spec.set) values[name] = value;
  std::vector<std::string> entries;
  entries.reserve(values.size());
  for (const auto& [name, value] : values) entries.push_back(absl::StrCat(name, "=", value));
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Only async-signal-safe calls from here to exec: the caller may have threads that held locks.
[[noreturn]] void FailStart(int pipe, Step step) {
  const StartError error = {step, errno};
  (void)!write(pipe, &error, sizeof(error));
  _exit(127);
}

void ResetSignals(const ChildSpec& spec, const sigset_t& mask) {
  for (const auto& [number, action] : spec.restore) sigaction(number, &action, nullptr);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
}

void CloseAllBut(int keep) {
  rlimit limit;
  const int end = getrlimit(RLIMIT_NOFILE, &limit) == 0
                      ? static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 16))
                      : 1024;
#ifdef SYS_close_range
  if ((keep == 0 || syscall(SYS_close_range, 0, keep - 1, 0) == 0) &&
      syscall(SYS_close_range, keep + 1, ~0u, 0) == 0) {
    return;
  }
#endif
  for (int fd = 0; fd < end; ++fd) {
    if (fd != keep) close(fd);
  }
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& program, const std::string& directory) {
  const auto absolute = [&](absl::string_view path) {
    if (directory.empty() || (!path.empty() && path[0] == '/')) return std::string(path);
    return absl::StrCat(directory, "/", path);
  };
  const auto is_file = [](const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  };
  if (program.empty()) return absl::InvalidArgumentError("the name of the program is empty");
  if (program.find('/') != std::string::npos) {
    const std::string path = absolute(program);
    if (!is_file(path)) return absl::NotFoundError(absl::StrCat("no such file: ", path));
    if (access(path.c_str(), X_OK) != 0) {
      return absl::PermissionDeniedError(absl::StrCat("not executable: ", path));
    }
    return path;
  }
  const char* path_variable = std::getenv("PATH");
  const absl::string_view search = path_variable == nullptr ? "/usr/bin:/bin" : path_variable;
  for (absl::string_view folder : absl::StrSplit(search, ':')) {
    const std::string path =
        absl::StrCat(absolute(folder.empty() ? absl::string_view(".") : folder), "/", program);
    if (is_file(path) && access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::NotFoundError(absl::StrCat("'", program, "' is not in PATH; a program in a folder is "
                                          "named with a slash, as in ./", program));
}

absl::StatusOr<Child> StartChild(const ChildSpec& spec) {
  std::vector<int> opened;
  auto close_opened = absl::MakeCleanup([&] {
    for (int fd : opened) close(fd);
  });
  const auto make_pipe = [&](int ends[2]) {
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    opened.push_back(ends[0]);
    opened.push_back(ends[1]);
    return true;
  };
  int out[2], err[2] = {-1, -1}, start[2];
  if (!make_pipe(out) || (!spec.merge_stderr && !make_pipe(err)) || !make_pipe(start)) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0) return absl::ErrnoToStatus(errno, "cannot open /dev/null");
  opened.push_back(null);

  // Everything that allocates happens before the fork.
  std::vector<std::string> environment = BuildEnvironment(spec);
  std::vector<char*> environment_pointers = Pointers(environment);
  std::vector<std::string> arguments = spec.arguments;
  std::vector<char*> argument_pointers = Pointers(arguments);
  const pid_t launcher = getpid();
  std::fflush(nullptr);  // else a body prints it again

  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);  // it died before we asked to die with it
    if (dup2(null, 0) < 0 || dup2(out[1], 1) < 0 ||
        dup2(spec.merge_stderr ? out[1] : err[1], 2) < 0) {
      FailStart(start[1], Step::kRedirect);
    }
    if (!spec.directory.empty() && chdir(spec.directory.c_str()) != 0) {
      FailStart(start[1], Step::kDirectory);
    }
    if (spec.hosts != nullptr && !spec.hosts->Enter(spec.host)) FailStart(start[1], Step::kHost);
    ResetSignals(spec, mask);
    if (!spec.program.empty()) {
      execve(spec.program.c_str(), argument_pointers.data(), environment_pointers.data());
      FailStart(start[1], Step::kExec);
    }
    for (int fd : opened) close(fd);
    for (int fd : spec.close_in_child) close(fd);
    for (const std::string& name : spec.unset) unsetenv(name.c_str());
    for (const auto& [name, value] : spec.set) setenv(name.c_str(), value.c_str(), 1);
    const int code = spec.body();
    std::fflush(nullptr);
    _exit(code);
  }
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  if (pid < 0) return absl::ErrnoToStatus(fork_error, "cannot start a process");
  setpgid(pid, pid);  // whoever comes first: the group exists before we signal it

  close(start[1]);
  opened.erase(std::find(opened.begin(), opened.end(), start[1]));
  StartError error;
  ssize_t n;
  do {
    n = read(start[0], &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof(error))) {
    waitpid(pid, nullptr, 0);
    switch (error.step) {
      case Step::kDirectory:
        return absl::ErrnoToStatus(error.error,
                                   absl::StrCat("cannot change to the folder ", spec.directory));
      case Step::kExec:
        return absl::ErrnoToStatus(error.error, absl::StrCat("cannot run ", spec.program));
      case Step::kHost:
        return absl::ErrnoToStatus(error.error, absl::StrCat("cannot move a rank to host ", spec.host));
      case Step::kRedirect:
        return absl::ErrnoToStatus(error.error, "cannot redirect a rank's output");
    }
  }
  Child child;
  child.pid = pid;
  child.out = out[0];
  child.err = err[0];
  for (int fd : {child.out, child.err}) {
    if (fd < 0) continue;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    opened.erase(std::find(opened.begin(), opened.end(), fd));
  }
  return child;
}

absl::StatusOr<Keeper> Keeper::Start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  const pid_t pid = fork();
  if (pid == 0) {
    // All signals stay blocked; a session of its own keeps it clear of the terminal's.
    setsid();
    CloseAllBut(ends[0]);
    pid_t groups[4096];
    size_t count = 0;
    pid_t word;
    while (read(ends[0], &word, sizeof(word)) == static_cast<ssize_t>(sizeof(word))) {
      if (word == kDone) _exit(0);
      if (count < sizeof(groups) / sizeof(groups[0])) groups[count++] = word;
    }
    for (size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
    _exit(0);
  }
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  close(ends[0]);
  if (pid < 0) {
    close(ends[1]);
    return absl::ErrnoToStatus(error, "cannot start a process");
  }
  return Keeper(pid, ends[1]);
}

void Keeper::Add(pid_t pgid) { (void)!write(pipe_, &pgid, sizeof(pgid)); }

void Keeper::Done() {
  if (pipe_ < 0) return;
  (void)!write(pipe_, &kDone, sizeof(kDone));
  close(pipe_);
  pipe_ = -1;
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace leafpack
