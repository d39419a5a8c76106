// Trees with a closed form for tests of collectives that move leaves.
#ifndef LEAFPACK_DISTRIBUTED_TREE_COLLECTIVES_TESTUTIL_H_
#define LEAFPACK_DISTRIBUTED_TREE_COLLECTIVES_TESTUTIL_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/tree/trees.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::testing {

// A leaf whose elements follow from `seed` alone, a different run for each.
at::Tensor Values(at::ScalarType dtype, at::IntArrayRef sizes, int seed);

// Small enough to ride in the control channel for up to 4 ranks, or with messages of its own.
enum class Size { kSmall, kLarge };

// Nodes of two levels, positions, several dtypes, 0-dim, empty, strided, tied and undefined leaves, with the
// values of `seed`. The layout does not depend on `seed`; `variant` > 0 changes a size and adds a leaf.
TensorDict MakeTree(int seed, Size size, int variant = 0);

// Every leaf of `tree` is as in MakeTree(seed, size, variant), its paths too.
void ExpectTree(const TensorDict& tree, int seed, Size size, int variant = 0);
void ExpectEqual(const TensorDict& tree, const TensorDict& expected);

// `status` is of this code and kind and names all of `texts`.
void ExpectError(const absl::Status& status, absl::StatusCode code, ErrorKind kind,
                 const std::vector<std::string_view>& texts);

// A call after a failed one: the group is usable, and calls are in step.
void ExpectUsable(const Group& group);

}  // namespace leafpack::testing

#endif  // LEAFPACK_DISTRIBUTED_TREE_COLLECTIVES_TESTUTIL_H_
