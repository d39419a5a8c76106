// What must hold of a tree that a reader has believed.
#ifndef LEAFPACK_TESTING_FUZZ_TREES_H_
#define LEAFPACK_TESTING_FUZZ_TREES_H_

#include "tensordict/tensor_dict.h"

namespace leafpack::testing {

// Reads every byte of every leaf, and writes it back: outside of its memory the sanitizer or the kernel ends the
// program. Leaves must begin with the batch size of their node, which TensorDict itself sees to.
void TouchAll(const TensorDict& tree);

// Whether both have the same keys, batch sizes, dtypes, sizes, bytes (NaN too) and values that are no tensors.
bool SameBytes(const TensorDict& a, const TensorDict& b);

}  // namespace leafpack::testing

#endif  // LEAFPACK_TESTING_FUZZ_TREES_H_
