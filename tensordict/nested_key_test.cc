#include "tensordict/nested_key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash_testing.h"

namespace leafpack {
namespace {

using std::string_literals::operator""s;

TEST(KeyComponentTest, NamesAndPositionsAreDifferent) {
  EXPECT_NE(KeyComponent("0"), KeyComponent(0));
  EXPECT_NE(KeyComponent(""), KeyComponent(0));
  EXPECT_EQ(KeyComponent("a"s), KeyComponent("a"));
  EXPECT_TRUE(KeyComponent(3u).is_position());
  EXPECT_EQ(KeyComponent(3u).position(), 3);
  EXPECT_TRUE(KeyComponent("3").is_name());
  EXPECT_EQ(KeyComponent("3").name(), "3");
}

TEST(KeyComponentTest, OrderIsPositionsByNumberThenNamesByUnsignedBytes) {
  const std::vector<KeyComponent> rising = {-5,    0,       2,      9,      10,  11,     "",
                                            "\0"s, "\0\0"s, "A",    "B",    "a", "a\0"s, "a.b",
                                            "aa",  "b",     "\x7f", "\x80", "é", "\xff"};
  for (size_t i = 0; i < rising.size(); ++i) {
    for (size_t j = 0; j < rising.size(); ++j) {
      EXPECT_EQ(rising[i] < rising[j], i < j)
          << rising[i].ToString() << " " << rising[j].ToString();
      EXPECT_EQ(rising[i] == rising[j], i == j);
    }
  }
}

TEST(NestedKeyTest, AStringIsOneComponent) {
  EXPECT_EQ(NestedKey("a.b").size(), 1u);
  EXPECT_EQ(NestedKey("").size(), 1u);
  EXPECT_EQ(NestedKey("a.b"s), NestedKey({KeyComponent("a.b")}));
  EXPECT_NE(NestedKey("a.b"), NestedKey({"a", "b"}));
  EXPECT_EQ(NestedKey({"a", "b"}).size(), 2u);
  EXPECT_TRUE(NestedKey().empty());
}

TEST(NestedKeyTest, OrderGoesComponentByComponent) {
  const std::vector<NestedKey> rising = {
      {},     {0},      {0, 0},    {0, "a"},   {1},        {""},          {"", ""},
      {"a"},  {"a", 2}, {"a", 10}, {"a", "b"}, {"a", "c"}, {"a", "c", 0}, {"a\0"s},
      {"a!"}, {"a.b"},  {"aa"},    {"b"},      {"b", "a"}};
  for (size_t i = 0; i < rising.size(); ++i) {
    for (size_t j = 0; j < rising.size(); ++j) {
      EXPECT_EQ(rising[i] < rising[j], i < j) << rising[i] << " " << rising[j];
    }
  }
}

TEST(NestedKeyTest, ToString) {
  EXPECT_EQ(NestedKey().ToString(), ".");
  EXPECT_EQ(NestedKey("a").ToString(), "a");
  EXPECT_EQ(NestedKey({"encoder", 3, "weight"}).ToString(), "encoder[3].weight");
  EXPECT_EQ(NestedKey({0, 1}).ToString(), "[0][1]");
  EXPECT_EQ(NestedKey("a.b").ToString(), "\"a.b\"");
  EXPECT_EQ(NestedKey({"a", ""}).ToString(), "a.\"\"");
  EXPECT_EQ(NestedKey(".").ToString(), "\".\"");
  EXPECT_EQ(NestedKey("[0]").ToString(), "\"[0]\"");
  EXPECT_EQ(NestedKey("say \"hi\"\\").ToString(), "\"say \\\"hi\\\"\\\\\"");
  EXPECT_EQ(NestedKey("a\nb\t\x01\0"s).ToString(), "\"a\\nb\\t\\x01\\x00\"");
  EXPECT_EQ(NestedKey("größe").ToString(), "größe");
  EXPECT_EQ(NestedKey("层").ToString(), "层");
  EXPECT_EQ(NestedKey("\xff").ToString(), "\"\\xff\"");
  EXPECT_EQ(NestedKey("\xc0\x80").ToString(), "\"\\xc0\\x80\"");           // overlong
  EXPECT_EQ(NestedKey("\xed\xa0\x80").ToString(), "\"\\xed\\xa0\\x80\"");  // a surrogate
  EXPECT_EQ(NestedKey("a\u202e").ToString(), "\"a\\xe2\\x80\\xae\"");      // right-to-left override
  EXPECT_EQ(NestedKey("\xe2\x80").ToString(), "\"\\xe2\\x80\"");           // cut short
}

NestedKey RandomKey(std::mt19937_64& rng) {
  static const std::vector<std::string> pieces = {"a",  "b", ".", "\"",  "\\",   "[", "]",     "0",
                                                  "\n", " ", "é", "\0"s, "\xff", "x", "\u200b"};
  NestedKey key;
  const size_t n = rng() % 4;
  for (size_t i = 0; i < n; ++i) {
    if (rng() % 3 == 0) {
      key.push_back(static_cast<int64_t>(rng() % 3));
      continue;
    }
    std::string name;
    for (size_t k = rng() % 3; k > 0; --k) name += pieces[rng() % pieces.size()];
    key.push_back(name);
  }
  return key;
}

TEST(NestedKeyTest, ToStringIsUnambiguousAndPrintable) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  std::map<std::string, NestedKey> seen;
  for (int i = 0; i < 20000; ++i) {
    const NestedKey key = RandomKey(rng);
    const std::string text = key.ToString();
    for (const char c : text) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    const auto [it, inserted] = seen.try_emplace(text, key);
    ASSERT_EQ(it->second, key) << text;
  }
  EXPECT_GT(seen.size(), 1000u);
}

TEST(NestedKeyTest, OrderIsTotal) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  std::vector<NestedKey> keys;
  for (int i = 0; i < 300; ++i) keys.push_back(RandomKey(rng));
  std::vector<NestedKey> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t j = i; j < sorted.size(); ++j) {
      EXPECT_TRUE(sorted[i] <= sorted[j]);
      EXPECT_EQ(sorted[i] == sorted[j], !(sorted[i] < sorted[j]));
    }
  }
  // All paths that begin with one path are neighbours, behind it.
  for (size_t i = 0; i + 1 < sorted.size(); ++i) {
    for (size_t j = i + 1; j < sorted.size(); ++j) {
      if (!sorted[i].IsPrefixOf(sorted[j])) continue;
      for (size_t k = i; k < j; ++k) EXPECT_TRUE(sorted[i].IsPrefixOf(sorted[k]));
    }
  }
}

TEST(NestedKeyTest, ChildJoinAndPrefix) {
  const NestedKey key = {"a", 1};
  EXPECT_EQ(key.Child("b"), NestedKey({"a", 1, "b"}));
  EXPECT_EQ(key.Join({"b", 2}), NestedKey({"a", 1, "b", 2}));
  EXPECT_TRUE(key.IsPrefixOf(key));
  EXPECT_TRUE(NestedKey().IsPrefixOf(key));
  EXPECT_TRUE(key.IsPrefixOf({"a", 1, "b"}));
  EXPECT_FALSE(key.IsPrefixOf({"a", "1", "b"}));
  EXPECT_FALSE(key.IsPrefixOf({"a"}));
}

TEST(NestedKeyTest, Hash) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(std::vector<NestedKey>{
      {}, {""}, {"", ""}, {0}, {"0"}, {"a", "b"}, {"ab"}, {"a.b"}, {"a", 0}, {"a", 1}}));
}

}  // namespace
}  // namespace leafpack
