// What is this backend's own; the rest is distributed/messages/testing/backend_tests.cc.
#include "distributed/backends/socket/socket_backend.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

std::shared_ptr<DataContext> Open(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  DataContextOptions options;
  options.store = store;
  options.rank = rank;
  options.size = 2;
  options.timeout = kPatience;
  return SocketBackend().Open(options, absl::Now() + kPatience).value();
}

absl::Status Finish(DataWork& work) {
  for (const absl::Time until = absl::Now() + kPatience; absl::Now() < until;) {
    const absl::StatusOr<bool> done = work.WaitFor(absl::Milliseconds(20));
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the work did not end");
}

LeafView View(float* data, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  LeafView view;
  view.data = data;
  view.dtype = at::ScalarType::Float;
  view.sizes = std::move(sizes);
  view.strides = std::move(strides);
  return view;
}

// Leaves that lie apart are sent and received where they are, whatever lies between them; the ranks need not
// agree on where that is, nor on which leaves are strided.
TEST(SocketBackendTest, LeavesStayWhereTheyAre) {
  constexpr int64_t kLeaves = 700, kNumel = 1500, kGap = 7;
  auto store = c10::make_intrusive<c10d::HashStore>();
  const auto value = [](int64_t leaf, int64_t i, int rank) {
    return static_cast<float>((leaf * 31 + i) % 1000 + rank);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::shared_ptr<DataContext> context = Open(store, rank);
      for (const int64_t step : {1, rank == 0 ? 1 : 2}) {
        const int64_t room = kNumel * step + kGap;
        std::vector<float> memory(static_cast<size_t>(kLeaves * room), -1);
        std::vector<LeafView> views;
        for (int64_t leaf = 0; leaf < kLeaves; ++leaf) {
          float* data = memory.data() + leaf * room;
          for (int64_t i = 0; i < kNumel; ++i) data[i * step] = value(leaf, i, rank);
          views.push_back(View(data, {kNumel}, {step}));
        }
        auto work = context->AllReduce(views, ReduceOp::kSum);
        ASSERT_TRUE(work.ok()) << work.status();
        const absl::Status status = Finish(**work);
        ASSERT_TRUE(status.ok()) << status;
        for (int64_t leaf = 0; leaf < kLeaves; ++leaf) {
          for (int64_t j = 0; j < room; ++j) {
            const bool element = j % step == 0 && j / step < kNumel;
            const float expected =
                element ? value(leaf, j / step, 0) + value(leaf, j / step, 1) : -1;
            ASSERT_EQ(memory[static_cast<size_t>(leaf * room + j)], expected) << leaf << " " << j;
          }
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(SocketBackendTest, ARankThatNeverComesIsADeadline) {
  DataContextOptions options;
  options.store = c10::make_intrusive<c10d::HashStore>();
  options.size = 2;
  options.timeout = kPatience;
  const absl::Time start = absl::Now();
  const auto context = SocketBackend().Open(options, start + absl::Milliseconds(300));
  EXPECT_EQ(context.status().code(), absl::StatusCode::kDeadlineExceeded) << context.status();
  EXPECT_NE(context.status().message().find("group rank 1"), std::string::npos) << context.status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST(SocketBackendTest, IsKnownByName) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("socket");
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->name(), "socket");
  EXPECT_GT((*backend)->Cost(4).per_message, 0);
}

}  // namespace
}  // namespace leafpack
