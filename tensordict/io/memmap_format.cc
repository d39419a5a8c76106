#include "tensordict/io/memmap_format.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace leafpack::internal {

bool IsMemmapName(std::string_view name) {
  constexpr std::string_view kNames[] = {"shape",           "device", "_type",
                                         "_format_version", "_class", "_names"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

std::string MemmapFileName(std::string_view key) {
  if (key.empty()) return "%";
  if (key == "." || key == "..") return key.size() == 1 ? "%2E" : "%2E%2E";
  constexpr std::string_view kUnsafe = "/<>:\"|?*\\ %\x7f";
  std::string name;
  for (const char c : key) {
    if (static_cast<unsigned char>(c) < 32 || kUnsafe.find(c) != std::string_view::npos) {
      absl::StrAppendFormat(&name, "%%%02X", static_cast<unsigned char>(c));
    } else {
      name.push_back(c);
    }
  }
  return name;
}

absl::Status MemmapError(std::string_view path, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("file ", path, ": ", text));
}

absl::Status MemmapErrnoError(std::string_view path, std::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("file ", path, ": ", what));
}

}  // namespace leafpack::internal
