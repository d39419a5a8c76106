// Abseil, libtorch, xxHash and GoogleTest in one program.

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "ATen/ops/ones.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "gtest/gtest.h"
#include "xxhash.h"

namespace {

absl::StatusOr<double> SumOfProduct(const at::Tensor& a, const at::Tensor& b) {
  try {
    return a.matmul(b).sum().item<double>();
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("matmul: ", error.what_without_backtrace()));
  }
}

TEST(DependenciesTest, TensorsComputeAndErrorsAreCaught) {
  absl::StatusOr<double> sum = SumOfProduct(at::ones({3, 4}), at::ones({4, 5}));
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, 60.0);
  sum = SumOfProduct(at::ones({3, 4}), at::ones({3, 4}));
  EXPECT_EQ(sum.status().code(), absl::StatusCode::kInvalidArgument);
}

// The reference value of XXH3_128bits of no bytes, from xxHash's own documentation of the
// algorithm: the digest of a layout must never change with a build option.
TEST(DependenciesTest, HashIsTheSpecifiedOne) {
  const XXH128_hash_t hash = XXH3_128bits("", 0);
  EXPECT_EQ(hash.high64, 0x99aa06d3014798d8ULL);
  EXPECT_EQ(hash.low64, 0x6001c324468d497fULL);
}

}  // namespace
