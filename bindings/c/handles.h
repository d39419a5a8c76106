// The objects behind the handles of leafpack.h, and the tables that know which of them are alive. A handle
// is never dereferenced before its table has been asked, so a dead one is an error and no crash, and an
// object that one thread frees while another one uses it lives until that use is over.
#ifndef LEAFPACK_BINDINGS_C_HANDLES_H_
#define LEAFPACK_BINDINGS_C_HANDLES_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "bindings/c/leafpack.h"
#include "distributed/core/group.h"
#include "distributed/p2p/transfer.h"
#include "distributed/store/store.h"
#include "distributed/tree/tree_work.h"
#include "distributed/tree/trees.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"

struct leafpack_error {
  int32_t code = LEAFPACK_INTERNAL;
  int32_t kind = LEAFPACK_KIND_OTHER;
  std::string message;
  std::string path;
  std::vector<int32_t> ranks;
  std::vector<std::string> paths_done;
  bool tree_unchanged = true;
  bool outcome_unknown = false;
};

struct leafpack_tensor {
  at::Tensor tensor;
};

struct leafpack_value {
  leafpack::NonTensor value;
};

struct leafpack_tree {
  leafpack::TensorDict tree;
};

struct leafpack_entries {
  struct Entry {
    leafpack::NestedKey key;
    std::string text;
    std::vector<leafpack_component> path;  // points into `key`
    std::variant<at::Tensor, leafpack::TensorDict, leafpack::NonTensor> value;
  };
  std::vector<Entry> entries;
};

struct leafpack_layout {
  leafpack::Layout layout;
  std::string text;
};

struct leafpack_store {
  leafpack::Store store;
};

struct leafpack_group {
  leafpack::Group group;
};

struct leafpack_result {
  leafpack::TreeResult result;
  std::optional<int32_t> source{};  // of a receive
};

struct leafpack_work {
  // A transfer, and what its result holds.
  struct Transfer {
    enum class Kind { kSend, kReceiveInto, kReceiveTree, kReceiveBytes };
    leafpack::TransferWork work;
    Kind kind;
    leafpack::Group group;
    std::optional<leafpack::TensorDict> tree{};  // kReceiveInto
  };
  std::variant<leafpack::TreeWork, Transfer> work;
};

namespace leafpack::c {

// Of all kinds together.
inline std::atomic<int64_t> live_handles{0};

template <typename T>
class HandleTable {
 public:
  static T* Add(std::shared_ptr<T> object) {
    T* const handle = object.get();
    HandleTable& table = Get();
    absl::MutexLock lock(&table.mutex_);
    table.live_.emplace(handle, std::move(object));
    live_handles.fetch_add(1, std::memory_order_relaxed);
    return handle;
  }

  // Null if it is not alive.
  static std::shared_ptr<T> Find(const T* handle) {
    HandleTable& table = Get();
    absl::ReaderMutexLock lock(&table.mutex_);
    const auto found = table.live_.find(handle);
    return found == table.live_.end() ? nullptr : found->second;
  }

  // The same, and it is dead from now on. The object goes with the last reference to it.
  static std::shared_ptr<T> Remove(const T* handle) {
    HandleTable& table = Get();
    absl::MutexLock lock(&table.mutex_);
    const auto found = table.live_.find(handle);
    if (found == table.live_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    table.live_.erase(found);
    live_handles.fetch_sub(1, std::memory_order_relaxed);
    return object;
  }

 private:
  friend class absl::NoDestructor<HandleTable>;
  HandleTable() = default;
  static HandleTable& Get() {
    static absl::NoDestructor<HandleTable> table;
    return *table;
  }

  absl::Mutex mutex_;
  absl::flat_hash_map<const T*, std::shared_ptr<T>> live_ ABSL_GUARDED_BY(mutex_);
};

// The name of a handle's type, for messages.
template <typename T>
constexpr const char* kTypeName = nullptr;
template <>
inline constexpr const char* kTypeName<leafpack_error> = "leafpack_error";
template <>
inline constexpr const char* kTypeName<leafpack_tensor> = "leafpack_tensor";
template <>
inline constexpr const char* kTypeName<leafpack_value> = "leafpack_value";
template <>
inline constexpr const char* kTypeName<leafpack_tree> = "leafpack_tree";
template <>
inline constexpr const char* kTypeName<leafpack_entries> = "leafpack_entries";
template <>
inline constexpr const char* kTypeName<leafpack_layout> = "leafpack_layout";
template <>
inline constexpr const char* kTypeName<leafpack_store> = "leafpack_store";
template <>
inline constexpr const char* kTypeName<leafpack_group> = "leafpack_group";
template <>
inline constexpr const char* kTypeName<leafpack_work> = "leafpack_work";
template <>
inline constexpr const char* kTypeName<leafpack_result> = "leafpack_result";

}  // namespace leafpack::c

#endif  // LEAFPACK_BINDINGS_C_HANDLES_H_
