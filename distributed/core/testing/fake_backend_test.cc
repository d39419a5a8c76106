// The backend of the engine's tests must itself be right.
#include "distributed/core/testing/fake_backend.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/testing/exchange_checks.h"
#include "testing/threads.h"

namespace leafpack::testing {
namespace {

std::shared_ptr<DataContext> OpenOrDie(FakeBackend& backend,
                                       const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size) {
  DataContextOptions options;
  options.store = store;
  options.rank = rank;
  options.size = size;
  auto context = backend.Open(options, absl::Now() + absl::Minutes(2));
  EXPECT_TRUE(context.ok()) << context.status();
  return context.value();
}

class FakeBackendTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FakeBackendTest, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

TEST_P(FakeBackendTest, Exchanges) {
  const int size = GetParam();
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(size, [&](int rank) {
    FakeBackend backend;
    auto context = OpenOrDie(backend, store, rank, size);
    EXPECT_EQ(CheckExchanges(*context, rank, size), "");
  });
}

TEST(FakeBackendTest, AbortEndsExchanges) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> through{0};
  RunRanksAsThreads(3, [&](int rank) {
    FakeBackend backend;
    auto context = OpenOrDie(backend, store, rank, 3);
    if (rank < 2) {
      EXPECT_EQ(CheckExchangeAbort(std::move(context), rank, 3), "");
      EXPECT_EQ(backend.faults().works, 0);
      ++through;
    }
    while (through < 2) absl::SleepFor(absl::Milliseconds(1));
  });
}

TEST(FakeBackendTest, FaultsThatWereOrderedHitExchanges) {
  FakeBackend backend;
  auto context = OpenOrDie(backend, c10::make_intrusive<c10d::HashStore>(), 0, 1);
  backend.faults().fail_next_op = true;
  auto work = context->Exchange({}, {});
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_EQ(Finish(**work).code(), absl::StatusCode::kInternal);
  backend.faults().stall_next_op = true;
  work = context->Exchange({}, {});
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_EQ(Finish(**work, absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
  work = context->Exchange({}, {});
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_TRUE(Finish(**work).ok());
}

}  // namespace
}  // namespace leafpack::testing
