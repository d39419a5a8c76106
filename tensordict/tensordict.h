// Umbrella of the tree part: TensorDict, NestedKey, Layout. No communication.
#ifndef LEAFPACK_TENSORDICT_TENSORDICT_H_
#define LEAFPACK_TENSORDICT_TENSORDICT_H_

// IWYU pragma: begin_exports
#include "tensordict/digest128.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"
// IWYU pragma: end_exports

#endif  // LEAFPACK_TENSORDICT_TENSORDICT_H_
