// What stands between C and C++: exceptions and statuses become leafpack_error objects, arguments are
// looked at before they are used.
//
//   leafpack_error* leafpack_tree_clear(leafpack_tree* tree) {
//     return Guard([&] { CheckOk(Need(tree, "tree")->tree.Clear()); });
//   }
#ifndef LEAFPACK_BINDINGS_C_GUARD_H_
#define LEAFPACK_BINDINGS_C_GUARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "tensordict/nested_key.h"

namespace leafpack::c {

// Thrown inside of Guard only.
struct Failure {
  absl::Status status;
};

[[noreturn]] inline void Fail(absl::Status status) { throw Failure{std::move(status)}; }
// InvalidArgument.
[[noreturn]] void FailArgument(const char* argument, const std::string& what);

inline void CheckOk(absl::Status status) {
  if (!status.ok()) Fail(std::move(status));
}

template <typename T>
T ValueOf(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(std::move(value).status());
  return *std::move(value);
}

// The same of what was done at `path`, which the error is then about.
void CheckOkAt(const NestedKey& path, absl::Status status);

template <typename T>
T ValueAt(const NestedKey& path, absl::StatusOr<T> value) {
  CheckOkAt(path, value.status());
  return *std::move(value);
}

// In a catch block: the status of what was caught.
absl::Status StatusOfException();

// The error of a status that is not OK. Never null; without memory it is one that is always there.
leafpack_error* ErrorOf(const absl::Status& status) noexcept;
leafpack_error* ErrorOfException() noexcept;

// Runs `body` and returns its error, or null.
template <typename Body>
leafpack_error* Guard(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return nullptr;
  } catch (...) {
    return ErrorOfException();
  }
}

// A pointer that must not be null; `argument` is its name in leafpack.h.
template <typename T>
T* NeedPointer(T* pointer, const char* argument) {
  if (pointer == nullptr) FailArgument(argument, "is NULL");
  return pointer;
}

// An array of `count` elements: null only if there are none.
template <typename T>
T* NeedArray(T* array, size_t count, const char* argument) {
  if (count > 0) NeedPointer(array, argument);
  return array;
}

// `size` bytes of the caller, which is no more than a process can address.
void NeedPossible(size_t size, const char* argument);

[[noreturn]] void FailDeadHandle(const char* argument, const char* type);

// The object of a handle, which must be alive.
template <typename T>
std::shared_ptr<T> Need(const T* handle, const char* argument) {
  std::shared_ptr<T> object = HandleTable<T>::Find(NeedPointer(handle, argument));
  if (object == nullptr) FailDeadHandle(argument, kTypeName<T>);
  return object;
}

// Makes an object and its handle.
template <typename T>
T* MakeHandle(T object) {
  return HandleTable<T>::Add(std::make_shared<T>(std::move(object)));
}

void WarnOfDeadHandle(const char* type) noexcept;

// In a catch block: logs what a function of the caller has thrown.
void LogThrown(const char* function) noexcept;

// What leafpack_X_free does.
template <typename T>
void FreeHandle(const T* handle) noexcept {
  if (handle == nullptr) return;
  try {
    if (HandleTable<T>::Remove(handle) == nullptr) WarnOfDeadHandle(kTypeName<T>);
  } catch (...) {
    // The object is gone; that its end was not smooth cannot be told to anybody.
  }
}

// Text for C, which ends at its first zero byte: those inside (of a key, of a name) are printed as \x00.
std::string TextForC(std::string_view text);

// `size` bytes, or up to the first zero byte (LEAFPACK_TO_ZERO).
std::string ReadText(const char* text, size_t size, const char* argument);
// A path of `depth` components.
NestedKey ReadPath(const leafpack_component* path, size_t depth);
// The other way; points into `key`.
std::vector<leafpack_component> PathOf(const NestedKey& key);

}  // namespace leafpack::c

#endif  // LEAFPACK_BINDINGS_C_GUARD_H_
