// Trees with a closed form, and groups of ranks as threads, for tests of collectives on trees.
#ifndef LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_TESTUTIL_H_
#define LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_TESTUTIL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "distributed/core/group.h"
#include "distributed/core/reduce_op.h"

// Ends the test when a call that must succeed does not.
#define LEAFPACK_ASSERT_OK(expression)                     \
  do {                                            \
    const absl::Status status_ = (expression);    \
    ASSERT_TRUE(status_.ok()) << status_;         \
  } while (false)

namespace leafpack::testing {

// Runs `body` on `ranks` threads, each with its own handle of one new group over an in-memory store. The
// environment variable LEAFPACK_TEST_BACKEND takes the place of the default backend.
void WithGroup(int ranks, const std::function<void(const Group&)>& body, GroupOptions options = {});

// The same with several groups over the same ranks and one store.
void WithGroups(int ranks, int groups, const std::function<void(const std::vector<Group>&)>& body,
                GroupOptions options = {});

// Element j of the leaf `path` on `rank`: small whole numbers, exact in every dtype, and so that no op
// gives the same on all ranks by chance.
double Element(std::string_view path, int rank, int64_t j);

// A contiguous leaf of these elements (bool: their lowest bit; complex: also an imaginary part).
at::Tensor MakeLeaf(std::string_view path, at::ScalarType dtype, at::IntArrayRef sizes, int rank);

// What all ranks of a group of `ranks` must hold afterwards: reduced here, in one process, in rank
// order. PREMUL_SUM takes rank r's factor as r + 1.
at::Tensor Expected(std::string_view path, at::ScalarType dtype, at::IntArrayRef sizes, int ranks,
                    ReduceOpKind op);

// All dtypes that host backends reduce.
const std::vector<at::ScalarType>& AllDtypes();
const std::vector<ReduceOpKind>& AllOps();

// Equal dtype, sizes and bytes (NaN equal to itself).
bool BitEqual(const at::Tensor& a, const at::Tensor& b);

}  // namespace leafpack::testing

#endif  // LEAFPACK_DISTRIBUTED_TREE_ALL_REDUCE_TESTUTIL_H_
