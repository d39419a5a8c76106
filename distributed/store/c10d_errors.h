// The seam at which exceptions of c10d's stores and process groups become absl::Status. Internal.
#ifndef LEAFPACK_DISTRIBUTED_STORE_C10D_ERRORS_H_
#define LEAFPACK_DISTRIBUTED_STORE_C10D_ERRORS_H_

#include <exception>
#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/exception.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack::store_internal {

// Runs `body`, which returns a Status or StatusOr; an exception becomes DeadlineExceeded (a store
// that timed out) or Unavailable, with `what` and the exception's first line. The kinds of stores say
// by different exceptions that they timed out, some by a text alone.
template <typename Body>
auto CatchC10d(std::string_view what, Body body) -> decltype(body()) {
  const auto text = [what](const std::exception& e) {
    const std::string_view message = e.what();
    return absl::StrCat(what, ": ", message.substr(0, message.find('\n')));
  };
  try {
    return body();
  } catch (const c10::DistStoreError& e) {
    return absl::DeadlineExceededError(text(e));
  } catch (const std::exception& e) {
    const std::string said = text(e);
    const std::string_view message(e.what());
    if (message.find("imeout") != message.npos || message.find("timed out") != message.npos) {
      return absl::DeadlineExceededError(said);
    }
    return absl::UnavailableError(said);
  }
}

}  // namespace leafpack::store_internal

#endif  // LEAFPACK_DISTRIBUTED_STORE_C10D_ERRORS_H_
