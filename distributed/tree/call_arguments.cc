#include "distributed/tree/call_arguments.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "xxhash.h"

namespace leafpack::internal {

absl::uint128 DigestOfArguments(absl::Span<const CallArgument> arguments, std::string_view more) {
  std::string text;
  const auto append = [&text](std::string_view part) {
    for (int shift = 0; shift < 32; shift += 8) {
      text.push_back(static_cast<char>(part.size() >> shift & 0xff));
    }
    text.append(part);
  };
  for (const CallArgument& argument : arguments) {
    append(argument.name);
    append(argument.value);
  }
  append(more);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  const absl::uint128 digest = absl::MakeUint128(hash.high64, hash.low64);
  return digest == 0 ? absl::uint128{1} : digest;  // zero means "no digest" in records
}

std::vector<DescriptionEntry> DescribeArguments(absl::Span<const CallArgument> arguments) {
  std::vector<DescriptionEntry> entries;
  entries.reserve(arguments.size());
  for (const CallArgument& argument : arguments) {
    entries.push_back({.key = std::string(argument.name),
                       .label = std::string(argument.name),
                       .value = absl::Utf8SafeCEscape(argument.value),
                       .is_argument = true});
  }
  return entries;
}

void AppendLayout(const Layout& layout, std::vector<DescriptionEntry>& entries) {
  for (Layout::Entry& entry : layout.Describe()) {
    entries.push_back({.key = entry.path, .label = entry.path, .value = std::move(entry.value)});
  }
}

}  // namespace leafpack::internal
