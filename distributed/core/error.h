// Details of a collective's error beside its absl::Status code and text: the path of the leaf, the
// ranks (global) it is about, and the paths that were already reduced when it struck. They travel as
// a Status payload, so any layer can add to them and bindings can turn them into attributes.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ERROR_H_
#define LEAFPACK_DISTRIBUTED_CORE_ERROR_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "distributed/core/rank.h"

namespace leafpack {

// What kind of fault a Status reports, finer than its code: bindings map each to an exception.
enum class ErrorKind {
  kOther,           // bad argument, bug, and whatever carries no details
  kLayoutMismatch,  // FailedPrecondition: ranks disagree; path, ranks
  kPeerRefused,     // FailedPrecondition: another rank refused or failed; ranks
  kUnsupported,     // Unimplemented or InvalidArgument: op, dtype or leaf kind; path
  kDeadline,        // DeadlineExceeded; Cancelled: another rank gave up, was interrupted; ranks
  kInterrupted,     // Cancelled: this rank's own wait was interrupted, or Cancel was called
  kPeerLost,        // Unavailable; ranks
};

struct ErrorDetails {
  ErrorKind kind = ErrorKind::kOther;
  std::string path = {};                // printable path of the first leaf concerned, or empty
  std::vector<GlobalRank> ranks = {};   // sorted; the ranks that the error is about
  std::vector<std::string> paths_done = {};  // leaves that hold the reduced value (told failures)
  bool tree_unchanged = true;           // this rank's leaves are as they were before the call
  bool outcome_unknown = false;         // rank 0 gave no answer: other ranks may have succeeded
};

// The details attached to `status`, or defaults when there are none.
ErrorDetails GetErrorDetails(const absl::Status& status);

// Returns `status` with `details` attached, replacing what was there. OK stays OK.
absl::Status WithErrorDetails(absl::Status status, const ErrorDetails& details);

// Same code and details, with `prefix` and ": " before the message.
absl::Status AnnotateStatus(const absl::Status& status, std::string_view prefix);

// "rank 3", "ranks 1 and 2", "ranks 0, 2 and 5".
std::string FormatRanks(absl::Span<const GlobalRank> ranks);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ERROR_H_
