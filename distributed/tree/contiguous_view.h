// The view of elements that lie side by side in memory.
#ifndef LEAFPACK_DISTRIBUTED_TREE_CONTIGUOUS_VIEW_H_
#define LEAFPACK_DISTRIBUTED_TREE_CONTIGUOUS_VIEW_H_

#include <cstdint>
#include <memory>
#include <utility>

#include <c10/core/ScalarType.h>

#include "distributed/core/backend.h"

namespace leafpack::internal {

// `count` elements at `data`, which `keep_alive` owns.
inline LeafView ContiguousView(void* data, at::ScalarType dtype, int64_t count,
                               std::shared_ptr<const void> keep_alive) {
  LeafView view;
  view.data = data;
  view.dtype = dtype;
  view.sizes = {count};
  view.strides = {1};
  view.keep_alive = std::move(keep_alive);
  return view;
}

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_CONTIGUOUS_VIEW_H_
