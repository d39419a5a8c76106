// A c10d store as the control channel wants it.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_C10D_KEY_VALUE_STORE_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_C10D_KEY_VALUE_STORE_H_

#include <memory>
#include <string_view>

#include <c10/util/intrusive_ptr.h>

#include "distributed/core/channel/key_value_store.h"

namespace c10d {
class Store;
}

namespace leafpack {

// `store` under `prefix` (as c10d::PrefixStore does it). The store is cloned at first use, in the
// thread of that use, since a clone may connect; errors that c10d throws come back as Status, with the address of a TCP store. `store`
// itself is never used for anything but clone().
std::unique_ptr<KeyValueStore> WrapC10dStore(c10::intrusive_ptr<c10d::Store> store,
                                             std::string_view prefix);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_C10D_KEY_VALUE_STORE_H_
