// Processes that make a group from the environment and reduce a tree over each of the host's backends.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

#include "distributed/distributed.h"
#include "tensordict/tensordict.h"

namespace leafpack {
namespace {

// Small whole numbers, exact in every dtype here: element j of rank r is (j mod 13) + r.
at::Tensor Leaf(at::ScalarType dtype, int64_t elements, int64_t rank) {
  return at::arange(elements, at::kLong).remainder(13).add(rank).to(dtype);
}

class EveryBackend : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryBackend, SumsATree) {
  GroupOptions options;
  options.backend = GetParam();
  absl::StatusOr<Group> group = GroupFromEnvironment(options);
  ASSERT_TRUE(group.ok()) << group.status();
  const int64_t rank = group->rank().value();
  const int64_t size = group->size();

  // The small tree rides on the control channel; the large one is messages of the backend.
  for (const int64_t elements : {5, 200'000}) {
    SCOPED_TRACE(elements);
    TensorDict tree;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      ASSERT_TRUE(tree.Set({"layer", c10::toString(dtype)}, Leaf(dtype, elements, rank)).ok());
    }
    ASSERT_TRUE(tree.Set("scalar", at::full({}, 2 * rank, at::kDouble)).ok());

    const absl::Status status = AllReduce(tree, *group);
    ASSERT_TRUE(status.ok()) << status;

    const int64_t ranks = size * (size - 1) / 2;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      const at::Tensor sum = Leaf(at::kLong, elements, 0).mul(size).add(ranks).to(dtype);
      EXPECT_TRUE(at::equal(tree.Get({"layer", c10::toString(dtype)}).value(), sum)) << dtype;
    }
    EXPECT_EQ(tree.Get("scalar").value().item().toDouble(), static_cast<double>(2 * ranks));
  }
}

// A difference between the ranks' trees is found before data moves, and its path named.
TEST_P(EveryBackend, NamesWhatDiffers) {
  GroupOptions options;
  options.backend = GetParam();
  absl::StatusOr<Group> group = GroupFromEnvironment(options);
  ASSERT_TRUE(group.ok()) << group.status();
  const int64_t rank = group->rank().value();
  TensorDict tree;
  ASSERT_TRUE(tree.Set({"layer", "same"}, Leaf(at::kFloat, 3, rank)).ok());
  ASSERT_TRUE(tree.Set({"layer", "other"}, Leaf(at::kFloat, 3 + rank, rank)).ok());
  const absl::Status status = AllReduce(tree, *group);
  ASSERT_FALSE(status.ok());
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch) << status;
  EXPECT_EQ(details.path, "layer.other") << status;
}

INSTANTIATE_TEST_SUITE_P(OfTheHost, EveryBackend, ::testing::Values("gloo", "shm", "socket"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace leafpack
