#include "tensordict/io/safetensors_header.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace leafpack::internal {
namespace {

struct Dtype {
  std::string_view name;
  c10::ScalarType dtype;
};
constexpr Dtype kDtypes[] = {
    {"BOOL", c10::ScalarType::Bool},
    {"U8", c10::ScalarType::Byte},
    {"I8", c10::ScalarType::Char},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2FNUZ", c10::ScalarType::Float8_e5m2fnuz},
    {"F8_E4M3FNUZ", c10::ScalarType::Float8_e4m3fnuz},
    {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu},
    {"I16", c10::ScalarType::Short},
    {"U16", c10::ScalarType::UInt16},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"I32", c10::ScalarType::Int},
    {"U32", c10::ScalarType::UInt32},
    {"F32", c10::ScalarType::Float},
    {"F64", c10::ScalarType::Double},
    {"I64", c10::ScalarType::Long},
    {"U64", c10::ScalarType::UInt64},
    {"C64", c10::ScalarType::ComplexFloat},
};

constexpr size_t kMaxDims = 64;

// Reads the one form of JSON that a header has. Every step says where it failed; nothing recurses.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<SafetensorsHeader> Parse() {
    SafetensorsHeader header;
    std::set<std::string> names;
    bool more = Open('{', '}');
    while (ok() && more) {
      std::string name = String();
      if (ok() && !names.insert(name).second) Fail(absl::StrCat(Quote(name), " is given twice"));
      Expect(':');
      if (!ok()) break;
      if (name == "__metadata__") {
        Metadata(header.metadata);
      } else {
        header.entries.push_back(Entry(std::move(name)));
      }
      more = Next('}');
    }
    SkipSpace();
    if (ok() && at_ != text_.size()) Fail("something follows the header");
    if (!ok()) return status_;
    return header;
  }

  // The whole input as one text in quotes.
  absl::StatusOr<std::string> ParseText() {
    std::string text = String();
    if (ok() && at_ != text_.size()) Fail("something follows the text");
    if (!ok()) return status_;
    return text;
  }

  static std::string Quote(std::string_view name) {
    constexpr size_t kLongest = 200;
    return absl::StrCat("\"", absl::Utf8SafeCHexEscape(name.substr(0, kLongest)),
                        name.size() > kLongest ? "..." : "", "\"");
  }

 private:
  bool ok() const { return status_.ok(); }

  void Fail(std::string_view what) {
    if (ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(what, " (byte ", at_, ")"));
    }
  }

  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' ||
                                  text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool Peek(char c) {
    SkipSpace();
    return at_ < text_.size() && text_[at_] == c;
  }

  void Expect(char c) {
    if (!ok()) return;
    if (Peek(c)) {
      ++at_;
    } else {
      Fail(absl::StrCat("'", std::string(1, c), "' is missing"));
    }
  }

  // Reads the opening mark; true if an item follows, else also the closing one.
  bool Open(char open, char close) {
    Expect(open);
    if (!ok()) return false;
    if (!Peek(close)) return true;
    ++at_;
    return false;
  }

  // After an item: true if another follows.
  bool Next(char close) {
    if (!ok()) return false;
    if (Peek(',')) {
      ++at_;
      return true;
    }
    Expect(close);
    return false;
  }

  int Hex4() {
    int value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      int digit = 0;
      if (c >= '0' && c <= '9') {
        digit = c - '0';
      } else if (c >= 'a' && c <= 'f') {
        digit = c - 'a' + 10;
      } else if (c >= 'A' && c <= 'F') {
        digit = c - 'A' + 10;
      } else {
        Fail("\\u must be followed by four hexadecimal digits");
        return 0;
      }
      value = value * 16 + digit;
    }
    return value;
  }

  static void AppendUtf8(uint32_t code, std::string& out) {
    const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0 | code >> 6);
      put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3F));
      put(0x80 | (code & 0x3F));
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
      put(0x80 | (code >> 6 & 0x3F));
      put(0x80 | (code & 0x3F));
    }
  }

  std::string String() {
    std::string out;
    Expect('"');
    while (ok()) {
      if (at_ >= text_.size()) {
        Fail("a text does not end");
        break;
      }
      const char c = text_[at_++];
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) {
        Fail("a text has a control character");
        break;
      }
      if (c != '\\') {
        out.push_back(c);
        continue;
      }
      const char escape = at_ < text_.size() ? text_[at_++] : '\0';
      switch (escape) {
        case '"':
        case '\\':
        case '/':
          out.push_back(escape);
          break;
        case 'b':
          out.push_back('\b');
          break;
        case 'f':
          out.push_back('\f');
          break;
        case 'n':
          out.push_back('\n');
          break;
        case 'r':
          out.push_back('\r');
          break;
        case 't':
          out.push_back('\t');
          break;
        case 'u': {
          auto code = static_cast<uint32_t>(Hex4());
          if (code >= 0xD800 && code < 0xDC00) {
            if (text_.substr(at_, 2) != "\\u") {
              Fail("half of a surrogate pair");
              break;
            }
            at_ += 2;
            const auto low = static_cast<uint32_t>(Hex4());
            if (low < 0xDC00 || low > 0xDFFF) {
              Fail("half of a surrogate pair");
              break;
            }
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
          } else if (code >= 0xDC00 && code <= 0xDFFF) {
            Fail("half of a surrogate pair");
            break;
          }
          AppendUtf8(code, out);
          break;
        }
        default:
          Fail("an escape is unknown");
      }
    }
    if (ok() && !IsUtf8(out)) Fail("a text is not UTF-8");
    return out;
  }

  // A whole number from 0 to the largest int64.
  int64_t Number() {
    SkipSpace();
    const size_t begin = at_;
    int64_t value = 0;
    while (ok() && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      const int digit = text_[at_] - '0';
      if (value > (std::numeric_limits<int64_t>::max() - digit) / 10) {
        Fail("a number is too large");
        return 0;
      }
      value = value * 10 + digit;
      ++at_;
    }
    if (at_ == begin) Fail("a whole number is missing");
    if (at_ - begin > 1 && text_[begin] == '0') Fail("a number begins with 0");
    return value;
  }

  std::vector<int64_t> Numbers(size_t most) {
    std::vector<int64_t> numbers;
    bool more = Open('[', ']');
    while (ok() && more) {
      if (numbers.size() == most) {
        Fail(absl::StrCat("a list has more than ", most, " numbers"));
        break;
      }
      numbers.push_back(Number());
      more = Next(']');
    }
    return numbers;
  }

  void Metadata(std::map<std::string, std::string>& metadata) {
    // The Python package reads it as no metadata.
    if (Peek('n') && text_.substr(at_, 4) == "null") {
      at_ += 4;
      return;
    }
    bool more = Open('{', '}');
    while (ok() && more) {
      std::string key = String();
      Expect(':');
      std::string value = String();
      if (ok() && !metadata.emplace(key, std::move(value)).second) {
        Fail(absl::StrCat("the metadata ", Quote(key), " is given twice"));
      }
      more = Next('}');
    }
  }

  SafetensorsEntry Entry(std::string name) {
    SafetensorsEntry entry;
    entry.name = std::move(name);
    bool has_dtype = false, has_shape = false, has_offsets = false;
    bool more = Open('{', '}');
    while (ok() && more) {
      const std::string field = String();
      Expect(':');
      if (!ok()) break;
      if (field == "dtype" && !has_dtype) {
        has_dtype = true;
        const std::string dtype = String();
        const auto* known = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                         [&](const Dtype& d) { return d.name == dtype; });
        if (known == std::end(kDtypes)) {
          Fail(absl::StrCat(Quote(entry.name), " has the unknown dtype ", Quote(dtype)));
          break;
        }
        entry.dtype = known->dtype;
      } else if (field == "shape" && !has_shape) {
        has_shape = true;
        entry.shape = Numbers(kMaxDims);
      } else if (field == "data_offsets" && !has_offsets) {
        has_offsets = true;
        const std::vector<int64_t> offsets = Numbers(2);
        if (ok() && offsets.size() != 2) Fail("data_offsets are not two numbers");
        if (!ok()) break;
        entry.begin = offsets[0];
        entry.end = offsets[1];
      } else {
        Fail(absl::StrCat(Quote(entry.name), " has the field ", Quote(field),
                          " twice, or the format has none"));
      }
      more = Next('}');
    }
    if (ok() && !(has_dtype && has_shape && has_offsets)) {
      Fail(absl::StrCat(Quote(entry.name), " lacks one of dtype, shape, data_offsets"));
    }
    return entry;
  }

  const std::string_view text_;
  size_t at_ = 0;
  absl::Status status_;
};

// Bytes of a tensor of this shape and dtype; nullopt if they overflow.
std::optional<int64_t> BytesOf(const SafetensorsEntry& entry) {
  auto bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  // A zero anywhere makes it empty, but torch multiplies the others all the same.
  for (const int64_t size : entry.shape) {
    if (size == 0) continue;
    if (bytes > std::numeric_limits<int64_t>::max() / size) return std::nullopt;
    bytes *= size;
  }
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  return empty ? 0 : bytes;
}

}  // namespace

absl::StatusOr<std::string> ParseJsonText(std::string_view quoted) {
  return Parser(quoted).ParseText();
}

std::string WriteJsonText(std::string_view text) {
  constexpr std::string_view kEscaped = "\b\f\n\r\t";
  constexpr std::string_view kEscapes = "bfnrt";
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (const size_t known = kEscaped.find(c); known != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kEscapes[known]);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<int>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) {
      return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U;
    };
    const unsigned first = byte(i);
    size_t length = 0;
    unsigned code = 0;
    if (first < 0x80) {
      length = 1;
      code = first;
    } else if (first >= 0xC2 && first < 0xE0) {
      length = 2;
      code = first & 0x1F;
    } else if (first >= 0xE0 && first < 0xF0) {
      length = 3;
      code = first & 0x0F;
    } else if (first >= 0xF0 && first < 0xF5) {
      length = 4;
      code = first & 0x07;
    } else {
      return false;
    }
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return false;
      code = code << 6 | (byte(i + k) & 0x3F);
    }
    if (length == 3 && (code < 0x800 || (code >= 0xD800 && code < 0xE000))) return false;
    if (length == 4 && (code < 0x10000 || code > 0x10FFFF)) return false;
    i += length;
  }
  return true;
}

std::optional<std::string_view> SafetensorsDtypeName(c10::ScalarType dtype) {
  for (const Dtype& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  return std::nullopt;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text,
                                                         int64_t data_bytes) {
  absl::StatusOr<SafetensorsHeader> header = Parser(text).Parse();
  if (!header.ok()) return header;
  std::stable_sort(header->entries.begin(), header->entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  int64_t at = 0;
  for (const SafetensorsEntry& entry : header->entries) {
    const auto error = [&](std::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(
          Parser::Quote(entry.name), " at bytes ", entry.begin, " to ", entry.end, " ", what));
    };
    if (entry.end < entry.begin) return error("ends before it begins");
    if (entry.end > data_bytes) {
      return error(absl::StrCat("ends beyond the ", data_bytes, " bytes of values in the file"));
    }
    const std::optional<int64_t> bytes = BytesOf(entry);
    if (!bytes.has_value()) return error("has a shape whose bytes overflow");
    if (*bytes != entry.end - entry.begin) {
      return error(absl::StrCat("should have ", *bytes, " bytes by its shape [",
                                absl::StrJoin(entry.shape, ", "), "] and dtype"));
    }
    if (entry.begin < at) return error("overlaps what comes before it");
    if (entry.begin > at) return error(absl::StrCat("leaves a gap behind byte ", at));
    at = entry.end;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("nothing stands at bytes ", at, " to ", data_bytes, " of the values"));
  }
  return header;
}

std::string WriteSafetensorsHeader(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto comma = [&text] {
    if (text.size() > 1) text += ",";
  };
  if (!header.metadata.empty()) {
    text += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : header.metadata) {
      absl::StrAppend(&text, first ? "" : ",", WriteJsonText(key), ":", WriteJsonText(value));
      first = false;
    }
    text += "}";
  }
  for (const SafetensorsEntry& entry : header.entries) {
    comma();
    absl::StrAppend(&text, WriteJsonText(entry.name), ":{\"dtype\":\"",
                    SafetensorsDtypeName(entry.dtype).value_or(""), "\",\"shape\":[",
                    absl::StrJoin(entry.shape, ","), "],\"data_offsets\":[", entry.begin, ",",
                    entry.end, "]}");
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace leafpack::internal
