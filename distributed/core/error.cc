#include "distributed/core/error.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace leafpack {
namespace {

constexpr std::string_view kTypeUrl = "leafpack/ErrorDetails";
// Of trees, which know no details: the path alone, as text (tensordict/path_payload.h).
constexpr std::string_view kPathUrl = "leafpack/Path";

// The payload never leaves the process: a plain sequence of length-prefixed fields in host order.
void PutU32(std::string& out, uint32_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::string& out, std::string_view value) {
  PutU32(out, static_cast<uint32_t>(value.size()));
  out.append(value);
}

class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}
  uint32_t U32() {
    uint32_t value = 0;
    if (data_.size() < sizeof(value)) {
      data_ = {};
      return 0;
    }
    std::memcpy(&value, data_.data(), sizeof(value));
    data_.remove_prefix(sizeof(value));
    return value;
  }
  std::string String() {
    const uint32_t size = U32();
    if (size > data_.size()) {
      data_ = {};
      return "";
    }
    std::string value(data_.substr(0, size));
    data_.remove_prefix(size);
    return value;
  }
  // No count is believed beyond what is left to read.
  uint32_t Count() {
    const uint32_t count = U32();
    return count <= data_.size() / sizeof(uint32_t) ? count : 0;
  }

 private:
  std::string_view data_;
};

}  // namespace

ErrorDetails GetErrorDetails(const absl::Status& status) {
  ErrorDetails details;
  if (const auto path = status.GetPayload(kPathUrl); path.has_value()) {
    details.path = std::string(*path);
  }
  auto payload = status.GetPayload(kTypeUrl);
  if (!payload.has_value()) {
    // A tree's own error, of a kind of leaf.
    if (!details.path.empty() && absl::IsUnimplemented(status)) {
      details.kind = ErrorKind::kUnsupported;
    }
    return details;
  }
  const std::string bytes(*payload);
  Reader reader(bytes);
  details.kind = static_cast<ErrorKind>(reader.U32());
  details.tree_unchanged = reader.U32() != 0;
  details.outcome_unknown = reader.U32() != 0;
  if (std::string path = reader.String(); !path.empty()) details.path = std::move(path);
  for (uint32_t n = reader.Count(); n > 0; --n) {
    details.ranks.push_back(GlobalRank(static_cast<int>(reader.U32())));
  }
  for (uint32_t n = reader.Count(); n > 0; --n) details.paths_done.push_back(reader.String());
  return details;
}

absl::Status WithErrorDetails(absl::Status status, const ErrorDetails& details) {
  if (status.ok()) return status;
  std::string bytes;
  PutU32(bytes, static_cast<uint32_t>(details.kind));
  PutU32(bytes, details.tree_unchanged ? 1 : 0);
  PutU32(bytes, details.outcome_unknown ? 1 : 0);
  PutString(bytes, details.path);
  PutU32(bytes, static_cast<uint32_t>(details.ranks.size()));
  for (GlobalRank rank : details.ranks) PutU32(bytes, static_cast<uint32_t>(rank.value()));
  PutU32(bytes, static_cast<uint32_t>(details.paths_done.size()));
  for (const std::string& path : details.paths_done) PutString(bytes, path);
  status.SetPayload(kTypeUrl, absl::Cord(bytes));
  return status;
}

absl::Status AnnotateStatus(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view type, const absl::Cord& payload) {
    annotated.SetPayload(type, payload);
  });
  return annotated;
}

std::string FormatRanks(absl::Span<const GlobalRank> ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0].value());
  std::string text = absl::StrCat("ranks ", ranks[0].value());
  for (size_t i = 1; i < ranks.size(); ++i) {
    absl::StrAppend(&text, i + 1 == ranks.size() ? " and " : ", ", ranks[i].value());
  }
  return text;
}

}  // namespace leafpack
