// leafpack_error: a status with its details, as an object.
#include <memory>
#include <new>
#include <string>

#include "absl/base/no_destructor.h"
#include "absl/status/status.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "distributed/core/error.h"

namespace leafpack::c {
namespace {

leafpack_error* OutOfMemory() {
  static absl::NoDestructor<leafpack_error> error([] {
    leafpack_error made;
    made.code = LEAFPACK_RESOURCE_EXHAUSTED;
    made.message = "not enough memory";
    return made;
  }());
  return error.get();
}
// Made while there is memory.
[[maybe_unused]] leafpack_error* const kMadeEarly = OutOfMemory();

// What accessors read. Never null.
std::shared_ptr<const leafpack_error> Read(const leafpack_error* error) noexcept {
  // Not owners: these objects are always there.
  static absl::NoDestructor<leafpack_error> none([] {
    leafpack_error made;
    made.code = LEAFPACK_OK;
    return made;
  }());
  static absl::NoDestructor<leafpack_error> dead([] {
    leafpack_error made;
    made.code = LEAFPACK_INVALID_ARGUMENT;
    made.message = "error is no leafpack_error that is alive";
    return made;
  }());
  const std::shared_ptr<const leafpack_error> nobody;
  if (error == nullptr) return {nobody, none.get()};
  if (error == OutOfMemory()) return {nobody, error};
  std::shared_ptr<const leafpack_error> found = HandleTable<leafpack_error>::Find(error);
  if (found == nullptr) return {nobody, dead.get()};
  return found;
}

}  // namespace

leafpack_error* ErrorOf(const absl::Status& status) noexcept {
  try {
    const ErrorDetails details = GetErrorDetails(status);
    leafpack_error error;
    error.code = static_cast<int32_t>(status.code());
    error.kind = static_cast<int32_t>(details.kind);
    error.message = TextForC(status.message());
    error.path = TextForC(details.path);
    for (GlobalRank rank : details.ranks) error.ranks.push_back(rank.value());
    for (const std::string& path : details.paths_done) error.paths_done.push_back(TextForC(path));
    error.tree_unchanged = details.tree_unchanged;
    error.outcome_unknown = details.outcome_unknown;
    return MakeHandle(std::move(error));
  } catch (...) {
    return OutOfMemory();
  }
}

leafpack_error* ErrorOfException() noexcept {
  try {
    return ErrorOf(StatusOfException());
  } catch (...) {
    return OutOfMemory();
  }
}

static_assert(static_cast<int>(absl::StatusCode::kCancelled) == LEAFPACK_CANCELLED);
static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) == LEAFPACK_INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kDeadlineExceeded) == LEAFPACK_DEADLINE_EXCEEDED);
static_assert(static_cast<int>(absl::StatusCode::kFailedPrecondition) ==
              LEAFPACK_FAILED_PRECONDITION);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == LEAFPACK_UNAVAILABLE);
static_assert(static_cast<int>(ErrorKind::kLayoutMismatch) == LEAFPACK_KIND_LAYOUT_MISMATCH);
static_assert(static_cast<int>(ErrorKind::kPeerRefused) == LEAFPACK_KIND_PEER_REFUSED);
static_assert(static_cast<int>(ErrorKind::kUnsupported) == LEAFPACK_KIND_UNSUPPORTED);
static_assert(static_cast<int>(ErrorKind::kDeadline) == LEAFPACK_KIND_DEADLINE);
static_assert(static_cast<int>(ErrorKind::kInterrupted) == LEAFPACK_KIND_INTERRUPTED);
static_assert(static_cast<int>(ErrorKind::kPeerLost) == LEAFPACK_KIND_PEER_LOST);

}  // namespace leafpack::c

using leafpack::c::FreeHandle;
using leafpack::c::OutOfMemory;
using leafpack::c::Read;

int32_t leafpack_error_code(const leafpack_error* error) { return Read(error)->code; }
int32_t leafpack_error_kind(const leafpack_error* error) { return Read(error)->kind; }
const char* leafpack_error_message(const leafpack_error* error) {
  return Read(error)->message.c_str();
}
const char* leafpack_error_path(const leafpack_error* error) { return Read(error)->path.c_str(); }

size_t leafpack_error_ranks(const leafpack_error* error, const int32_t** ranks) {
  const auto read = Read(error);
  if (ranks != nullptr) *ranks = read->ranks.data();
  return read->ranks.size();
}

size_t leafpack_error_num_paths_done(const leafpack_error* error) {
  return Read(error)->paths_done.size();
}

const char* leafpack_error_path_done(const leafpack_error* error, size_t index) {
  const auto read = Read(error);
  return index < read->paths_done.size() ? read->paths_done[index].c_str() : "";
}

int32_t leafpack_error_tree_unchanged(const leafpack_error* error) {
  return Read(error)->tree_unchanged ? 1 : 0;
}
int32_t leafpack_error_outcome_unknown(const leafpack_error* error) {
  return Read(error)->outcome_unknown ? 1 : 0;
}

void leafpack_error_free(leafpack_error* error) {
  if (error != OutOfMemory()) FreeHandle(error);
}
