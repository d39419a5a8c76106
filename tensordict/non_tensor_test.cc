#include "tensordict/non_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace leafpack {
namespace {

using testing::HasSubstr;

NonTensor List(std::vector<NonTensor> items) { return *NonTensor::List(std::move(items)); }

TEST(NonTensorTest, KindsAndValues) {
  EXPECT_EQ(NonTensor().kind(), NonTensor::Kind::kNone);
  EXPECT_TRUE(NonTensor().is_none());
  EXPECT_EQ(*NonTensor("a").AsString(), "a");
  EXPECT_EQ(*NonTensor(std::string("a\0b", 3)).AsString(), std::string("a\0b", 3));
  EXPECT_EQ(NonTensor(7).AsInt(), 7);
  EXPECT_EQ(NonTensor(uint32_t{7}).AsInt(), 7);
  EXPECT_EQ(NonTensor(int64_t{-1} << 63).AsInt(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(NonTensor(2.5f).AsFloat(), 2.5);
  EXPECT_EQ(NonTensor(true).AsBool(), true);
  EXPECT_EQ(*NonTensor::Bytes("ab").AsBytes(), "ab");
  EXPECT_EQ(List({1, "x"}).AsList()->size(), 2u);
  // Nothing is converted on the way out.
  EXPECT_EQ(NonTensor(true).AsInt(), std::nullopt);
  EXPECT_EQ(NonTensor(1).AsBool(), std::nullopt);
  EXPECT_EQ(NonTensor(1).AsFloat(), std::nullopt);
  EXPECT_EQ(NonTensor("a").AsBytes(), nullptr);
  EXPECT_EQ(NonTensor::Bytes("a").AsString(), nullptr);
  EXPECT_EQ(NonTensor("a").AsList(), nullptr);
}

TEST(NonTensorTest, AllThatDiffersIsDifferentInEveryRespect) {
  const std::vector<NonTensor> all = {
      NonTensor(),
      "",
      "a",
      "1",
      "true",
      "none",
      std::string(200, 'x'),
      std::string(200, 'x') + "y",
      NonTensor::Bytes(""),
      NonTensor::Bytes("a"),
      NonTensor::Bytes(std::string(200, 'x')),
      0,
      1,
      -1,
      0.0,
      -0.0,
      1.0,
      0.1,
      std::nextafter(0.1, 1.0),
      1e300,
      std::numeric_limits<double>::infinity(),
      -std::numeric_limits<double>::infinity(),
      std::nan(""),
      true,
      false,
      List({}),
      List({List({})}),
      List({NonTensor()}),
      List({1, 2}),
      List({2, 1}),
      List({List({1}), 2}),
      List({1, List({2})}),
      List({"1, 2"}),
      List({"1", "2"}),
  };
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(all[i] == all[j], i == j) << all[i].ToString() << " and " << all[j].ToString();
      EXPECT_EQ(all[i].ToString() == all[j].ToString(), i == j);
      EXPECT_EQ(all[i].digest() == all[j].digest(), i == j);
    }
  }
  EXPECT_EQ(NonTensor(std::nan("1")), NonTensor(-std::nan("2")));
  EXPECT_EQ(List({1, "a"}), List({1, "a"}));
}

TEST(NonTensorTest, Prints) {
  EXPECT_EQ(List({NonTensor(), "a\n\"é", -3, 2.0, 0.1, false, NonTensor::Bytes("\xff")}).ToString(),
            "[none, \"a\\n\\\"é\", -3, 2.0, 0.1, false, b\"\\xff\"]");
  const std::string text = NonTensor(std::string(1000, 'x')).ToString();
  EXPECT_THAT(text, HasSubstr("xxx... (string, digest "));
  EXPECT_LT(text.size(), 160u);
}

TEST(NonTensorTest, DigestsAreTheSameEverywhere) {
  EXPECT_EQ(NonTensor().digest().ToString(), "0270c39d6efcd3b36f5162ad44d385e9");
  EXPECT_EQ(List({"a", 1, 2.5, true, NonTensor::Bytes("b")}).digest().ToString(), "fad517f3fa87b857d2b9b7e78226c829");
}

TEST(NonTensorTest, NestingHasALimit) {
  NonTensor value = 1;
  for (int i = 0; i < NonTensor::kMaxDepth; ++i) value = List({value});
  const absl::Status s = NonTensor::List({1, value}).status();
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(s.message()), HasSubstr("at most 64"));
}

TEST(NonTensorTest, SizeHasALimit) {
  // 30 lists, but 2^30 values.
  NonTensor value = 1;
  absl::Status s;
  for (int i = 0; i < 30 && s.ok(); ++i) {
    absl::StatusOr<NonTensor> list = NonTensor::List({value, value});
    s = list.status();
    if (list.ok()) value = *list;
  }
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(s.message()), HasSubstr("1048576"));
}

}  // namespace
}  // namespace leafpack
