// A small JSON reader and writer for the metadata of files. Bounded depth, no recursion without a
// limit.
#ifndef LEAFPACK_TENSORDICT_IO_JSON_H_
#define LEAFPACK_TENSORDICT_IO_JSON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace leafpack::internal {

// A JSON value. Objects keep their order; a key that comes twice is an error of the reader.
struct Json {
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  // null.
  Json();
  // All out of line: where the compiler sees through moves of the variant it warns of members that
  // are not there.
  explicit Json(bool flag);
  explicit Json(int64_t number);
  explicit Json(double number);
  explicit Json(std::string text_value);
  explicit Json(Array items);
  explicit Json(Object items);
  Json(const Json&);
  Json& operator=(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(Json&&) noexcept;
  ~Json();

  // null, true and false, whole numbers of 64 signed bits, other numbers, text, [], {}.
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value;

  // The value of a key; null if this is no object or has no such key.
  const Json* Find(std::string_view key) const;
  const std::string* text() const { return std::get_if<std::string>(&value); }
};

inline constexpr int kMaxJsonDepth = 80;

// InvalidArgument, naming the byte, for anything that is not one JSON value (RFC 8259, and as
// Python writes it NaN, Infinity and -Infinity), that nests deeper than kMaxJsonDepth, or has text
// that is not UTF-8.
absl::StatusOr<Json> ParseJson(std::string_view text);

// Without spaces. Floats are written so that they are read as the very same; NaN and infinity as
// Python does.
std::string WriteJson(const Json& json);

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_IO_JSON_H_
