// Umbrella of the operations on trees.
#ifndef LEAFPACK_TENSORDICT_OPS_OPS_H_
#define LEAFPACK_TENSORDICT_OPS_OPS_H_

// IWYU pragma: begin_exports
#include "tensordict/ops/apply.h"
#include "tensordict/ops/arithmetic.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/combine.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/consolidate.h"
#include "tensordict/ops/index.h"
#include "tensordict/ops/keys.h"
#include "tensordict/ops/lazy_stack.h"
#include "tensordict/ops/print.h"
#include "tensordict/ops/shape.h"
// IWYU pragma: end_exports

#endif  // LEAFPACK_TENSORDICT_OPS_OPS_H_
