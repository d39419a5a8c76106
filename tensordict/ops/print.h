// A tree as text for people.
#ifndef LEAFPACK_TENSORDICT_OPS_PRINT_H_
#define LEAFPACK_TENSORDICT_OPS_PRINT_H_

#include <cstddef>
#include <ostream>
#include <string>

#include "tensordict/tensor_dict.h"

namespace leafpack {

struct PrintOptions {
  size_t max_lines = 100;  // further ones are counted, not shown
};

// One line per node and leaf, children indented below their node in canonical order:
//
//   TensorDict batch [4, 3] (time, _) on cpu
//     a: float32 [4, 3, 2]
//     b: batch [4, 3]
//       name: "x"
//       w: float32 [4, 3], requires grad
std::string ToString(const TensorDict& tree, const PrintOptions& options = {});

std::ostream& operator<<(std::ostream& out, const TensorDict& tree);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_PRINT_H_
