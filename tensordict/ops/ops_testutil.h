// What tests of tree operations share.
#ifndef LEAFPACK_TENSORDICT_OPS_OPS_TESTUTIL_H_
#define LEAFPACK_TENSORDICT_OPS_OPS_TESTUTIL_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

// Takes the value out of a StatusOr, or ends the test.
#define LEAFPACK_ASSIGN_OR_FAIL(lhs, expression)                                  \
  LEAFPACK_ASSIGN_OR_FAIL_IMPL(LEAFPACK_CONCAT(result_, __LINE__), lhs, expression)
#define LEAFPACK_CONCAT_IMPL(a, b) a##b
#define LEAFPACK_CONCAT(a, b) LEAFPACK_CONCAT_IMPL(a, b)
#define LEAFPACK_ASSIGN_OR_FAIL_IMPL(result, lhs, expression) \
  auto result = (expression);                                 \
  ASSERT_TRUE(result.ok()) << result.status();                \
  lhs = *std::move(result)

namespace leafpack {

// Element i is i, as float.
inline at::Tensor Counted(at::IntArrayRef sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(numel, at::kFloat).view(sizes);
}

// Printable paths of all that stands in a tree, nodes too.
inline std::vector<std::string> PathsIn(const TensorDict& tree) {
  std::vector<std::string> paths;
  for (const NestedKey& key : Keys(tree, {.nested = true})) paths.push_back(key.ToString());
  return paths;
}

template <typename Result>
absl::Status StatusOf(const Result& result) {
  if constexpr (std::is_same_v<Result, absl::Status>) {
    return result;
  } else {
    return result.status();
  }
}

template <typename Result>
void ExpectError(const Result& result, const std::string& text,
                 absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = StatusOf(result);
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text));
}

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_OPS_TESTUTIL_H_
