// The store of a group, apart from the other headers since c10d's are slow to compile.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ENGINE_STORE_H_
#define LEAFPACK_DISTRIBUTED_CORE_ENGINE_STORE_H_

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace leafpack {

// Only cloned, never used itself: a blocked wait of its owner would hold it.
struct StoreHolder {
  c10::intrusive_ptr<c10d::Store> store;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ENGINE_STORE_H_
