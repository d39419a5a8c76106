#include "distributed/core/protocol/types.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace leafpack::protocol {
namespace {

// A text names at most this many ranks.
constexpr size_t kMaxNamed = 16;

std::string Name(uint32_t rank, const RankNamer& name) {
  return name ? name(rank) : absl::StrCat(rank);
}

}  // namespace

std::string RanksText(absl::Span<const uint32_t> ranks, const RankNamer& name) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return absl::StrCat("rank ", Name(ranks[0], name));
  std::string text = "ranks ";
  if (ranks.size() > kMaxNamed) {
    for (size_t i = 0; i < kMaxNamed; ++i) absl::StrAppend(&text, Name(ranks[i], name), ", ");
    absl::StrAppend(&text, "... (", ranks.size(), " ranks)");
    return text;
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i != 0) absl::StrAppend(&text, i + 1 == ranks.size() ? " and " : ", ");
    absl::StrAppend(&text, Name(ranks[i], name));
  }
  return text;
}

std::string Clip(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t end = limit;
  // Continuation bytes are 10xxxxxx: step back to the start of the character that the cut would
  // split.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

}  // namespace leafpack::protocol
