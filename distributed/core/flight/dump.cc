#include "distributed/core/flight/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/absl_log.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/thread.h"
#include "distributed/core/flight/json.h"

namespace leafpack {
namespace {

constexpr int kFormatVersion = 1;
// Errors that follow each other faster are written together.
constexpr int64_t kErrorPause = 100'000'000;

int64_t ClockNanos(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What is asked for, and what was put off. One for each fork generation, never destroyed: a mutex may
// be held at a fork by a thread that the child does not have.
struct Settings {
  Settings(uint64_t g, const Settings* parent) : generation(g) {
    if (parent != nullptr) {
      on_error.store(parent->on_error.load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
  }
  const uint64_t generation;
  // Folders are never freed: errors are rare, and settings rarer.
  std::atomic<const std::string*> on_error{nullptr};
  std::atomic<bool> from_environment{false};
  absl::Mutex mu;
  int64_t written_at ABSL_GUARDED_BY(mu) = 0;
  bool put_off ABSL_GUARDED_BY(mu) = false;
  std::string put_off_reason ABSL_GUARDED_BY(mu);
  std::string on_signal ABSL_GUARDED_BY(mu);  // folder
  int signo ABSL_GUARDED_BY(mu) = 0;
};

Settings& TheSettings() {
  static std::atomic<Settings*> current{nullptr};
  Settings* settings = current.load(std::memory_order_acquire);
  while (settings == nullptr || settings->generation != ForkGeneration()) {
    auto* fresh = new Settings(ForkGeneration(), settings);
    if (current.compare_exchange_strong(settings, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *settings;
}

const char* NonEmpty(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// The rank that the file is named after: of the job, as the groups know it, else as the launcher does.
int ProcessRank(const std::vector<std::shared_ptr<const FlightRecorder>>& recorders) {
  int rank = 0;
  if (const char* text = NonEmpty("RANK"); text != nullptr && absl::SimpleAtoi(text, &rank)) {
    return rank;
  }
  if (recorders.empty()) return 0;
  const FlightRecorder::Info& info = recorders.front()->info();
  return info.global_ranks.at(static_cast<size_t>(info.rank));
}

std::string Render(const std::vector<std::shared_ptr<const FlightRecorder>>& recorders,
                   std::string_view reason) {
  const int64_t wall = ClockNanos(CLOCK_REALTIME);
  const int64_t to_wall = wall - ClockNanos(CLOCK_MONOTONIC);
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  JsonWriter json;
  const auto time = [&](std::string_view key, int64_t nanos) {
    if (nanos == 0) return;
    json.Key(key).Raw(absl::StrFormat("%d.%06d", (nanos + to_wall) / 1'000'000'000,
                                      (nanos + to_wall) % 1'000'000'000 / 1000));
  };
  json.BeginObject();
  json.Key("leafpack_flight").Int(kFormatVersion);
  json.Key("reason").String(reason);
  json.Key("rank").Int(ProcessRank(recorders));
  json.Key("pid").Int(getpid());
  json.Key("host").String(host);
  time("time", wall - to_wall);
  json.Key("groups").BeginArray();
  for (const std::shared_ptr<const FlightRecorder>& recorder : recorders) {
    const FlightRecorder::Info& info = recorder->info();
    json.BeginObject();
    json.Key("group").String(info.group);
    json.Key("session").String(recorder->session());
    json.Key("rank").Int(info.global_ranks.at(static_cast<size_t>(info.rank)));
    json.Key("group_rank").Int(info.rank);
    json.Key("ranks").BeginArray();
    for (int rank : info.global_ranks) json.Int(rank);
    json.EndArray();
    json.Key("backend").String(info.backend);
    json.Key("closed").Bool(recorder->closed());
    const std::vector<FlightCall> calls = recorder->Calls();
    json.Key("recorded").Int(static_cast<int64_t>(recorder->total()));
    json.Key("calls").BeginArray();
    for (const FlightCall& call : calls) {
      json.BeginObject();
      json.Key("index").Int(static_cast<int64_t>(call.index));
      json.Key("number").Int(static_cast<int64_t>(call.number));
      json.Key("kind").String(call.kind);
      if (!call.name.empty()) json.Key("name").String(call.name);
      if (call.peer >= 0) json.Key("peer").Int(call.peer);
      if (call.tag >= 0) json.Key("tag").Int(call.tag);
      json.Key("leaves").Int(call.leaves);
      json.Key("bytes").Int(call.bytes);
      if (call.digest != 0) {
        json.Key("digest").String(absl::StrFormat("%016x%016x", absl::Uint128High64(call.digest),
                                                  absl::Uint128Low64(call.digest)));
      }
      json.Key("epoch").Int(call.epoch);
      if (call.async) json.Key("async").Bool(true);
      if (call.frame) json.Key("frame").Bool(true);
      json.Key("state").String(FlightStateName(call.state));
      if (!call.reason.empty()) json.Key("error").String(call.reason);
      time("posted", call.posted);
      time("agreed", call.agreed);
      time("in_data", call.in_data);
      time("ended", call.ended);
      json.EndObject();
    }
    json.EndArray();
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
  return std::move(json).Take();
}

absl::Status ErrnoError(int error, std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " '", path, "'"));
}

absl::Status WriteFile(const std::string& path, std::string_view text) {
  const std::string fresh = absl::StrCat(path, ".new");
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoError(errno, "cannot write", fresh);
  int error = 0;
  while (!text.empty() && error == 0) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  close(fd);
  if (error == 0 && rename(fresh.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(fresh.c_str());
  return ErrnoError(error, "cannot write", path);
}

// Under the mutex of the settings: two writers would share the unfinished file.
absl::StatusOr<std::string> DumpTo(const std::string& folder, std::string_view reason) {
  if (folder.empty()) return absl::InvalidArgumentError("the folder for a flight record is empty");
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoError(errno, "cannot make the folder", folder);
  }
  const std::vector<std::shared_ptr<const FlightRecorder>> recorders = FlightRecorders();
  const std::string path =
      absl::StrCat(folder, "/flight-rank", ProcessRank(recorders), "-", getpid(), ".json");
  absl::Status status = WriteFile(path, Render(recorders, reason));
  if (!status.ok()) return status;
  return path;
}

void WriteErrorLocked(Settings& settings, const std::string& folder, std::string_view reason)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(settings.mu) {
  settings.put_off = false;
  absl::StatusOr<std::string> path = DumpTo(folder, reason);
  if (!path.ok()) ABSL_LOG(WARNING) << "leafpack: no flight record: " << path.status().message();
  settings.written_at = ClockNanos(CLOCK_MONOTONIC);
}

// ---- signals

// What the handler may touch: lock-free atomics alone.
std::atomic<int> wake_fd{-1};
std::atomic<uint64_t> wake_generation{0};
std::atomic<void (*)(int, siginfo_t*, void*)> earlier_action{nullptr};
std::atomic<void (*)(int)> earlier_handler{nullptr};

void OnSignal(int signo, siginfo_t* info, void* context) {
  const int error = errno;
  const int fd = wake_fd.load(std::memory_order_acquire);
  // A child has neither the thread nor, any more, the descriptor.
  if (fd >= 0 && wake_generation.load(std::memory_order_relaxed) == ForkGeneration()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof(one));
  }
  if (auto* action = earlier_action.load(std::memory_order_acquire)) {
    action(signo, info, context);
  } else if (auto* handler = earlier_handler.load(std::memory_order_acquire)) {
    handler(signo);
  }
  errno = error;
}

void DumpAtSignals(int fd) {
  while (true) {
    uint64_t count = 0;
    if (read(fd, &count, sizeof(count)) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    Settings& settings = TheSettings();
    absl::MutexLock lock(&settings.mu);
    absl::StatusOr<std::string> path =
        DumpTo(settings.on_signal, absl::StrCat("signal ", settings.signo));
    if (path.ok()) {
      ABSL_LOG(INFO) << "leafpack: flight record in " << *path;
    } else {
      ABSL_LOG(WARNING) << "leafpack: no flight record: " << path.status().message();
    }
  }
}

// The thread and its eventfd, made once for each process. They live as long as it does.
absl::Status StartSignalThread(Settings& settings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(settings.mu) {
  if (wake_fd.load() >= 0 && wake_generation.load() == settings.generation) return absl::OkStatus();
  auto* fd = new TrackedFd(TrackedFd::Open([] { return eventfd(0, EFD_CLOEXEC); }));
  if (!fd->valid()) {
    delete fd;
    return absl::ErrnoToStatus(errno, "an eventfd for the flight recorder's signal");
  }
  absl::StatusOr<std::thread> thread =
      StartThread("leafpack-flight", [number = fd->get()] { DumpAtSignals(number); });
  if (!thread.ok()) {
    delete fd;
    return thread.status();
  }
  thread->detach();
  wake_generation.store(settings.generation);
  wake_fd.store(fd->get(), std::memory_order_release);
  return absl::OkStatus();
}

struct SignalName {
  std::string_view name;
  int signo;
};
constexpr SignalName kSignalNames[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP},
                                       {"QUIT", SIGQUIT}, {"WINCH", SIGWINCH}, {"URG", SIGURG}};

void SetUpFromEnvironment() {
  Settings& settings = TheSettings();
  if (settings.from_environment.exchange(true)) return;
  const char* folder = NonEmpty("LEAFPACK_FLIGHT_DIR");
  if (folder != nullptr && settings.on_error.load() == nullptr) DumpFlightOnError(folder);
  const char* text = NonEmpty("LEAFPACK_FLIGHT_SIGNAL");
  if (text == nullptr) return;
  int signo = 0;
  if (!absl::SimpleAtoi(text, &signo)) {
    const std::string_view name = absl::StripPrefix(text, "SIG");
    for (const SignalName& known : kSignalNames) {
      if (name == known.name) signo = known.signo;
    }
  }
  absl::Status status = DumpFlightOnSignal(signo, folder == nullptr ? "." : folder);
  if (!status.ok()) {
    ABSL_LOG(WARNING) << "leafpack: LEAFPACK_FLIGHT_SIGNAL is '" << text << "': " << status.message();
  }
}

}  // namespace

std::string FlightRecord(std::string_view reason) { return Render(FlightRecorders(), reason); }

absl::StatusOr<std::string> DumpFlight(const std::string& folder, std::string_view reason) {
  Settings& settings = TheSettings();
  absl::MutexLock lock(&settings.mu);
  return DumpTo(folder, reason);
}

void DumpFlightOnError(std::string folder) {
  TheSettings().on_error.store(folder.empty() ? nullptr : new std::string(std::move(folder)),
                               std::memory_order_release);
}

absl::Status DumpFlightOnSignal(int signo, std::string folder) {
  switch (signo) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
      return absl::InvalidArgumentError(absl::StrCat("signal ", signo, " tells of a crash"));
    default:
      break;
  }
  if (folder.empty()) return absl::InvalidArgumentError("the folder for a flight record is empty");
  Settings& settings = TheSettings();
  absl::MutexLock lock(&settings.mu);
  if (absl::Status status = StartSignalThread(settings); !status.ok()) return status;
  struct sigaction action = {};
  struct sigaction earlier = {};
  if (sigaction(signo, nullptr, &earlier) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("signal ", signo, " cannot be caught"));
  }
  if ((earlier.sa_flags & SA_SIGINFO) == 0 || earlier.sa_sigaction != &OnSignal) {
    const bool extended = (earlier.sa_flags & SA_SIGINFO) != 0;
    const bool own = !extended && earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN;
    earlier_action.store(extended ? earlier.sa_sigaction : nullptr);
    earlier_handler.store(own ? earlier.sa_handler : nullptr);
    action.sa_sigaction = &OnSignal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(signo, &action, nullptr) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("signal ", signo, " cannot be caught"));
    }
  }
  settings.on_signal = std::move(folder);
  settings.signo = signo;
  return absl::OkStatus();
}

std::shared_ptr<FlightRecorder> NewFlightRecorder(FlightRecorder::Info info) {
  SetUpFromEnvironment();
  return FlightRecorder::Create(std::move(info));
}

void NoteFlightError(const absl::Status& status) {
  Settings& settings = TheSettings();
  const std::string* folder = settings.on_error.load(std::memory_order_acquire);
  if (folder == nullptr) return;
  absl::MutexLock lock(&settings.mu);
  const std::string reason = absl::StrCat("error: ", status.message());
  if (settings.written_at != 0 &&
      ClockNanos(CLOCK_MONOTONIC) - settings.written_at < kErrorPause) {
    settings.put_off = true;
    settings.put_off_reason = reason;
    return;
  }
  WriteErrorLocked(settings, *folder, reason);
}

void FlushFlightErrors() {
  Settings& settings = TheSettings();
  const std::string* folder = settings.on_error.load(std::memory_order_acquire);
  if (folder == nullptr) return;
  absl::MutexLock lock(&settings.mu);
  if (settings.put_off) WriteErrorLocked(settings, *folder, settings.put_off_reason);
}

}  // namespace leafpack
