// The JSON reader on any bytes: it refuses them, or what it read is written so that it reads the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "tensordict/io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using leafpack::internal::Json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Json> json = leafpack::internal::ParseJson(text);
  if (!json.ok()) return 0;
  const std::string written = leafpack::internal::WriteJson(*json);
  const absl::StatusOr<Json> again = leafpack::internal::ParseJson(written);
  // Compared as text: NaN is no equal of itself.
  if (!again.ok() || leafpack::internal::WriteJson(*again) != written) std::abort();
  return 0;
}
