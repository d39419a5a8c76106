// The backend as groups see it, with ranks that share memory and with ranks that do not: the same views give
// the same values either way.
#include "distributed/backends/shm/shm_backend.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/backend.h"
#include "distributed/core/reduce_op.h"

namespace leafpack {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr int kRanks = 3;

// Shows a Unix name for rank 0 that nobody listens on, as if the rank were in another network namespace.
class ApartStore : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string& key) override {
    if (!absl::EndsWith(key, "name/0")) return c10d::HashStore::get(key);
    const std::string text = "leafpack-nobody 00112233445566778899aabbccddeeff";
    return {text.begin(), text.end()};
  }
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::reclaim_copy(this);
  }
};

absl::Status Await(absl::StatusOr<std::unique_ptr<DataWork>> work) {
  if (!work.ok()) return work.status();
  const absl::Time until = absl::Now() + kPatience;
  while (absl::Now() < until) {
    const absl::StatusOr<bool> done = (*work)->WaitFor(absl::Milliseconds(50));
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the test ran out of patience");
}

using Body = std::function<void(int rank, const absl::StatusOr<std::shared_ptr<DataContext>>&)>;

void OnRanks(const c10::intrusive_ptr<c10d::Store>& store, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("shm");
      ASSERT_TRUE(backend.ok()) << backend.status();
      DataContextOptions options;
      options.store = store;
      options.rank = rank;
      options.size = kRanks;
      options.all_local = true;
      options.timeout = kPatience;
      body(rank, (*backend)->Open(options, absl::Now() + kPatience));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

LeafView ViewOf(void* data, at::ScalarType dtype, std::vector<int64_t> sizes,
                std::vector<int64_t> strides) {
  LeafView view;
  view.data = data;
  view.dtype = dtype;
  view.sizes = std::move(sizes);
  view.strides = std::move(strides);
  return view;
}

// Small, large, strided and empty leaves of two dtypes, whose strides differ between ranks.
void MoveAll(int rank, DataContext& context) {
  const int64_t step = 1 + rank % 2;
  std::vector<float> small(100), large(200'000),
      strided(static_cast<size_t>(200'000 * step), -1.0f), tiny(3);
  std::vector<int64_t> longs(500);
  for (size_t j = 0; j < small.size(); ++j) small[j] = static_cast<float>(j % 9 * (rank + 1));
  for (size_t j = 0; j < large.size(); ++j) {
    large[j] = static_cast<float>(j % 11 * (rank + 1));
    strided[j * static_cast<size_t>(step)] = static_cast<float>(j % 13 * (rank + 1));
  }
  for (size_t j = 0; j < longs.size(); ++j) longs[j] = static_cast<int64_t>(j) * (rank + 1);
  for (float& value : tiny) value = static_cast<float>(rank);
  std::vector<LeafView> views = {
      ViewOf(small.data(), at::kFloat, {10, 10}, {1, 10}),
      ViewOf(large.data(), at::kFloat, {200'000}, {1}),
      ViewOf(small.data(), at::kFloat, {0, 3}, {3, 1}),
      ViewOf(strided.data(), at::kFloat, {200'000}, {step}),
      ViewOf(longs.data(), at::kLong, {500}, {1}),
      ViewOf(tiny.data(), at::kFloat, {3}, {1}),
  };
  absl::Status status = Await(context.AllReduce(views, ReduceOp::kSum));
  ASSERT_TRUE(status.ok()) << status;
  constexpr int kFactor = kRanks * (kRanks + 1) / 2;
  for (size_t j = 0; j < small.size(); ++j) ASSERT_EQ(small[j], kFactor * static_cast<float>(j % 9));
  for (size_t j = 0; j < large.size(); ++j) {
    ASSERT_EQ(large[j], kFactor * static_cast<float>(j % 11));
    ASSERT_EQ(strided[j * static_cast<size_t>(step)], kFactor * static_cast<float>(j % 13));
    if (step == 2) {
      ASSERT_EQ(strided[j * 2 + 1], -1.0f) << "between the elements";
    }
  }
  for (size_t j = 0; j < longs.size(); ++j) ASSERT_EQ(longs[j], kFactor * static_cast<int64_t>(j));
  for (const float value : tiny) ASSERT_EQ(value, kRanks * (kRanks - 1) / 2.0f);

  // Each sends a strided and a contiguous view to its successor.
  std::vector<float> out(2000, static_cast<float>(rank)), in(3000, -1.0f);
  std::vector<Transfer> sends, receives;
  sends.push_back({(rank + 1) % kRanks,
                   {ViewOf(out.data(), at::kFloat, {500}, {2}),
                    ViewOf(out.data() + 1000, at::kFloat, {1000}, {1})}});
  receives.push_back({(rank + kRanks - 1) % kRanks,
                      {ViewOf(in.data(), at::kFloat, {500}, {3}),
                       ViewOf(in.data() + 1500, at::kFloat, {1000}, {1})}});
  status = Await(context.Exchange(std::move(sends), std::move(receives)));
  ASSERT_TRUE(status.ok()) << status;
  const float from = static_cast<float>((rank + kRanks - 1) % kRanks);
  for (size_t j = 0; j < in.size(); ++j) {
    const bool received = j < 1500 ? j % 3 == 0 : j < 2500;
    ASSERT_EQ(in[j], received ? from : -1.0f) << j;
  }
}

TEST(ShmBackendTest, ViewsOfEveryKindThroughSharedMemory) {
  OnRanks(c10::make_intrusive<c10d::HashStore>(), [](int rank, const auto& context) {
    ASSERT_TRUE(context.ok()) << context.status();
    MoveAll(rank, **context);
  });
}

TEST(ShmBackendTest, RanksThatAreApartUseAnotherBackendOrSayWhy) {
  const std::vector<std::string> names = BackendNames();
  const bool has_gloo = std::find(names.begin(), names.end(), "gloo") != names.end();
  EXPECT_EQ(has_gloo, std::getenv("EXPECT_GLOO") != nullptr);
  OnRanks(c10::make_intrusive<ApartStore>(), [&](int rank, const auto& context) {
    if (has_gloo) {
      ASSERT_TRUE(context.ok()) << context.status();
      MoveAll(rank, **context);
      return;
    }
    EXPECT_EQ(context.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(context.status().message(), "group rank 1: cannot reach"))
        << context.status();
    EXPECT_TRUE(absl::StrContains(context.status().message(), "gloo")) << context.status();
  });
}

}  // namespace
}  // namespace leafpack
