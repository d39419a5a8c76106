#include "distributed/backends/nccl/reduction_plan.h"

#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace leafpack::nccl_internal {
namespace {

// Test has a member Run.
using Runs = std::vector<Run>;
using Part = Run::Part;

using at::ScalarType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LeafView View(ScalarType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  LeafView view;
  view.dtype = dtype;
  view.sizes = std::move(sizes);
  view.strides = std::move(strides);
  return view;
}

LeafView Row(ScalarType dtype, int64_t numel) { return View(dtype, {numel}, {1}); }

TEST(ReductionPlan, SmallLeavesOfOneDtypeShareARun) {
  const int64_t large = kAloneBytes / 4;
  const Runs runs =
      PlanRuns({Row(ScalarType::Float, 10), Row(ScalarType::Double, 5), Row(ScalarType::Float, large),
                Row(ScalarType::Float, 0), Row(ScalarType::Float, 7), Row(ScalarType::Float, large - 1),
                Row(ScalarType::Float, large + 1)});
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].dtype, ScalarType::Float);
  EXPECT_EQ(runs[0].numel, 10 + 7 + large - 1);
  EXPECT_THAT(runs[0].parts,
              ElementsAre(Part{0, 0, 10}, Part{4, 10, 7}, Part{5, 17, large - 1}));
  EXPECT_EQ(runs[1].dtype, ScalarType::Double);
  EXPECT_THAT(runs[1].parts, ElementsAre(Part{1, 0, 5}));
  EXPECT_THAT(runs[2].parts, ElementsAre(Part{2, 0, large}));
  EXPECT_THAT(runs[3].parts, ElementsAre(Part{6, 0, large + 1}));
}

// NCCL must be given the same calls by ranks whose strides differ.
TEST(ReductionPlan, StridesDoNotDecide) {
  const int64_t n = kAloneBytes;
  for (const int64_t rows : {int64_t{2}, n}) {
    const Runs a = PlanRuns({View(ScalarType::Byte, {rows, 4}, {4, 1}), Row(ScalarType::Byte, 3)});
    const Runs b =
        PlanRuns({View(ScalarType::Byte, {rows, 4}, {1, rows}), View(ScalarType::Byte, {3}, {2})});
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].numel, b[i].numel);
      EXPECT_EQ(a[i].parts, b[i].parts);
    }
  }
}

TEST(ReductionPlan, Contiguity) {
  EXPECT_TRUE(IsContiguous(View(ScalarType::Float, {}, {})));
  EXPECT_TRUE(IsContiguous(View(ScalarType::Float, {2, 3}, {3, 1})));
  EXPECT_TRUE(IsContiguous(View(ScalarType::Float, {1, 3}, {100, 1})));
  EXPECT_FALSE(IsContiguous(View(ScalarType::Float, {2, 3}, {1, 2})));
  EXPECT_FALSE(IsContiguous(View(ScalarType::Float, {3}, {2})));
}

TEST(ReductionPlan, WhatNcclIsTold) {
  const auto wire = [](ScalarType dtype, ReduceOpKind op) { return *WireOf(dtype, op); };
  EXPECT_EQ(wire(ScalarType::Float, ReduceOpKind::kSum), (Wire{ScalarType::Float, ReduceOpKind::kSum}));
  EXPECT_EQ(wire(ScalarType::Float, ReduceOpKind::kPremulSum), (Wire{ScalarType::Float, ReduceOpKind::kSum}));
  EXPECT_EQ(wire(ScalarType::Half, ReduceOpKind::kMax), (Wire{ScalarType::Half, ReduceOpKind::kMax, true}));
  EXPECT_EQ(wire(ScalarType::Int, ReduceOpKind::kMax), (Wire{ScalarType::Int, ReduceOpKind::kMax}));
  // The sum of bool is OR, the product AND: bytes stay 0 or 1.
  EXPECT_EQ(wire(ScalarType::Bool, ReduceOpKind::kSum), (Wire{ScalarType::Byte, ReduceOpKind::kMax}));
  EXPECT_EQ(wire(ScalarType::Bool, ReduceOpKind::kProduct), (Wire{ScalarType::Byte, ReduceOpKind::kMin}));
  EXPECT_EQ(wire(ScalarType::UInt32, ReduceOpKind::kProduct), (Wire{ScalarType::Int, ReduceOpKind::kProduct}));
  EXPECT_EQ(wire(ScalarType::UInt64, ReduceOpKind::kSum), (Wire{ScalarType::Long, ReduceOpKind::kSum}));
}

TEST(ReductionPlan, WhatIsRefused) {
  const auto code = [](ScalarType dtype, ReduceOpKind op) { return WireOf(dtype, op).status().code(); };
  EXPECT_EQ(code(ScalarType::Short, ReduceOpKind::kSum), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(ScalarType::UInt16, ReduceOpKind::kSum), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(ScalarType::UInt32, ReduceOpKind::kMax), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(ScalarType::Float8_e4m3fn, ReduceOpKind::kSum), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(ScalarType::ComplexFloat, ReduceOpKind::kProduct), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(ScalarType::Int, ReduceOpKind::kBxor), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(ScalarType::Bool, ReduceOpKind::kBxor), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(ScalarType::Int, ReduceOpKind::kAvg), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(ScalarType::ComplexFloat, ReduceOpKind::kMax), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(WireOf(ScalarType::Short, ReduceOpKind::kSum).status().message(), HasSubstr("int16"));
}

}  // namespace
}  // namespace leafpack::nccl_internal
