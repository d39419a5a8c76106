#include "tensordict/io/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace leafpack::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(std::string_view text, int64_t data_bytes = 8) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text, data_bytes);
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(header.status().message());
}

// A header with one tensor of these fields.
std::string One(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return absl::StrCat(R"({"a":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}}");
}

TEST(SafetensorsHeaderTest, Reads) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(
      " { \"__metadata__\" : {\"k\":\"v\\u00e9\\ud83d\\ude00\\n\"} ,\n"
      "\"b\":{\"shape\":[],\"dtype\":\"I64\",\"data_offsets\":[24,32]},"
      "\"a\\/\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
      "\"z\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[24,24]} }  ",
      32);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->entries.size(), 3u);
  EXPECT_EQ(header->entries[0].name, "a/");
  EXPECT_THAT(header->entries[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(header->entries[1].name, "z");
  EXPECT_EQ(header->entries[2].dtype, c10::ScalarType::Long);
  EXPECT_EQ(header->metadata.at("k"), "v\u00e9\U0001F600\n");
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
  EXPECT_TRUE(ParseSafetensorsHeader(R"({"__metadata__": null})", 0)->metadata.empty());
  EXPECT_EQ(ParseSafetensorsHeader(One("F8_E8M0", "[2]", "[0,2]"), 2)->entries[0].dtype,
            c10::ScalarType::Float8_e8m0fnu);
}

TEST(SafetensorsHeaderTest, RangesMustCoverTheValuesExactly) {
  EXPECT_TRUE(ParseSafetensorsHeader(One("F32", "[2]", "[0,8]"), 8).ok());
  EXPECT_THAT(ErrorOf(One("F32", "[2]", "[0,8]"), 7),
              HasSubstr("\"a\" at bytes 0 to 8 ends beyond"));
  EXPECT_THAT(ErrorOf(One("F32", "[2]", "[0,8]"), 12),
              HasSubstr("nothing stands at bytes 8 to 12"));
  EXPECT_THAT(ErrorOf(One("F32", "[2]", "[4,12]"), 12), HasSubstr("leaves a gap behind byte 0"));
  EXPECT_THAT(ErrorOf(One("F32", "[2]", "[8,0]")), HasSubstr("ends before it begins"));
  EXPECT_THAT(ErrorOf(One("F32", "[3]", "[0,8]")), HasSubstr("should have 12 bytes"));
  EXPECT_THAT(ErrorOf(One("F32", "[4294967296,4294967296,4]", "[0,8]")), HasSubstr("overflow"));
  EXPECT_THAT(ErrorOf(One("F32", "[0,9223372036854775807]", "[0,0]"), 0), HasSubstr("overflow"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})"),
              HasSubstr("\"b\" at bytes 4 to 8 overlaps"));
}

TEST(SafetensorsHeaderTest, OtherFormsAreRefused) {
  const std::string good = One("F32", "[2]", "[0,8]");
  for (size_t length = 0; length < good.size(); ++length) ErrorOf(good.substr(0, length));
  EXPECT_THAT(ErrorOf(good + "x"), HasSubstr("something follows"));
  EXPECT_THAT(ErrorOf(One("F33", "[2]", "[0,8]")),
              HasSubstr("\"a\" has the unknown dtype \"F33\""));
  EXPECT_THAT(ErrorOf(One("F32", "[-2]", "[0,8]")), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf(One("F32", "[2.0]", "[0,8]")), HasSubstr("is missing"));
  EXPECT_THAT(ErrorOf(One("F32", "[02]", "[0,8]")), HasSubstr("begins with 0"));
  EXPECT_THAT(ErrorOf(One("F32", "[2]", "[0,8,9]")), HasSubstr("more than 2"));
  EXPECT_THAT(ErrorOf(One("F32", "[2]", "[8]")), HasSubstr("two numbers"));
  EXPECT_THAT(ErrorOf(One("F32", "[2]", "[0,9223372036854775808]")), HasSubstr("too large"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[2]}})"), HasSubstr("lacks one of"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","dtype":"F32"}})"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(R"({"a":{"other":1}})"), HasSubstr("\"other\""));
  EXPECT_THAT(ErrorOf(R"({"a":1})"), HasSubstr("'{' is missing"));
  EXPECT_THAT(ErrorOf(R"([])"), HasSubstr("'{' is missing"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":1}})"), HasSubstr("'\"' is missing"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":null}})"), HasSubstr("'\"' is missing"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":nul})"), HasSubstr("'{' is missing"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":null,"__metadata__":null})"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":"1","a":"2"}})"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(absl::StrCat(good.substr(0, good.size() - 1), ",", good.substr(1))),
              HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(ErrorOf(R"({"\ud800":{}})"), HasSubstr("surrogate"));
  EXPECT_THAT(ErrorOf(R"({"\x":{}})"), HasSubstr("escape"));
  EXPECT_THAT(ErrorOf("{\"\xff\":{}}"), HasSubstr("UTF-8"));
  EXPECT_THAT(ErrorOf(std::string("{\"a\nb\":{}}")), HasSubstr("control"));
  // As deep as one likes: nothing recurses.
  EXPECT_THAT(ErrorOf(R"({"a":)" + std::string(1'000'000, '[')), HasSubstr("'{' is missing"));
  EXPECT_THAT(ErrorOf(R"({"a":{"shape":)" + std::string(1'000'000, '[')), HasSubstr("number"));
}

TEST(SafetensorsHeaderTest, WhatIsWrittenIsRead) {
  SafetensorsHeader header;
  header.metadata = {{"k\n\x01", "\"v\\"}};
  header.entries.push_back({"a.\u00e9", c10::ScalarType::BFloat16, {3, 2}, 0, 12});
  header.entries.push_back({"", c10::ScalarType::Bool, {}, 12, 13});
  const std::string text = WriteSafetensorsHeader(header);
  EXPECT_EQ(text.size() % 8, 0u);
  const absl::StatusOr<SafetensorsHeader> back = ParseSafetensorsHeader(text, 13);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->metadata, header.metadata);
  EXPECT_EQ(back->entries[0].name, header.entries[0].name);
  EXPECT_EQ(back->entries[1].name, "");
  EXPECT_EQ(WriteSafetensorsHeader(*back), text);
}

// Whatever a file says, there is an answer, and what is taken is sound.
TEST(SafetensorsHeaderTest, RandomChanges) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  const std::string good =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"I16","shape":[3],"data_offsets":[8,14]}})";
  ASSERT_TRUE(ParseSafetensorsHeader(good, 14).ok());
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (size_t n = 1 + rng() % 3; n > 0; --n) {
      const size_t at = rng() % text.size();
      switch (rng() % 4) {
        case 0:
          text[at] = static_cast<char>(rng());
          break;
        case 1:
          text.erase(at, 1 + rng() % 8);
          break;
        case 2:
          text.insert(at, text.substr(rng() % text.size(), rng() % 12));
          break;
        default:
          text[at] = "0123456789,:{}[]\"\\"[rng() % 18];
      }
      if (text.empty()) break;
    }
    const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text, 14);
    if (!header.ok()) continue;
    int64_t at = 0;
    for (const SafetensorsEntry& entry : header->entries) {
      ASSERT_EQ(entry.begin, at) << text;
      at = entry.end;
    }
    ASSERT_EQ(at, 14) << text;
  }
}

}  // namespace
}  // namespace leafpack::internal
