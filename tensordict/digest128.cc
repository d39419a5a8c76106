#include "tensordict/digest128.h"

#include <string>

#include "absl/strings/str_format.h"

namespace leafpack {

std::string Digest128::ToString() const { return absl::StrFormat("%016x%016x", hi, lo); }

}  // namespace leafpack
