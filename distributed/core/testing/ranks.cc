#include "distributed/core/testing/ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/log/absl_check.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace leafpack::testing {

std::vector<Group> MakeGroups(int size, absl::Duration timeout,
                              std::vector<GlobalRank> global_ranks, const std::string& backend) {
  RegisterFakeBackend();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Group> groups;
  for (int r = 0; r < size; ++r) {
    absl::StatusOr<Group> group = Group::Create(store, "group", GroupRank(r), size, global_ranks,
                                                {.backend = backend, .timeout = timeout,
                                                 .interface_name = ""});
    ABSL_CHECK_OK(group.status());
    groups.push_back(*std::move(group));
  }
  return groups;
}

void OnRanks(std::vector<Group>& groups, const std::function<void(int, Group&)>& body) {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] { body(static_cast<int>(r), groups[r]); });
  }
  for (std::thread& thread : threads) thread.join();
}

FakeFaults& Faults(const Group& group) { return dynamic_cast<FakeBackend&>(group.backend()).faults(); }

CallSpec MakeSpec(const CallArgs& args) {
  CallSpec spec;
  spec.name = args.name;
  spec.digest = args.digest;
  spec.soft_digest = args.soft_digest;
  spec.describe = [description = args.description] { return description; };
  spec.deadline = absl::Now() + args.timeout;
  spec.restore = args.restore;
  spec.async = args.async;
  spec.check = args.check;
  return spec;
}

CallSpec MakeFrame(const std::vector<float>& values, const CallArgs& args) {
  CallSpec spec = MakeSpec(args);
  spec.is_frame = true;
  spec.payload.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  spec.reduce = [](absl::Span<const absl::Span<const char>> payloads, absl::Span<char> out) {
    for (size_t at = 0; at + sizeof(float) <= out.size(); at += sizeof(float)) {
      float sum = 0;
      for (absl::Span<const char> payload : payloads) {
        float value = 0;
        std::memcpy(&value, payload.data() + at, sizeof(value));
        sum += value;
      }
      std::memcpy(out.data() + at, &sum, sizeof(sum));
    }
  };
  return spec;
}

std::vector<float> FrameValues(const Call& call) {
  std::vector<float> values(call.frame_result().size() / sizeof(float));
  if (!values.empty()) {
    std::memcpy(values.data(), call.frame_result().data(), values.size() * sizeof(float));
  }
  return values;
}

absl::Status SumFrame(Group& group, std::vector<float>& values, const CallArgs& args) {
  absl::StatusOr<std::shared_ptr<Call>> call = group.engine().Post(MakeFrame(values, args));
  if (!call.ok()) return call.status();
  if (absl::Status status = (*call)->AwaitDecision(args.interrupt); !status.ok()) return status;
  values = FrameValues(**call);
  return absl::OkStatus();
}

absl::Status SumData(Group& group, std::vector<float>& values, const CallArgs& args) {
  absl::StatusOr<std::shared_ptr<Call>> call = group.engine().Post(MakeSpec(args));
  if (!call.ok()) return call.status();
  return RunData(**call, values, args);
}

absl::Status RunData(Call& call, std::vector<float>& values, const CallArgs& args) {
  if (absl::Status status = call.AwaitDecision(args.interrupt); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<DataContext>> context = call.EnterData(args.interrupt);
  if (!context.ok()) return context.status();
  auto buffer = std::make_shared<std::vector<float>>(values);
  LeafView view;
  view.data = buffer->data();
  view.dtype = at::ScalarType::Float;
  view.sizes = {static_cast<int64_t>(buffer->size())};
  view.strides = {1};
  view.keep_alive = buffer;
  absl::StatusOr<std::unique_ptr<DataWork>> work = (*context)->AllReduce({view}, ReduceOp::kSum);
  call.LeaveTurnstile();
  absl::Status status = work.status();
  while (status.ok()) {
    absl::StatusOr<bool> done = (*work)->WaitFor(kWaitSlice);
    if (!done.ok()) status = done.status();
    if (done.ok() && *done) break;
    if (status.ok()) status = call.Poll();
    if (status.ok() && args.interrupt != nullptr && args.interrupt()) {
      status = absl::CancelledError("interrupted");
    }
  }
  if (!args.restore && status.ok()) values = *buffer;
  absl::Status end = call.FinishData(status, {}, args.interrupt);
  if (!end.ok() && work.ok()) {
    // The context is dead, so the work ends soon; the leaves are free after that.
    const absl::Time until = absl::Now() + kPatience;
    while (!(*work)->IsDone()) {
      ABSL_CHECK(absl::Now() < until) << "a work outlived its context";
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  if (args.restore && end.ok()) values = *buffer;
  return end;
}

TempDir::TempDir() {
  const char* base = getenv("TEST_TMPDIR");
  path_ = absl::StrCat(base == nullptr ? "/tmp" : base, "/leafpack.XXXXXX");
  ABSL_CHECK(mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Group MakeFileGroup(const std::string& file, int rank, int size, absl::Duration timeout,
                    const std::string& backend) {
  RegisterFakeBackend();
  absl::StatusOr<Group> group =
      Group::Create(c10::make_intrusive<c10d::FileStore>(file, size), "group", GroupRank(rank), size,
                    {}, {.backend = backend, .timeout = timeout, .interface_name = ""});
  ABSL_CHECK_OK(group.status());
  return *std::move(group);
}

Group MakeTcpGroup(std::atomic<int>& port, int rank, int size, absl::Duration timeout) {
  RegisterFakeBackend();
  c10d::TCPStoreOptions options;
  options.isServer = rank == 0;
  options.waitWorkers = false;
  if (rank != 0) {
    ABSL_CHECK(Eventually([&] { return port != 0; }));
    options.port = static_cast<uint16_t>(port);
  } else {
    options.port = 0;  // the system chooses
  }
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  if (rank == 0) port = store->getPort();
  absl::StatusOr<Group> group =
      Group::Create(store, "group", GroupRank(rank), size, {},
                    {.backend = "fake", .timeout = timeout, .interface_name = ""});
  ABSL_CHECK_OK(group.status());
  return *std::move(group);
}

pid_t Fork(const std::function<int()>& body) {
  fflush(nullptr);
  const pid_t pid = fork();
  ABSL_CHECK(pid >= 0);
  if (pid > 0) return pid;
  int code = 99;
  try {
    code = body();
  } catch (const std::exception& e) {
    fprintf(stderr, "child threw: %s\n", e.what());
  }
  fflush(nullptr);
  _exit(code);
}

int Wait(pid_t pid) {
  const absl::Time until = absl::Now() + kPatience;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (absl::Now() >= until) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return -1;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<int> OnProcesses(int size, const std::function<int(int)>& body) {
  std::vector<pid_t> pids;
  for (int r = 0; r < size; ++r) pids.push_back(Fork([&, r] { return body(r); }));
  std::vector<int> codes;
  for (pid_t pid : pids) codes.push_back(Wait(pid));
  return codes;
}

void* SharedMemory(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ABSL_CHECK(memory != MAP_FAILED);
  return memory;
}

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time until = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() >= until) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

namespace {
int CountEntries(const char* folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    (void)entry;
    ++count;
  }
  return count;
}
}  // namespace

int CountThreads() { return CountEntries("/proc/self/task"); }
int CountDescriptors() { return CountEntries("/proc/self/fd"); }

}  // namespace leafpack::testing
