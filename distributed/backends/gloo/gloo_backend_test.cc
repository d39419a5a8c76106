// What is Gloo's own; the rest is distributed/messages/testing/backend_tests.cc.
#include "distributed/backends/gloo/gloo_backend.h"

#include <cstdlib>
#include <memory>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/backends/gloo/interfaces.h"

namespace leafpack {
namespace {

TEST(GlooBackendTest, RankThatNeverConnectsIsADeadline) {
  DataContextOptions options;
  options.store = c10::make_intrusive<c10d::HashStore>();
  options.size = 2;
  options.all_local = true;
  options.timeout = absl::Minutes(2);
  const absl::Time start = absl::Now();
  const auto context = GlooBackend().Open(options, start + absl::Milliseconds(300));
  EXPECT_EQ(context.status().code(), absl::StatusCode::kDeadlineExceeded) << context.status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST(GlooBackendTest, ChoiceOfInterface) {
  using gloo_internal::ChooseInterface;
  EXPECT_EQ(ChooseInterface("lo", false).value(), "lo");
  EXPECT_EQ(ChooseInterface("", true).value(), "lo");
  ASSERT_EQ(setenv("GLOO_SOCKET_IFNAME", "lo,other0", 1), 0);
  EXPECT_EQ(ChooseInterface("", false).value(), "lo");
  ASSERT_EQ(setenv("GLOO_SOCKET_IFNAME", "nosuch1", 1), 0);
  EXPECT_TRUE(absl::StrContains(ChooseInterface("", false).status().message(),
                                "'nosuch1' (from GLOO_SOCKET_IFNAME)"));
  ASSERT_EQ(unsetenv("GLOO_SOCKET_IFNAME"), 0);
  EXPECT_EQ(ChooseInterface("", false).value(), "");
}

TEST(GlooBackendTest, IsKnownByName) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("gloo");
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->name(), "gloo");
  EXPECT_GT((*backend)->Cost(4).per_message, 0);
}

}  // namespace
}  // namespace leafpack
