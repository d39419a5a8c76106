// Matchers for statuses and tensors, with failure texts that show the first difference.
//
//   EXPECT_THAT(AllReduce(tree, group), IsOk());
//   EXPECT_THAT(tree.Get({"w"}), IsOkAndHolds(BitEq(expected)));
//   EXPECT_THAT(leaf, AllClose(expected, 1e-6, 1e-8));
//   EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("encoder")));
#ifndef LEAFPACK_TESTING_MATCHERS_H_
#define LEAFPACK_TESTING_MATCHERS_H_

#include <ostream>
#include <utility>

#include <ATen/core/Tensor.h>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"

namespace leafpack {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;

namespace internal {
// True when dtype, device, sizes and every bit of every element are equal; else says what is not,
// unless `os` is null.
bool ExplainBitEq(const at::Tensor& actual, const at::Tensor& expected, std::ostream* os);
bool ExplainAllClose(const at::Tensor& actual, const at::Tensor& expected, double rtol, double atol,
                     std::ostream* os);
// Dtype, sizes and the first elements.
void DescribeTensor(const at::Tensor& tensor, std::ostream* os);
}  // namespace internal

// Same dtype, device type, sizes, and bits: NaN equals a NaN of the same bits, 0 is not -0. Strides
// may differ.
class BitEqMatcher {
 public:
  using is_gtest_matcher = void;
  explicit BitEqMatcher(at::Tensor expected) : expected_(std::move(expected)) {}
  bool MatchAndExplain(const at::Tensor& actual, std::ostream* os) const {
    return internal::ExplainBitEq(actual, expected_, os);
  }
  void DescribeTo(std::ostream* os) const {
    *os << "is bit for bit ";
    internal::DescribeTensor(expected_, os);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "is not bit for bit ";
    internal::DescribeTensor(expected_, os);
  }

 private:
  at::Tensor expected_;
};
inline BitEqMatcher BitEq(at::Tensor expected) { return BitEqMatcher(std::move(expected)); }

// Same dtype and sizes, and |actual - expected| <= atol + rtol * |expected| for each element; NaN is
// close to NaN.
class AllCloseMatcher {
 public:
  using is_gtest_matcher = void;
  AllCloseMatcher(at::Tensor expected, double rtol, double atol)
      : expected_(std::move(expected)), rtol_(rtol), atol_(atol) {}
  bool MatchAndExplain(const at::Tensor& actual, std::ostream* os) const {
    return internal::ExplainAllClose(actual, expected_, rtol_, atol_, os);
  }
  void DescribeTo(std::ostream* os) const {
    *os << "is within rtol " << rtol_ << " and atol " << atol_ << " of ";
    internal::DescribeTensor(expected_, os);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "is not within rtol " << rtol_ << " and atol " << atol_ << " of ";
    internal::DescribeTensor(expected_, os);
  }

 private:
  at::Tensor expected_;
  double rtol_, atol_;
};
inline AllCloseMatcher AllClose(at::Tensor expected, double rtol = 1e-5, double atol = 1e-8) {
  return AllCloseMatcher(std::move(expected), rtol, atol);
}

}  // namespace leafpack

#endif  // LEAFPACK_TESTING_MATCHERS_H_
