#include "tensordict/double_text.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/strings/charconv.h"
#include "absl/strings/str_cat.h"

namespace leafpack {
namespace {

// 0.d1d2d3... times ten to the power of `point`.
struct Decimal {
  std::string digits;
  int point = 0;
};

// `value`, positive, rounded to that many digits.
Decimal Round(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.*e", digits - 1, value);
  Decimal decimal;
  const char* at = text;
  // What stands between the digits depends on the locale.
  for (; *at != 'e'; ++at) {
    if (*at >= '0' && *at <= '9') decimal.digits += *at;
  }
  decimal.point = std::atoi(at + 1) + 1;
  return decimal;
}

// The next number of as many digits.
Decimal Next(Decimal decimal) {
  for (size_t i = decimal.digits.size(); i-- > 0;) {
    if (decimal.digits[i] != '9') {
      ++decimal.digits[i];
      return decimal;
    }
    decimal.digits[i] = '0';
  }
  decimal.digits.insert(decimal.digits.begin(), '1');
  decimal.digits.pop_back();
  ++decimal.point;
  return decimal;
}

bool Reads(const Decimal& decimal, double value) {
  const std::string text = absl::StrCat("0.", decimal.digits, "e", decimal.point);
  double read = 0;
  const auto [end, error] = absl::from_chars(text.data(), text.data() + text.size(), read);
  // What is too large reads as the largest, with an error.
  return error == std::errc() && read == value;
}

Decimal Shortest(double value) {
  for (int digits = 1; digits < 17; ++digits) {
    Decimal decimal = Round(value, digits);
    if (Reads(decimal, value)) return decimal;
    // At a power of two doubles stand twice as close below as above: where the nearest decimal, below, is
    // another double's, one above may be this one's.
    decimal = Next(std::move(decimal));
    if (Reads(decimal, value)) return decimal;
  }
  return Round(value, 17);
}

std::string Scientific(const Decimal& decimal) {
  std::string text = decimal.digits.substr(0, 1);
  if (decimal.digits.size() > 1) absl::StrAppend(&text, ".", decimal.digits.substr(1));
  const int exponent = decimal.point - 1;
  return absl::StrCat(text, exponent < 0 ? "e-" : "e+",
                      absl::Dec(std::abs(exponent), absl::kZeroPad2));
}

// As Scientific(), without an exponent; only asked for where that is short.
std::string Fixed(double value, const Decimal& decimal) {
  const std::string& digits = decimal.digits;
  const int count = static_cast<int>(digits.size());
  if (decimal.point <= 0) return absl::StrCat("0.", std::string(-decimal.point, '0'), digits);
  if (decimal.point < count) {
    return absl::StrCat(digits.substr(0, decimal.point), ".", digits.substr(decimal.point));
  }
  // A whole number: all of its digits.
  char text[40];
  std::snprintf(text, sizeof(text), "%.0f", value);
  return text;
}

}  // namespace

std::string ShortestText(double value) {
  const std::string_view sign = std::signbit(value) ? "-" : "";
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return absl::StrCat(sign, "inf");
  if (value == 0) return absl::StrCat(sign, "0");
  const double positive = std::abs(value);
  Decimal decimal = Shortest(positive);
  while (decimal.digits.size() > 1 && decimal.digits.back() == '0') decimal.digits.pop_back();
  std::string text = Scientific(decimal);
  if (decimal.point > -8 && decimal.point < 24) {
    std::string fixed = Fixed(positive, decimal);
    if (fixed.size() <= text.size()) text = std::move(fixed);
  }
  return absl::StrCat(sign, text);
}

}  // namespace leafpack
