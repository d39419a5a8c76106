#include "bindings/c/guard.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

#include "absl/log/absl_log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "distributed/core/error.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::c {

void FailArgument(const char* argument, const std::string& what) {
  Fail(absl::InvalidArgumentError(absl::StrCat(argument, " ", what)));
}

void CheckOkAt(const NestedKey& path, absl::Status status) {
  if (status.ok()) return;
  ErrorDetails details = GetErrorDetails(status);
  details.path = path.ToString();
  Fail(WithErrorDetails(std::move(status), details));
}

void NeedPossible(size_t size, const char* argument) {
  constexpr size_t kAddressable = size_t{1} << 47;
  if (size >= kAddressable) {
    FailArgument(argument, absl::StrCat("has ", size, " bytes, more than a process can have"));
  }
}

void FailDeadHandle(const char* argument, const char* type) {
  FailArgument(argument, absl::StrCat("is no ", type, " that is alive"));
}

void WarnOfDeadHandle(const char* type) noexcept {
  ABSL_LOG(WARNING) << "leafpack: freed what is no " << type << " that is alive";
}

void LogThrown(const char* function) noexcept {
  ABSL_LOG(ERROR) << "leafpack: " << function << " threw: " << StatusOfException().message();
}

absl::Status StatusOfException() {
  try {
    throw;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const c10::NotImplementedError& e) {
    return absl::UnimplementedError(e.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(e.what_without_backtrace());
  } catch (const c10::Error& e) {
    // c10's allocator of CPU memory does not throw an OutOfMemoryError.
    if (absl::StrContains(e.what_without_backtrace(), "DefaultCPUAllocator")) {
      return absl::ResourceExhaustedError(e.what_without_backtrace());
    }
    return absl::InvalidArgumentError(e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("not enough memory");
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError("more bytes than there can be");
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  } catch (...) {
    return absl::InternalError("something that is no std::exception was thrown");
  }
}

std::string TextForC(std::string_view text) {
  return absl::StrReplaceAll(text, {{std::string_view("\0", 1), "\\x00"}});
}

std::string ReadText(const char* text, size_t size, const char* argument) {
  if (size == LEAFPACK_TO_ZERO) return std::string(NeedPointer(text, argument));
  if (size == 0) return std::string();
  NeedPointer(text, argument);
  NeedPossible(size, argument);
  return std::string(text, size);
}

NestedKey ReadPath(const leafpack_component* path, size_t depth) {
  if (depth > static_cast<size_t>(kMaxTreeDepth)) {
    FailArgument("depth", absl::StrCat("is ", depth, "; a path has at most ", kMaxTreeDepth,
                                       " components"));
  }
  NeedArray(path, depth, "path");
  std::vector<KeyComponent> components;
  components.reserve(depth);
  for (size_t i = 0; i < depth; ++i) {
    const leafpack_component& component = path[i];
    if (component.reserved != 0) {
      FailArgument("path", absl::StrCat("has a component whose reserved is ", component.reserved,
                                        "; it must be 0"));
    }
    if (component.kind == LEAFPACK_NAME) {
      NeedPointer(component.name, "path: the name of a component");
      if (component.position != 0) {
        FailArgument("path", absl::StrCat("has a name with the position ", component.position,
                                          ", which must be 0 there"));
      }
      components.emplace_back(ReadText(component.name, component.name_size, "path"));
    } else if (component.kind == LEAFPACK_POSITION) {
      if (component.name != nullptr || component.name_size != 0) {
        FailArgument("path", absl::StrCat("has the position ", component.position,
                                          " with a name, which must be NULL and of size 0 there"));
      }
      components.emplace_back(component.position);
    } else {
      FailArgument("path", absl::StrCat("has a component of kind ", component.kind,
                                        ", which is neither LEAFPACK_NAME nor LEAFPACK_POSITION"));
    }
  }
  return NestedKey(std::move(components));
}

std::vector<leafpack_component> PathOf(const NestedKey& key) {
  std::vector<leafpack_component> path;
  path.reserve(key.size());
  for (const KeyComponent& component : key) {
    if (component.is_position()) {
      path.push_back({LEAFPACK_POSITION, 0, nullptr, 0, component.position()});
    } else {
      path.push_back({LEAFPACK_NAME, 0, component.name().c_str(), component.name().size(), 0});
    }
  }
  return path;
}

}  // namespace leafpack::c
