// The path of the leaf or node that an error is about, as a payload of its status, beside the text that names
// it. ErrorDetails, which are not known down here, take it over (distributed/core/error.cc).
#ifndef LEAFPACK_TENSORDICT_PATH_PAYLOAD_H_
#define LEAFPACK_TENSORDICT_PATH_PAYLOAD_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

#include "tensordict/nested_key.h"

namespace leafpack::internal {

inline constexpr std::string_view kPathPayload = "leafpack/Path";

// `status` with the printable path attached. OK stays OK.
inline absl::Status AtPath(absl::Status status, const NestedKey& path) {
  if (!status.ok()) status.SetPayload(kPathPayload, absl::Cord(path.ToString()));
  return status;
}

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_PATH_PAYLOAD_H_
