// The first difference between descriptions is found and told with ranks and paths.
#include "distributed/core/protocol/manifest.h"

#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace leafpack::protocol {
namespace {

ManifestEntry Argument(const std::string& name, const std::string& value) {
  return {true, name, name, value};
}
ManifestEntry Leaf(const std::string& path, const std::string& value) {
  return {false, path, path, value};
}

ManifestSide Side(std::vector<uint32_t> ranks, std::vector<ManifestEntry> entries) {
  return {std::move(ranks), true, std::move(entries)};
}

TEST(ManifestTest, RoundTrip) {
  const std::vector<ManifestEntry> entries = {Argument("op", "sum"), Leaf("a.b", "float32 [3]"),
                                              Leaf("", "")};
  const absl::StatusOr<std::vector<ManifestEntry>> back = DecodeManifest(EncodeManifest(entries));
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), 3u);
  EXPECT_TRUE((*back)[0].argument);
  EXPECT_EQ((*back)[0].value, "sum");
  EXPECT_EQ((*back)[1].printable, "a.b");
  EXPECT_FALSE((*back)[2].argument);
}

TEST(ManifestTest, LongStringsStayDifferent) {
  const std::string a(10000, 'x');
  std::string b = a;
  b.back() = 'y';
  const auto encoded = [](const std::string& value) {
    return DecodeManifest(EncodeManifest({Leaf("k", value)})).value()[0].value;
  };
  EXPECT_NE(encoded(a), encoded(b));
  EXPECT_LE(encoded(a).size(), 4096u);
}

TEST(ManifestTest, RefusesBadBytes) {
  EXPECT_FALSE(DecodeManifest("").ok());
  EXPECT_FALSE(DecodeManifest(std::string("\xff\xff\xff\xff", 4)).ok());
  std::string good = EncodeManifest({Argument("op", "sum"), Leaf("k", "v")});
  for (size_t n = 0; n < good.size(); ++n)
    EXPECT_FALSE(DecodeManifest(good.substr(0, n)).ok()) << n;
  EXPECT_FALSE(DecodeManifest(good + "x").ok());
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    (void)DecodeManifest(bad).ok();  // must not crash or allocate what is claimed
  }
}

TEST(DifferenceTest, NamesPathAndRanks) {
  const Difference d = DescribeDifference(
      std::vector<ManifestSide>{
          Side({0}, {Argument("op", "sum"), Leaf("k7", "float32 [3]"), Leaf("k8", "float32 [3]")}),
          Side({1, 2},
               {Argument("op", "sum"), Leaf("k7", "float32 [3]"), Leaf("k9", "float32 [3]")})},
      nullptr);
  EXPECT_EQ(d.text, "rank 0 has k8 (float32 [3]), ranks 1 and 2 have k9 (float32 [3])");
  EXPECT_EQ(d.path, "k8");
  EXPECT_EQ(d.ranks, std::vector<uint32_t>{0});  // the smaller side
}

TEST(DifferenceTest, ArgumentsComeFirst) {
  const Difference d = DescribeDifference(
      std::vector<ManifestSide>{Side({0}, {Argument("op", "sum"), Leaf("a", "float32 [3]")}),
                                Side({1}, {Argument("op", "max"), Leaf("b", "float32 [3]")})},
      nullptr);
  EXPECT_EQ(d.text, "rank 0 has op = sum, rank 1 has op = max");
  EXPECT_EQ(d.path, "");
  EXPECT_EQ(d.ranks, std::vector<uint32_t>{1});
}

TEST(DifferenceTest, OneSideEndsEarlier) {
  const Difference d = DescribeDifference(
      std::vector<ManifestSide>{Side({0, 1}, {Leaf("a", "float32 [3]")}),
                                Side({2}, {Leaf("a", "float32 [3]"), Leaf("b", "int64 [1]")})},
      nullptr);
  EXPECT_EQ(d.text, "ranks 0 and 1 have no further leaf, rank 2 has b (int64 [1])");
  EXPECT_EQ(d.path, "b");
  EXPECT_EQ(d.ranks, std::vector<uint32_t>{2});
}

// What the other side has in its place may be there on both.
TEST(DifferenceTest, ThePathIsOfTheLeafThatOneSideLacks) {
  const ManifestSide some = Side({0}, {Leaf("a", "1"), Leaf("c", "1")});
  const ManifestSide more = Side({1}, {Leaf("a", "1"), Leaf("b", "1"), Leaf("c", "1")});
  for (const auto& sides : {std::vector<ManifestSide>{some, more}, {more, some}}) {
    EXPECT_EQ(DescribeDifference(sides, nullptr).path, "b");
  }
}

TEST(DifferenceTest, SidesThatAgreeAtTheFirstDifferenceStandTogether) {
  const Difference d =
      DescribeDifference(std::vector<ManifestSide>{Side({0}, {Leaf("a", "1"), Leaf("x", "1")}),
                                                   Side({1}, {Leaf("b", "1")}),
                                                   Side({2}, {Leaf("a", "1"), Leaf("y", "1")})},
                         [](uint32_t rank) { return std::to_string(rank + 10); });
  EXPECT_EQ(d.text, "ranks 10 and 12 have a (1), rank 11 has b (1)");
}

TEST(DifferenceTest, SaysWhoseDescriptionIsMissing) {
  ManifestSide silent;
  silent.ranks = {1};
  const Difference d = DescribeDifference(
      std::vector<ManifestSide>{Side({0, 2}, {Leaf("a", "1")}), silent}, nullptr);
  EXPECT_EQ(d.text, "the calls differ: ranks 0 and 2 from rank 1; no description came from rank 1");
  EXPECT_EQ(d.ranks, std::vector<uint32_t>{1});
}

TEST(RanksTextTest, Forms) {
  EXPECT_EQ(RanksText({}, nullptr), "no rank");
  EXPECT_EQ(RanksText({3u}, nullptr), "rank 3");
  EXPECT_EQ(RanksText({1u, 2u}, nullptr), "ranks 1 and 2");
  EXPECT_EQ(RanksText({0u, 2u, 5u}, nullptr), "ranks 0, 2 and 5");
  std::vector<uint32_t> many(20);
  for (uint32_t i = 0; i < 20; ++i) many[i] = i;
  EXPECT_EQ(RanksText(many, nullptr),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ... (20 ranks)");
}

}  // namespace
}  // namespace leafpack::protocol
