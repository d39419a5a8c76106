// leafpack_store.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "distributed/store/store.h"
#include "tensordict/non_tensor.h"

namespace leafpack::c {
namespace {

absl::Duration ReadStoreTimeout(int64_t timeout_ms) {
  if (timeout_ms < 0) {
    FailArgument("timeout_ms", absl::StrCat("is ", timeout_ms, "; it must be at least 0"));
  }
  return timeout_ms == 0 ? kStoreTimeout : absl::Milliseconds(timeout_ms);
}

template <typename Make>
leafpack_error* MakeStore(leafpack_store** store, Make&& make) noexcept {
  return Guard([&] {
    NeedPointer(store, "store");
    *store = MakeHandle(leafpack_store{make()});
  });
}

// Calls `use` with a handle of its own of the store, which is thread-safe, and the key.
template <typename Use>
leafpack_error* OnKey(const leafpack_store* store, const char* key, size_t key_size,
                      Use&& use) noexcept {
  return Guard([&] {
    Store held = Need(store, "store")->store;
    NeedPointer(key, "key");
    use(held, ReadText(key, key_size, "key"));
  });
}

std::string ReadStoreBytes(const void* data, size_t size, const char* argument) {
  return ReadText(static_cast<const char*>(data), size, argument);
}

leafpack_value* BytesValue(std::string_view bytes) {
  return MakeHandle(leafpack_value{NonTensor::Bytes({bytes.data(), bytes.size()})});
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::Store;

leafpack_error* leafpack_store_tcp(const char* host, int32_t port, int32_t serves,
                                   int64_t timeout_ms, leafpack_store** store) {
  return MakeStore(store, [&] {
    const std::string address = NeedPointer(host, "host");
    return ValueOf(Store::Tcp(address, port,
                              {.serves = serves != 0, .timeout = ReadStoreTimeout(timeout_ms)}));
  });
}

leafpack_error* leafpack_store_file(const char* path, int64_t timeout_ms, leafpack_store** store) {
  return MakeStore(store, [&] {
    const std::string where = NeedPointer(path, "path");
    return ValueOf(Store::File(where, ReadStoreTimeout(timeout_ms)));
  });
}

leafpack_error* leafpack_store_memory(int64_t timeout_ms, leafpack_store** store) {
  return MakeStore(store, [&] { return Store::Hash(ReadStoreTimeout(timeout_ms)); });
}

leafpack_error* leafpack_store_with_prefix(const leafpack_store* store, const char* prefix,
                                           leafpack_store** prefixed) {
  return Guard([&] {
    NeedPointer(prefixed, "prefixed");
    NeedPointer(prefix, "prefix");
    *prefixed = MakeHandle(leafpack_store{Need(store, "store")->store.WithPrefix(prefix)});
  });
}

leafpack_error* leafpack_store_clone(const leafpack_store* store, leafpack_store** clone) {
  return Guard([&] {
    NeedPointer(clone, "clone");
    *clone = MakeHandle(leafpack_store{ValueOf(Need(store, "store")->store.Clone())});
  });
}

leafpack_error* leafpack_store_set(const leafpack_store* store, const char* key, size_t key_size,
                                   const void* value, size_t size) {
  return OnKey(store, key, key_size, [&](Store& held, const std::string& read) {
    CheckOk(held.Set(read, ReadStoreBytes(value, size, "value")));
  });
}

leafpack_error* leafpack_store_get(const leafpack_store* store, const char* key, size_t key_size,
                                   leafpack_value** value) {
  return OnKey(store, key, key_size, [&](Store& held, const std::string& read) {
    NeedPointer(value, "value");
    *value = BytesValue(ValueOf(held.Get(read)));
  });
}

leafpack_error* leafpack_store_add(const leafpack_store* store, const char* key, size_t key_size,
                                   int64_t amount, int64_t* sum) {
  return OnKey(store, key, key_size, [&](Store& held, const std::string& read) {
    NeedPointer(sum, "sum");
    *sum = ValueOf(held.Add(read, amount));
  });
}

leafpack_error* leafpack_store_compare_set(const leafpack_store* store, const char* key,
                                           size_t key_size, const void* expected,
                                           size_t expected_size, const void* desired,
                                           size_t desired_size, leafpack_value** value) {
  return OnKey(store, key, key_size, [&](Store& held, const std::string& read) {
    NeedPointer(value, "value");
    const std::string before = ReadStoreBytes(expected, expected_size, "expected");
    const std::string after = ReadStoreBytes(desired, desired_size, "desired");
    *value = BytesValue(ValueOf(held.CompareSet(read, before, after)));
  });
}

leafpack_error* leafpack_store_has(const leafpack_store* store, const char* key, size_t key_size,
                                   int32_t* there) {
  return OnKey(store, key, key_size, [&](Store& held, const std::string& read) {
    NeedPointer(there, "there");
    *there = ValueOf(held.Check({read})) ? 1 : 0;
  });
}

leafpack_error* leafpack_store_wait(const leafpack_store* store, const char* key, size_t key_size,
                                    int64_t timeout_ms) {
  return OnKey(store, key, key_size, [&](Store& held, const std::string& read) {
    if (timeout_ms < 0) {
      FailArgument("timeout_ms", absl::StrCat("is ", timeout_ms, "; it must be at least 0"));
    }
    CheckOk(held.Wait({read}, timeout_ms == 0 ? absl::InfiniteDuration()
                                              : absl::Milliseconds(timeout_ms)));
  });
}

leafpack_error* leafpack_store_remove(const leafpack_store* store, const char* key, size_t key_size,
                                      int32_t* was_there) {
  return OnKey(store, key, key_size, [&](Store& held, const std::string& read) {
    const bool removed = ValueOf(held.Delete(read));
    if (was_there != nullptr) *was_there = removed ? 1 : 0;
  });
}

leafpack_error* leafpack_store_num_keys(const leafpack_store* store, int64_t* num_keys) {
  return Guard([&] {
    NeedPointer(num_keys, "num_keys");
    Store held = Need(store, "store")->store;
    *num_keys = ValueOf(held.NumKeys());
  });
}

leafpack_error* leafpack_store_port(const leafpack_store* store, int32_t* port) {
  return Guard([&] {
    NeedPointer(port, "port");
    *port = Need(store, "store")->store.port();
  });
}

void leafpack_store_free(leafpack_store* store) { FreeHandle(store); }
