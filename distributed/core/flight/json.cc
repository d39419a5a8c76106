#include "distributed/core/flight/json.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace leafpack {
namespace {

// Length of the UTF-8 sequence at the start of `text`; 0 if there is none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  uint32_t point = 0;
  if (first >= 0xc2 && first < 0xe0) {
    length = 2;
    point = first & 0x1fu;
  } else if (first >= 0xe0 && first < 0xf0) {
    length = 3;
    point = first & 0x0fu;
  } else if (first >= 0xf0 && first < 0xf5) {
    length = 4;
    point = first & 0x07u;
  }
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3fu);
  }
  if (length == 3 && (point < 0x800 || (point >= 0xd800 && point < 0xe000))) return 0;
  if (length == 4 && (point < 0x10000 || point > 0x10ffff)) return 0;
  return length;
}

}  // namespace

void JsonWriter::Comma() {
  if (comma_) text_ += ',';
  comma_ = true;
}

void JsonWriter::Open(char bracket) {
  Comma();
  text_ += bracket;
  comma_ = false;
}

void JsonWriter::Close(char bracket) {
  text_ += bracket;
  comma_ = true;
}

void JsonWriter::Quote(std::string_view text) {
  text_ += '"';
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const char c = text[0];
    if (length == 0) {
      text_ += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&text_, "\\u%04x", static_cast<int>(c));
    } else {
      text_.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  text_ += '"';
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Comma();
  Quote(key);
  text_ += ':';
  comma_ = false;
  return *this;
}

void JsonWriter::String(std::string_view text) {
  Comma();
  Quote(text);
}

void JsonWriter::Int(int64_t value) {
  Comma();
  absl::StrAppend(&text_, value);
}

void JsonWriter::Bool(bool value) {
  Comma();
  text_ += value ? "true" : "false";
}

void JsonWriter::Raw(std::string_view json) {
  Comma();
  text_.append(json);
}

}  // namespace leafpack
