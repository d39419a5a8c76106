#include "tensordict/io/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/charconv.h"
#include "absl/strings/str_cat.h"
#include "tensordict/double_text.h"
#include "tensordict/io/safetensors_header.h"

namespace leafpack::internal {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  absl::StatusOr<Json> Read() {
    Json json = Value(0);
    SkipSpace();
    if (status_.ok() && at_ != text_.size()) Fail("something follows the value");
    if (!status_.ok()) return status_;
    return json;
  }

 private:
  void Fail(std::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("JSON: ", what, " (byte ", at_, ")"));
    }
  }

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \n\r\t").find(text_[at_]) != text_.npos) ++at_;
  }

  bool Take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool TakeMark(char c) {
    SkipSpace();
    return Take(std::string_view(&c, 1));
  }

  Json Value(int depth) {
    SkipSpace();
    if (depth > kMaxJsonDepth) Fail("it nests too deep");
    if (!status_.ok()) return {};
    if (at_ == text_.size()) {
      Fail("a value is missing");
      return {};
    }
    if (Take("null")) return {};
    if (Take("true")) return Json(true);
    if (Take("false")) return Json(false);
    if (Take("NaN")) return Json(std::numeric_limits<double>::quiet_NaN());
    if (Take("Infinity")) return Json(std::numeric_limits<double>::infinity());
    if (Take("-Infinity")) return Json(-std::numeric_limits<double>::infinity());
    switch (text_[at_]) {
      case '"':
        return Json(Text());
      case '[':
        return Json(List(depth));
      case '{':
        return Json(Map(depth));
      default:
        return Number();
    }
  }

  Json::Array List(int depth) {
    Json::Array items;
    ++at_;
    if (TakeMark(']')) return items;
    do {
      items.push_back(Value(depth + 1));
    } while (status_.ok() && TakeMark(','));
    if (status_.ok() && !TakeMark(']')) Fail("']' is missing");
    return items;
  }

  Json::Object Map(int depth) {
    Json::Object items;
    ++at_;
    if (TakeMark('}')) return items;
    do {
      SkipSpace();
      if (at_ == text_.size() || text_[at_] != '"') {
        Fail("a name is missing");
        break;
      }
      std::string key = Text();
      if (status_.ok() && !TakeMark(':')) Fail("':' is missing");
      if (!status_.ok()) break;
      items.emplace_back(std::move(key), Value(depth + 1));
    } while (status_.ok() && TakeMark(','));
    if (status_.ok() && !TakeMark('}')) Fail("'}' is missing");
    if (status_.ok()) CheckKeys(items);
    return items;
  }

  void CheckKeys(const Json::Object& items) {
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : items) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) Fail("a name comes twice");
  }

  std::string Text() {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) {
      Fail("a text does not end");
      return {};
    }
    ++at_;
    absl::StatusOr<std::string> text = ParseJsonText(text_.substr(begin, at_ - begin));
    if (!text.ok()) {
      Fail(text.status().message());
      return {};
    }
    return *std::move(text);
  }

  Json Number() {
    const size_t begin = at_;
    constexpr std::string_view kParts = "+-.0123456789eE";
    while (at_ < text_.size() && kParts.find(text_[at_]) != text_.npos) ++at_;
    const std::string_view number = text_.substr(begin, at_ - begin);
    const std::string_view digits = number.substr(number.starts_with('-') ? 1 : 0);
    const bool whole = number.find_first_of(".eE") == number.npos;
    // What from_chars takes but JSON does not: no digits, a leading zero, a leading or last point.
    const size_t point = number.find('.');
    const bool bad_point = point != number.npos && (point + 1 == number.size() ||
                                                    number[point + 1] < '0' ||
                                                    number[point + 1] > '9');
    if (digits.empty() || digits[0] < '0' || digits[0] > '9' || bad_point ||
        (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9')) {
      Fail("a value is missing or no number");
      return {};
    }
    const char* end = number.data() + number.size();
    if (whole) {
      int64_t value = 0;
      const auto [stop, error] = std::from_chars(number.data(), end, value);
      if (error != std::errc() || stop != end) {
        Fail("a whole number does not fit 64 bits");
        return {};
      }
      return Json(value);
    }
    double value = 0;
    const auto [stop, error] = absl::from_chars(number.data(), end, value);
    if (error != std::errc() || stop != end) {
      Fail("a number is not valid or out of range");
      return {};
    }
    return Json(value);
  }

  const std::string_view text_;
  size_t at_ = 0;
  absl::Status status_;
};

struct Writer {
  std::string& out;

  void operator()(std::monostate) const { out += "null"; }
  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(int64_t value) const { absl::StrAppend(&out, value); }
  void operator()(double value) const {
    if (std::isnan(value)) {
      out += "NaN";
    } else if (std::isinf(value)) {
      out += value < 0 ? "-Infinity" : "Infinity";
    } else {
      const std::string number = ShortestText(value);
      out += number;
      if (number.find_first_of(".e") == number.npos) out += ".0";
    }
  }
  void operator()(const std::string& value) const { out += WriteJsonText(value); }
  void operator()(const Json::Array& items) const {
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += ',';
      std::visit(*this, items[i].value);
    }
    out += ']';
  }
  void operator()(const Json::Object& items) const {
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += ',';
      out += WriteJsonText(items[i].first);
      out += ':';
      std::visit(*this, items[i].second.value);
    }
    out += '}';
  }
};

}  // namespace

Json::Json() = default;
Json::Json(bool flag) : value(flag) {}
Json::Json(int64_t number) : value(number) {}
Json::Json(double number) : value(number) {}
Json::Json(std::string text_value) : value(std::move(text_value)) {}
Json::Json(Array items) : value(std::move(items)) {}
Json::Json(Object items) : value(std::move(items)) {}
Json::Json(const Json&) = default;
Json& Json::operator=(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

const Json* Json::Find(std::string_view key) const {
  const auto* object = std::get_if<Object>(&value);
  if (object == nullptr) return nullptr;
  for (const auto& [name, item] : *object) {
    if (name == key) return &item;
  }
  return nullptr;
}

absl::StatusOr<Json> ParseJson(std::string_view text) { return Reader(text).Read(); }

std::string WriteJson(const Json& json) {
  std::string out;
  std::visit(Writer{out}, json.value);
  return out;
}

}  // namespace leafpack::internal
