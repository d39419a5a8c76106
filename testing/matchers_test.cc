// What the tensor matchers accept, and what they say.
#include "testing/matchers.h"

#include <cmath>
#include <limits>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <typename M>
std::string Explain(const at::Tensor& actual, const M& matcher) {
  ::testing::StringMatchResultListener listener;
  ::testing::ExplainMatchResult(matcher, actual, &listener);
  return listener.str();
}

TEST(BitEq, ComparesBitsNotValues) {
  const at::Tensor nan = at::full({2}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  EXPECT_THAT(nan, BitEq(nan.clone()));
  EXPECT_THAT(at::full({1}, 0.0), Not(BitEq(at::full({1}, -0.0))));
  EXPECT_THAT(at::Tensor(), BitEq(at::Tensor()));
  EXPECT_THAT(at::Tensor(), Not(BitEq(at::ones({1}))));
  EXPECT_THAT(at::zeros({0, 3}), BitEq(at::zeros({0, 3})));
  EXPECT_THAT(at::zeros({0, 3}), Not(BitEq(at::zeros({3, 0}))));
  EXPECT_THAT(at::zeros({2}, at::kInt), Not(BitEq(at::zeros({2}, at::kFloat))));
}

TEST(BitEq, LooksThroughStrides) {
  const at::Tensor m = at::arange(6, at::kLong).reshape({2, 3});
  EXPECT_THAT(m.t().contiguous().t(), BitEq(m));
  EXPECT_THAT(m.t(), Not(BitEq(m.reshape({3, 2}))));
}

TEST(BitEq, SaysWhereTheFirstDifferenceIs) {
  at::Tensor a = at::zeros({2, 3}, at::kInt), b = a.clone();
  a[1][0] = 7;
  a[1][2] = 8;
  EXPECT_EQ(Explain(a, BitEq(b)),
            "which differs in 2 of 6 elements, first at [1, 0]: 7 (0x00000007), not 0 (0x00000000)");
  EXPECT_THAT(Explain(at::zeros({2}), BitEq(at::zeros({3}))), HasSubstr("sizes [2], not [3]"));
  EXPECT_THAT(Explain(at::zeros({2}, at::kInt), BitEq(at::zeros({2}))), HasSubstr("dtype int"));
}

TEST(AllClose, HasTolerances) {
  const at::Tensor one = at::ones({3}, at::kDouble);
  EXPECT_THAT(one + 1e-7, AllClose(one, 1e-6, 0));
  EXPECT_THAT(one + 1e-5, Not(AllClose(one, 1e-6, 0)));
  EXPECT_THAT(Explain(one + 0.5, AllClose(one, 0, 0.1)), HasSubstr("largest difference is 0.5"));
  const at::Tensor nan = at::full({1}, std::nan(""), at::kDouble);
  EXPECT_THAT(nan, AllClose(nan));
}

TEST(Statuses, AreMatched) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::NotFoundError("no leaf"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("leaf")));
  EXPECT_THAT(absl::StatusOr<at::Tensor>(at::ones({1})), IsOkAndHolds(BitEq(at::ones({1}))));
}

}  // namespace
}  // namespace leafpack
