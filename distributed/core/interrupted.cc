#include "distributed/core/interrupted.h"

#include <exception>

#include "absl/log/absl_log.h"

namespace leafpack {

bool IsInterrupted(const std::function<bool()>& check) {
  try {
    return check();
  } catch (const std::exception& error) {
    ABSL_LOG(ERROR) << "leafpack: a check for interrupts threw, which gives the call up: " << error.what();
  } catch (...) {
    ABSL_LOG(ERROR) << "leafpack: a check for interrupts threw, which gives the call up";
  }
  return true;
}

}  // namespace leafpack
