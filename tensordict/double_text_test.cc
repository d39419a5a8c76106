#include "tensordict/double_text.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/charconv.h"

namespace leafpack {
namespace {

double Read(const std::string& text) {
  double value = 0;
  absl::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

TEST(DoubleTextTest, WritesTheFewestCharacters) {
  EXPECT_EQ(ShortestText(0), "0");
  EXPECT_EQ(ShortestText(-0.0), "-0");
  EXPECT_EQ(ShortestText(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(ShortestText(std::nan("")), "nan");
  EXPECT_EQ(ShortestText(1), "1");
  EXPECT_EQ(ShortestText(-2.5), "-2.5");
  EXPECT_EQ(ShortestText(0.1), "0.1");
  EXPECT_EQ(ShortestText(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(ShortestText(100000), "1e+05");
  EXPECT_EQ(ShortestText(123456), "123456");
  EXPECT_EQ(ShortestText(0.0001), "1e-04");
  EXPECT_EQ(ShortestText(0.00123), "0.00123");
  EXPECT_EQ(ShortestText(1e22), "1e+22");
  EXPECT_EQ(ShortestText(1.5e300), "1.5e+300");
  EXPECT_EQ(ShortestText(5e-324), "5e-324");
  EXPECT_EQ(ShortestText(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
  // The shortest is not the nearest of as many digits here.
  EXPECT_EQ(ShortestText(std::ldexp(1, -44)), "5.684341886080802e-14");
  // All digits of a whole number, zeros in place of none.
  EXPECT_EQ(ShortestText(123456789012345678901.0), "123456789012345683968");
}

std::vector<double> Samples() {
  std::vector<double> samples;
  for (int power = -1074; power <= 1023; ++power) {
    const double value = std::ldexp(1, power);
    samples.insert(samples.end(), {value, std::nextafter(value, 0), std::nextafter(value, 1e308)});
  }
  std::mt19937_64 random(20240722);
  for (int i = 0; i < 5000; ++i) {
    samples.push_back(absl::bit_cast<double>(random()));
    samples.push_back(static_cast<double>(random() % 1000000) / 1000);
    samples.push_back(static_cast<double>(random()));
  }
  std::erase_if(samples, [](double value) { return !std::isfinite(value); });
  return samples;
}

TEST(DoubleTextTest, GivesTheSameDouble) {
  for (const double value : Samples()) {
    ASSERT_EQ(absl::bit_cast<uint64_t>(Read(ShortestText(value))), absl::bit_cast<uint64_t>(value))
        << ShortestText(value);
  }
}

#if defined(__cpp_lib_to_chars)
TEST(DoubleTextTest, WritesWhatToCharsWrites) {
  for (const double value : Samples()) {
    char text[40];
    char* const end = std::to_chars(text, text + sizeof(text), value).ptr;
    ASSERT_EQ(ShortestText(value), std::string(text, end));
  }
}
#endif

}  // namespace
}  // namespace leafpack
