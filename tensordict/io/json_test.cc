#include "tensordict/io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>

namespace leafpack::internal {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const absl::StatusOr<Json> json = ParseJson(text);
  EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(json.status().message());
}

TEST(JsonTest, WhatIsWrittenIsRead) {
  for (const char* text :
       {"null", "true", "false", "0", "-7", "9223372036854775807", "-9223372036854775808", "2.5",
        "1.0", "1e+300", "-0.0", "0.1", "NaN", "Infinity", "-Infinity", "\"\"", "\"a\\n\\\"\u00e9\"",
        "[]", "{}", "[1,[2,{}],\"x\"]", "{\"a\":{\"b\":[null]},\"\":1}"}) {
    const absl::StatusOr<Json> json = ParseJson(text);
    ASSERT_TRUE(json.ok()) << text << ": " << json.status();
    EXPECT_EQ(WriteJson(*json), text);
  }
  const absl::StatusOr<Json> json = ParseJson(" { \"a\" : [ 1 , 2.0 ] ,\n\"b\\u0041\" : true } ");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(WriteJson(*json), "{\"a\":[1,2.0],\"bA\":true}");
  EXPECT_EQ(std::get<bool>(json->Find("bA")->value), true);
  EXPECT_EQ(json->Find("c"), nullptr);
  EXPECT_EQ(json->Find("a")->Find("c"), nullptr);
}

TEST(JsonTest, OtherTextIsRefused) {
  for (const char* text : {"", " ", "nul", "tru", "01", "-", "+1", "1.", ".5", "1e", "--1", "[", "[1",
                           "[1,", "[1,]", "[1 2]", "]", "{", "{\"a\"", "{\"a\":", "{\"a\":1",
                           "{\"a\":1,}", "{a:1}", "{1:1}", "\"", "\"\\", "\"\\x\"", "\"\\ud800\"",
                           "\"\xff\"", "1 1", "{}x", "'a'", "1e999", "0x1"}) {
    ErrorOf(text);
  }
  EXPECT_THAT(ErrorOf("9223372036854775808"), HasSubstr("64 bits"));
  EXPECT_THAT(ErrorOf("{\"a\":1,\"a\":2}"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(std::string(1'000'000, '[')), HasSubstr("too deep"));
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) deep += "{\"a\":";
  EXPECT_THAT(ErrorOf(deep), HasSubstr("too deep"));
}

TEST(JsonTest, RandomChanges) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  const std::string good = R"({"a":{"shape":[2,-1.5e3],"x":"\u00e9\n"},"b":[null,true,NaN]})";
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (size_t n = 1 + rng() % 3; n > 0 && !text.empty(); --n) {
      const size_t at = rng() % text.size();
      if (rng() % 2 == 0) {
        text[at] = static_cast<char>(rng());
      } else {
        text.erase(at, 1 + rng() % 4);
      }
    }
    const absl::StatusOr<Json> json = ParseJson(text);
    if (!json.ok()) continue;
    // What was taken is the same when it is written and read.
    const std::string written = WriteJson(*json);
    const absl::StatusOr<Json> again = ParseJson(written);
    ASSERT_TRUE(again.ok()) << text << ": " << again.status();
    ASSERT_EQ(WriteJson(*again), written);
  }
}

}  // namespace
}  // namespace leafpack::internal
