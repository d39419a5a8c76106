// Ranks average a tree, and are told when their trees differ.
#include "app/average.h"

#include <string>

#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

TEST(Average, IsTheMeanOverRanks) {
  absl::StatusOr<leafpack::Group> group = leafpack::GroupFromEnvironment();
  ASSERT_TRUE(group.ok()) << group.status();
  const int rank = group->rank().value();
  leafpack::TensorDict tree;
  const at::Tensor weight = at::full({2, 3}, static_cast<double>(rank));
  ASSERT_TRUE(tree.Set({"encoder", "weight"}, weight).ok());
  const absl::Status status = app::Average(tree, *group);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(weight.sum().item<double>() / 6, (group->size() - 1) / 2.0);
}

TEST(Average, TreesThatDifferAreRefused) {
  absl::StatusOr<leafpack::Group> group = leafpack::GroupFromEnvironment();
  ASSERT_TRUE(group.ok()) << group.status();
  leafpack::TensorDict tree;
  ASSERT_TRUE(tree.Set({"bias"}, at::zeros({group->rank().value() + 1})).ok());
  const absl::Status status = app::Average(tree, *group);
  if (group->size() == 1) {
    EXPECT_TRUE(status.ok()) << status;
  } else {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("bias"));
  }
}

}  // namespace
