#include "tensordict/nested_key.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace leafpack {
namespace {

// Length of the well-formed UTF-8 sequence at the begin of `text`, and its code point; 0 if there
// is none (overlong forms, surrogates and values over 0x10ffff are not well-formed).
size_t DecodeUtf8(std::string_view text, uint32_t& code_point) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    code_point = first;
    return 1;
  }
  size_t length = 0;
  uint32_t least = 0;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
    least = 0x80;
    code_point = first & 0x1f;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    least = 0x800;
    code_point = first & 0x0f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    least = 0x10000;
    code_point = first & 0x07;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code_point = (code_point << 6) | (byte(i) & 0x3f);
  }
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  return code_point < least || code_point > 0x10ffff || surrogate ? 0 : length;
}

// Characters that a terminal does not show, or that change what stands beside them: control
// characters, zero-width and bidirectional marks, line separators, the byte order mark.
bool IsInvisible(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0xad || (c >= 0x200b && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
         (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe007f);
}

// Characters that have a meaning in a printed path.
bool IsReserved(uint32_t c) {
  return c == '.' || c == '"' || c == '\\' || c == '[' || c == ']' || c == ' ' || c == ',' ||
         c == '\'';
}

void AppendEscapedByte(uint8_t byte, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (byte) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
}

void AppendName(std::string_view name, std::string& out) {
  bool plain = !name.empty();
  for (size_t i = 0; plain && i < name.size();) {
    uint32_t c = 0;
    const size_t length = DecodeUtf8(name.substr(i), c);
    plain = length > 0 && !IsInvisible(c) && !IsReserved(c);
    i += length;
  }
  if (plain) {
    out += name;
    return;
  }
  out += '"';
  for (size_t i = 0; i < name.size();) {
    uint32_t c = 0;
    const size_t length = DecodeUtf8(name.substr(i), c);
    if (length == 0 || IsInvisible(c)) {
      for (size_t k = 0; k < std::max<size_t>(length, 1); ++k) {
        AppendEscapedByte(static_cast<uint8_t>(name[i + k]), out);
      }
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += name.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  out += '"';
}

}  // namespace

std::string KeyComponent::ToString() const {
  if (is_position_) return absl::StrCat("[", position_, "]");
  std::string out;
  AppendName(name_, out);
  return out;
}

NestedKey NestedKey::Child(KeyComponent component) const {
  NestedKey child;
  child.components_.reserve(components_.size() + 1);
  child.components_ = components_;
  child.components_.push_back(std::move(component));
  return child;
}

NestedKey NestedKey::Join(const NestedKey& tail) const {
  NestedKey joined = *this;
  joined.components_.insert(joined.components_.end(), tail.begin(), tail.end());
  return joined;
}

bool NestedKey::IsPrefixOf(const NestedKey& other) const {
  return size() <= other.size() && std::equal(begin(), end(), other.begin());
}

std::string NestedKey::ToString() const {
  if (components_.empty()) return ".";
  std::string out;
  for (const KeyComponent& component : components_) {
    if (component.is_position()) {
      absl::StrAppend(&out, "[", component.position(), "]");
    } else {
      if (!out.empty()) out += '.';
      AppendName(component.name(), out);
    }
  }
  return out;
}

}  // namespace leafpack
