// The whole matrix of dtypes and ops over real connections, failures, and what they leave behind.
#include "distributed/core/backend.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/reduce/reduce.h"
#include "distributed/messages/testing/tested_backend.h"

namespace leafpack {
namespace {

using at::ScalarType;
using testing::TestedBackend;

constexpr absl::Duration kPatience = absl::Minutes(2);

const std::vector<ReduceOpKind> kAllOps = {
    ReduceOpKind::kSum,  ReduceOpKind::kAvg,  ReduceOpKind::kProduct,
    ReduceOpKind::kMin,  ReduceOpKind::kMax,  ReduceOpKind::kBand,
    ReduceOpKind::kBor,  ReduceOpKind::kBxor, ReduceOpKind::kPremulSum};
const std::vector<ScalarType> kAllDtypes = {
    ScalarType::Bool,   ScalarType::Byte,         ScalarType::UInt16,
    ScalarType::UInt32, ScalarType::UInt64,       ScalarType::Char,
    ScalarType::Short,  ScalarType::Int,          ScalarType::Long,
    ScalarType::Half,   ScalarType::BFloat16,     ScalarType::Float,
    ScalarType::Double, ScalarType::ComplexFloat, ScalarType::ComplexDouble,
    ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2};

std::shared_ptr<DataContext> OpenOrDie(c10::intrusive_ptr<c10d::Store> store,
                                       const std::string& prefix, int rank, int size,
                                       absl::Duration timeout = kPatience) {
  DataContextOptions options;
  options.store = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
  options.rank = rank;
  options.size = size;
  options.all_local = true;
  options.timeout = timeout;
  absl::StatusOr<std::shared_ptr<DataContext>> context =
      TestedBackend()->Open(options, absl::Now() + kPatience);
  if (!context.ok()) {
    ADD_FAILURE() << context.status();
    std::abort();
  }
  return *std::move(context);
}

// Runs `body(rank)` in one thread per rank.
void AsThreads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

// Waits in slices, as the engine does.
absl::Status Finish(DataWork& work, absl::Duration patience = kPatience) {
  const absl::Time until = absl::Now() + patience;
  while (absl::Now() < until) {
    absl::StatusOr<bool> done = work.WaitFor(absl::Milliseconds(20));
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the work did not end");
}

LeafView ViewOf(std::vector<char>& bytes, ScalarType dtype) {
  LeafView view;
  view.data = bytes.data();
  view.dtype = dtype;
  view.sizes = {static_cast<int64_t>(bytes.size() / c10::elementSize(dtype))};
  view.strides = {1};
  return view;
}

// Element j of rank r, as bytes: a closed form that every rank can compute. NaN, infinities, zeros of
// both signs and overflowing integers are among them.
template <typename T>
void FillAs(std::vector<char>& bytes, int rank) {
  const int64_t count = static_cast<int64_t>(bytes.size() / sizeof(T));
  for (int64_t j = 0; j < count; ++j) {
    T value{};
    if constexpr (std::is_integral_v<T>) {
      const uint64_t mixed = (static_cast<uint64_t>(j) * 7 + static_cast<uint64_t>(rank) * 13 + 1) *
                             0x9e3779b97f4a7c15ull;
      value = static_cast<T>(mixed >> 7);
    } else {
      double number = (static_cast<double>((j * 5 + rank * 11) % 29) - 14) / 4;
      if (j % 31 == rank) number = std::numeric_limits<double>::quiet_NaN();
      if (j % 37 == rank) number = std::numeric_limits<double>::infinity();
      if (j % 41 == 3) number = rank % 2 == 0 ? 0.0 : -0.0;
      if (j % 43 == 5) number = 1e-6 * (rank + 1);  // denormal in small types
      value = static_cast<T>(static_cast<float>(number));
    }
    std::memcpy(static_cast<void*>(bytes.data() + j * sizeof(T)), &value, sizeof(T));
  }
}

std::vector<char> Fill(ScalarType dtype, int64_t count, int rank) {
  std::vector<char> bytes(count * c10::elementSize(dtype));
  switch (dtype) {
    case ScalarType::Bool:
      for (int64_t j = 0; j < count; ++j) bytes[j] = static_cast<char>((j * 3 + rank * 5) % 4);
      break;
    case ScalarType::Byte:
    case ScalarType::Char:
      FillAs<uint8_t>(bytes, rank);
      break;
    case ScalarType::UInt16:
    case ScalarType::Short:
      FillAs<uint16_t>(bytes, rank);
      break;
    case ScalarType::UInt32:
    case ScalarType::Int:
      FillAs<uint32_t>(bytes, rank);
      break;
    case ScalarType::UInt64:
    case ScalarType::Long:
      FillAs<uint64_t>(bytes, rank);
      break;
    case ScalarType::Half:
      FillAs<c10::Half>(bytes, rank);
      break;
    case ScalarType::BFloat16:
      FillAs<c10::BFloat16>(bytes, rank);
      break;
    case ScalarType::Float8_e4m3fn:
      FillAs<c10::Float8_e4m3fn>(bytes, rank);
      break;
    case ScalarType::Float8_e5m2:
      FillAs<c10::Float8_e5m2>(bytes, rank);
      break;
    case ScalarType::Double:
    case ScalarType::ComplexDouble:
      FillAs<double>(bytes, rank);
      break;
    default:
      FillAs<float>(bytes, rank);
      break;
  }
  return bytes;
}

std::vector<char> Expected(ReduceOpKind op, ScalarType dtype, int64_t count, int size) {
  std::vector<std::vector<char>> inputs;
  std::vector<const void*> pointers;
  for (int r = 0; r < size; ++r) inputs.push_back(Fill(dtype, count, r));
  for (int r = 0; r < size; ++r) pointers.push_back(inputs[r].data());
  std::vector<char> out(count * c10::elementSize(dtype));
  EXPECT_TRUE(ReduceInto(op, dtype, pointers, out.data(), count).ok());
  return out;
}

template <typename T>
std::string FirstDifferenceAs(const std::vector<char>& got, const std::vector<char>& want) {
  for (size_t j = 0; j < got.size() / sizeof(T); ++j) {
    T a, b;
    std::memcpy(static_cast<void*>(&a), got.data() + j * sizeof(T), sizeof(T));
    std::memcpy(static_cast<void*>(&b), want.data() + j * sizeof(T), sizeof(T));
    const double x = static_cast<double>(a), y = static_cast<double>(b);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    return absl::StrCat("element ", j, ": got ", x, ", want ", y);
  }
  return "";
}

// "" when equal: bit by bit, but for the bits of a NaN and the sign of a zero of wide floats.
std::string FirstDifference(ScalarType dtype, const std::vector<char>& got,
                            const std::vector<char>& want) {
  switch (dtype) {
    case ScalarType::Float:
    case ScalarType::ComplexFloat:
      return FirstDifferenceAs<float>(got, want);
    case ScalarType::Double:
    case ScalarType::ComplexDouble:
      return FirstDifferenceAs<double>(got, want);
    default:
      return got == want ? "" : "bits differ";
  }
}

// Every dtype, op and size on one context; the works are all under way at once.
std::string RunMatrix(DataContext& context, int rank, int size) {
  struct Case {
    ReduceOpKind op;
    ScalarType dtype;
    int64_t count;
    std::vector<char> bytes;
    std::unique_ptr<DataWork> work;
  };
  std::vector<Case> cases;
  for (ScalarType dtype : kAllDtypes) {
    for (ReduceOpKind op : kAllOps) {
      if (!TestedBackend()->SupportsAllReduce(dtype, op, c10::DeviceType::CPU).ok()) continue;
      for (int64_t count : {0, 1, 3, 7, 127, 1000}) {
        cases.push_back({op, dtype, count, Fill(dtype, count, rank), nullptr});
      }
    }
  }
  for (Case& c : cases) {
    absl::StatusOr<std::unique_ptr<DataWork>> work =
        context.AllReduce({ViewOf(c.bytes, c.dtype)}, ReduceOp{c.op});
    if (!work.ok()) return work.status().ToString();
    c.work = *std::move(work);
  }
  for (Case& c : cases) {
    const std::string name =
        absl::StrCat(ReduceOpName(c.op), " of ", c10::toString(c.dtype), " x ", c.count, ", rank ",
                     rank, " of ", size, ": ");
    if (absl::Status status = Finish(*c.work); !status.ok()) return name + status.ToString();
    if (!c.work->IsDone()) return name + "not done after WaitFor said so";
    const std::string difference =
        FirstDifference(c.dtype, c.bytes, Expected(c.op, c.dtype, c.count, size));
    if (!difference.empty()) return name + difference;
  }
  return cases.size() > 600 ? "" : absl::StrCat("only ", cases.size(), " cases ran");
}

class MessageBackendRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(MessageBackendRanksTest, WholeMatrixAsThreads) {
  const int size = GetParam();
  auto store = c10::make_intrusive<c10d::HashStore>();
  AsThreads(size, [&](int rank) {
    auto context = OpenOrDie(store, "matrix", rank, size);
    EXPECT_EQ(RunMatrix(*context, rank, size), "");
  });
}

TEST_P(MessageBackendRanksTest, WholeMatrixAsProcesses) {
  const int size = GetParam();
  const std::string path = absl::StrCat(::testing::TempDir(), "/store_", getpid(), "_", size);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto context =
          OpenOrDie(c10::make_intrusive<c10d::FileStore>(path, size), "matrix", rank, size);
      const std::string failure = RunMatrix(*context, rank, size);
      if (!failure.empty()) fprintf(stderr, "%s\n", failure.c_str());
      context.reset();
      _exit(failure.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
  }
  unlink(path.c_str());
}

// Several stages, sizes that no part divides, several views in one work; equal bits on all ranks.
TEST_P(MessageBackendRanksTest, LargeBuffersHaveEqualBitsOnAllRanks) {
  const int size = GetParam();
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (ScalarType dtype : {ScalarType::Float, ScalarType::BFloat16}) {
    for (ReduceOpKind op : {ReduceOpKind::kSum, ReduceOpKind::kMax}) {
      std::vector<std::vector<char>> first(size), second(size);
      const int64_t count = (19 << 20) / static_cast<int64_t>(c10::elementSize(dtype)) + 13;
      AsThreads(size, [&](int rank) {
        auto context = OpenOrDie(
            store, absl::StrCat("large", static_cast<int>(dtype), static_cast<int>(op)), rank, size);
        first[rank] = Fill(dtype, count, rank);
        second[rank] = Fill(dtype, 5, rank);
        auto work = context->AllReduce({ViewOf(first[rank], dtype), ViewOf(second[rank], dtype)},
                                       ReduceOp{op});
        ASSERT_TRUE(work.ok()) << work.status();
        EXPECT_TRUE(Finish(**work).ok());
      });
      EXPECT_EQ(FirstDifference(dtype, first[0], Expected(op, dtype, count, size)), "");
      EXPECT_EQ(FirstDifference(dtype, second[0], Expected(op, dtype, 5, size)), "");
      for (int rank = 1; rank < size; ++rank) {
        EXPECT_TRUE(first[rank] == first[0]) << "rank " << rank;
        EXPECT_TRUE(second[rank] == second[0]) << "rank " << rank;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MessageBackendRanksTest, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

// An element has the same bits alone and inside a larger buffer: here in another part, of another
// owner, where Gloo's own ring would add in another order.
TEST(MessageBackendTest, BitsDoNotDependOnThePlaceInTheBuffer) {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 3000;
  auto store = c10::make_intrusive<c10d::HashStore>();
  AsThreads(kRanks, [&](int rank) {
    auto context = OpenOrDie(store, "place", rank, kRanks);
    std::vector<float> values(kCount);
    for (int64_t j = 0; j < kCount; ++j) {
      values[j] = std::sin(static_cast<float>(j * kRanks + rank)) * std::exp2f(static_cast<float>(j % 17));
    }
    std::vector<char> alone(kCount * sizeof(float));
    std::memcpy(alone.data(), values.data(), alone.size());
    std::vector<char> inside = Fill(ScalarType::Float, 7777, rank + 1);
    inside.insert(inside.end(), alone.begin(), alone.end());
    for (std::vector<char>* bytes : {&alone, &inside}) {
      auto work = context->AllReduce({ViewOf(*bytes, ScalarType::Float)}, ReduceOp::kSum);
      ASSERT_TRUE(work.ok());
      ASSERT_TRUE(Finish(**work).ok());
    }
    EXPECT_EQ(std::memcmp(alone.data(), inside.data() + sizeof(float) * 7777, alone.size()), 0);
  });
}

// A rank that never comes: slices run out without harm, Abort ends the works, and so on both paths.
TEST(MessageBackendTest, AbortEndsWorksInTheMiddle) {
  for (ScalarType dtype : {ScalarType::Float, ScalarType::Half}) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    std::atomic<int> waited{0}, through{0};
    AsThreads(3, [&](int rank) {
      auto context = OpenOrDie(store, "abort", rank, 3);
      if (rank == 2) {
        while (through < 2) absl::SleepFor(absl::Milliseconds(1));
        return;
      }
      auto keep_alive = std::make_shared<std::vector<char>>(Fill(dtype, 100000, rank));
      LeafView view = ViewOf(*keep_alive, dtype);
      view.keep_alive = keep_alive;
      std::vector<std::unique_ptr<DataWork>> works;
      for (int i = 0; i < 5; ++i) {
        auto work = context->AllReduce({view}, ReduceOp::kSum);
        ASSERT_TRUE(work.ok());
        works.push_back(*std::move(work));
      }
      for (int i = 0; i < 3; ++i) {
        absl::StatusOr<bool> done = works[0]->WaitFor(absl::Milliseconds(10));
        ASSERT_TRUE(done.ok()) << done.status();
        EXPECT_FALSE(*done);
        EXPECT_FALSE(works[4]->IsDone());
      }
      ++waited;
      while (waited < 2) absl::SleepFor(absl::Milliseconds(1));
      context->Abort();
      context->Abort();
      for (auto& work : works) {
        const absl::Status status = Finish(*work, absl::Seconds(30));
        // The other rank may have been the first: its connections are gone then.
        EXPECT_TRUE(status.code() == absl::StatusCode::kCancelled ||
                    status.code() == absl::StatusCode::kUnavailable)
            << status;
        EXPECT_TRUE(work->IsDone());
      }
      EXPECT_EQ(context->AllReduce({view}, ReduceOp::kSum).status().code(),
                absl::StatusCode::kCancelled);
      works.clear();
      context.reset();
      view.keep_alive.reset();
      EXPECT_EQ(keep_alive.use_count(), 1) << "memory is held after the context is gone";
      ++through;
    });
  }
}

// Slices that run out many times do not harm: the late rank comes, the result is right.
TEST(MessageBackendTest, SlicesThatRunOutDoNoHarm) {
  for (ScalarType dtype : {ScalarType::Float, ScalarType::BFloat16}) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    AsThreads(2, [&](int rank) {
      auto context = OpenOrDie(store, "slices", rank, 2);
      if (rank == 1) absl::SleepFor(absl::Milliseconds(300));
      std::vector<char> bytes = Fill(dtype, 1000, rank);
      auto work = context->AllReduce({ViewOf(bytes, dtype)}, ReduceOp::kAvg);
      ASSERT_TRUE(work.ok());
      int slices = 0;
      while (true) {
        absl::StatusOr<bool> done = (*work)->WaitFor(absl::Milliseconds(5));
        ASSERT_TRUE(done.ok()) << done.status();
        if (*done) break;
        ++slices;
      }
      EXPECT_GT(slices, rank == 0 ? 10 : -1);
      EXPECT_EQ(FirstDifference(dtype, bytes, Expected(ReduceOpKind::kAvg, dtype, 1000, 2)), "");
    });
  }
}

// A handle that is dropped: Gloo still writes, so the memory lives until it is through.
TEST(MessageBackendTest, DroppedWorkKeepsItsMemory) {
  for (ScalarType dtype : {ScalarType::Float, ScalarType::Half}) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    AsThreads(2, [&](int rank) {
      auto context = OpenOrDie(store, "dropped", rank, 2);
      for (int i = 0; i < 20; ++i) {
        auto memory = std::make_shared<std::vector<char>>(Fill(dtype, 50000, rank));
        LeafView view = ViewOf(*memory, dtype);
        view.keep_alive = std::move(memory);
        ASSERT_TRUE(context->AllReduce({view}, ReduceOp::kAvg).ok());
      }
      std::vector<char> last = Fill(dtype, 10, rank);
      auto work = context->AllReduce({ViewOf(last, dtype)}, ReduceOp::kSum);
      ASSERT_TRUE(work.ok());
      EXPECT_TRUE(Finish(**work).ok());
      EXPECT_EQ(FirstDifference(dtype, last, Expected(ReduceOpKind::kSum, dtype, 10, 2)), "");
    });
  }
}

int CountEntries(const char* directory) {
  int count = 0;
  DIR* dir = opendir(directory);
  if (dir == nullptr) return -1;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

TEST(MessageBackendTest, TwoHundredAbortedContextsLeaveNothingBehind) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  int threads_before = 0, files_before = 0;
  constexpr int kContexts = 200;
  for (int i = -5; i < kContexts; ++i) {
    if (i == 0) {
      threads_before = CountEntries("/proc/self/task");
      files_before = CountEntries("/proc/self/fd");
    }
    std::atomic<int> waiting{0};
    AsThreads(2, [&](int rank) {
      auto context = OpenOrDie(store, absl::StrCat("many", i), rank, 2);
      // Each rank starts a reduction that the other never joins: other sizes would end the process,
      // so one rank only does.
      std::vector<char> bytes(4000);
      std::unique_ptr<DataWork> work;
      if (rank == (i & 1)) {
        auto started = context->AllReduce(
            {ViewOf(bytes, (i & 2) != 0 ? ScalarType::Float : ScalarType::Half)}, ReduceOp::kSum);
        ASSERT_TRUE(started.ok());
        work = *std::move(started);
      }
      ++waiting;
      while (waiting < 2) std::this_thread::yield();
      context->Abort();
      if (work != nullptr) {
        const absl::Status status = Finish(*work, absl::Seconds(30));
        EXPECT_FALSE(status.ok());
        EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      }
    });
  }
  EXPECT_LE(CountEntries("/proc/self/task"), threads_before);
  EXPECT_LE(CountEntries("/proc/self/fd"), files_before);
}

TEST(MessageBackendTest, PeerThatGoesIsUnavailable) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  AsThreads(2, [&](int rank) {
    auto context = OpenOrDie(store, "gone", rank, 2);
    if (rank == 1) {
      absl::SleepFor(absl::Milliseconds(50));
      return;
    }
    std::vector<char> bytes = Fill(ScalarType::Short, 1000, 0);
    auto work = context->AllReduce({ViewOf(bytes, ScalarType::Short)}, ReduceOp::kSum);
    ASSERT_TRUE(work.ok());
    const absl::Status status = Finish(**work);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "group rank 1")) << status;
  });
}

TEST(MessageBackendTest, InterfaceThatDoesNotExist) {
  DataContextOptions options;
  options.store = c10::make_intrusive<c10d::HashStore>();
  options.size = 2;
  options.interface_name = "nosuch0";
  options.timeout = kPatience;
  const auto context = TestedBackend()->Open(options, absl::Now() + kPatience);
  EXPECT_EQ(context.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(context.status().message(), "'nosuch0'")) << context.status();
  // Those that exist are listed.
  EXPECT_TRUE(absl::StrContains(context.status().message(), "lo")) << context.status();
}

TEST(MessageBackendTest, RefusesWhatItCannotDo) {
  const std::unique_ptr<Backend> backend = TestedBackend();
  EXPECT_EQ(backend->SupportsAllReduce(ScalarType::Float, ReduceOpKind::kSum, c10::DeviceType::CUDA)
                .code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(backend->SupportsAllReduce(ScalarType::Int, ReduceOpKind::kAvg, c10::DeviceType::CPU)
                .code(),
            absl::StatusCode::kInvalidArgument);
  auto context = OpenOrDie(c10::make_intrusive<c10d::HashStore>(), "one", 0, 1);
  std::vector<char> bytes(16);
  LeafView broken = ViewOf(bytes, ScalarType::Float);
  broken.strides = {2, 1};
  EXPECT_EQ(context->AllReduce({broken}, ReduceOp::kSum).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(context->AllReduce({ViewOf(bytes, ScalarType::Float)}, ReduceOp::kBand).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace leafpack
