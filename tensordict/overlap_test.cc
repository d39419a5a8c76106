#include "tensordict/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace leafpack {
namespace {

struct View {
  uintptr_t begin;
  int64_t element;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  Region region() const { return Region::Of(begin, element, sizes, strides); }

  // Every byte, once per index that leads to it.
  std::vector<uintptr_t> Bytes() const {
    std::vector<uintptr_t> bytes = {begin};
    for (size_t k = 0; k < sizes.size(); ++k) {
      std::vector<uintptr_t> next;
      for (const uintptr_t b : bytes) {
        for (int64_t i = 0; i < sizes[k]; ++i) {
          next.push_back(b + static_cast<uintptr_t>(i * strides[k] * element));
        }
      }
      bytes = std::move(next);
    }
    std::vector<uintptr_t> all;
    for (const uintptr_t b : bytes) {
      for (int64_t i = 0; i < element; ++i) all.push_back(b + static_cast<uintptr_t>(i));
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  bool OverlapsItself() const {
    const std::vector<uintptr_t> bytes = Bytes();
    return std::adjacent_find(bytes.begin(), bytes.end()) != bytes.end();
  }

  std::string ToString() const {
    std::string text = std::to_string(begin) + " x" + std::to_string(element) + " sizes";
    for (const int64_t s : sizes) text += " " + std::to_string(s);
    text += " strides";
    for (const int64_t s : strides) text += " " + std::to_string(s);
    return text;
  }
};

Meeting BruteMeeting(const View& a, const View& b) {
  const std::vector<uintptr_t> bytes_a = a.Bytes();
  const std::vector<uintptr_t> bytes_b = b.Bytes();
  if (bytes_a == bytes_b) return Meeting::kSame;
  std::vector<uintptr_t> common;
  std::set_intersection(bytes_a.begin(), bytes_a.end(), bytes_b.begin(), bytes_b.end(),
                        std::back_inserter(common));
  return common.empty() ? Meeting::kApart : Meeting::kPart;
}

View RandomView(std::mt19937_64& rng) {
  View view;
  view.element = int64_t{1} << (rng() % 4);
  view.begin =
      4096 + (rng() % 4 == 0 ? rng() % 64 : (rng() % 16) * static_cast<uintptr_t>(view.element));
  for (size_t dims = rng() % 5; dims > 0; --dims) {
    view.sizes.push_back(1 + static_cast<int64_t>(rng() % 4));
    view.strides.push_back(static_cast<int64_t>(rng() % 13));
  }
  // Half of them as real views are: strides of a contiguous tensor, permuted and cut.
  if (rng() % 2 == 0) {
    int64_t stride = 1;
    std::vector<size_t> order(view.sizes.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::shuffle(order.begin(), order.end(), rng);
    for (const size_t k : order) {
      view.strides[k] = stride;
      stride *= view.sizes[k] + static_cast<int64_t>(rng() % 2);
    }
  }
  return view;
}

TEST(RegionTest, Normalizes) {
  const Region contiguous = Region::Of(64, 4, {2, 3, 1, 5}, {15, 5, 99, 1});
  EXPECT_EQ(contiguous.dims.size(), 1u);
  EXPECT_EQ(contiguous.dims[0], (Region::Dim{1, 120}));
  EXPECT_EQ(contiguous.end, 64u + 120u);
  EXPECT_EQ(Region::Of(64, 4, {5, 3, 2}, {1, 5, 15}).dims, contiguous.dims);  // permuted
  const Region columns = Region::Of(0, 4, {3, 2}, {10, 1});
  EXPECT_EQ(columns.dims.size(), 2u);
  EXPECT_EQ(columns.dims[0], (Region::Dim{1, 8}));
  EXPECT_EQ(columns.dims[1], (Region::Dim{40, 3}));
  EXPECT_EQ(columns.end, 88u);
  EXPECT_EQ(Region::Of(7, 1, {}, {}).end, 8u);
}

TEST(OverlapTest, SelfOverlapAgainstBruteForce) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  int overlapping = 0;
  for (int i = 0; i < 20000; ++i) {
    const View view = RandomView(rng);
    ASSERT_EQ(OverlapsItself(view.region()), view.OverlapsItself()) << view.ToString();
    overlapping += view.OverlapsItself() ? 1 : 0;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_LT(overlapping, 19000);
}

TEST(OverlapTest, PairsAgainstBruteForce) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  int counts[3] = {0, 0, 0};
  for (int i = 0; i < 40000; ++i) {
    View a = RandomView(rng);
    View b = RandomView(rng);
    if (rng() % 4 == 0) {
      // The same elements, told in another way.
      b = a;
      for (size_t k = 0; k + 1 < b.sizes.size(); ++k) {
        if (rng() % 2 == 0) {
          std::swap(b.sizes[k], b.sizes[k + 1]);
          std::swap(b.strides[k], b.strides[k + 1]);
        }
      }
    }
    if (a.OverlapsItself() || b.OverlapsItself()) continue;
    const Meeting expected = BruteMeeting(a, b);
    ASSERT_EQ(Meet(a.region(), b.region()), expected) << a.ToString() << "\n" << b.ToString();
    ASSERT_EQ(Meet(b.region(), a.region()), expected) << a.ToString() << "\n" << b.ToString();
    ++counts[static_cast<int>(expected)];
  }
  for (const int count : counts) EXPECT_GT(count, 300);
}

TEST(OverlapTest, EqualSetsWithTwoForms) {
  // 2i + 3j + 6k reaches the same bytes as 2i + 3j with a longer i: no form can be read off the
  // set.
  const View a{100, 1, {3, 2, 4}, {2, 3, 6}};
  const View b{100, 1, {12, 2}, {2, 3}};
  ASSERT_EQ(a.Bytes(), b.Bytes());
  EXPECT_NE(a.region().dims, b.region().dims);
  EXPECT_EQ(Meet(a.region(), b.region()), Meeting::kSame);
}

TEST(OverlapTest, StridesThatAreNotNested) {
  // Sums of distinct subsets of a Conway-Guy sequence are distinct, though none is nested; the
  // search cannot tell at once, nor may it be wrong.
  const std::vector<int64_t> conway_guy = {84,  161, 238, 316, 383, 434, 473,
                                           503, 522, 535, 542, 545, 546, 547};
  View view{4096, 1, {}, {}};
  for (size_t k = 0; k < conway_guy.size(); ++k) {
    view.sizes.push_back(2);
    view.strides.push_back(conway_guy[k]);
  }
  EXPECT_EQ(OverlapsItself(view.region()), view.OverlapsItself());
  View twice = view;
  twice.strides[3] = twice.strides[4];
  EXPECT_TRUE(OverlapsItself(twice.region()));
}

TEST(OverlapTest, ExtremesAreFast) {
  // Sizes of which no list of bytes could be made.
  const int64_t huge = int64_t{1} << 40;
  const Region even = Region::Of(1 << 20, 4, {huge, 3}, {8, 2});
  const Region odd = Region::Of((1 << 20) + 4, 4, {huge, 3}, {8, 2});
  EXPECT_EQ(Meet(even, odd), Meeting::kApart);
  EXPECT_EQ(Meet(even, even), Meeting::kSame);
  EXPECT_EQ(Meet(even, Region::Of(1 << 20, 4, {huge - 1, 3}, {8, 2})), Meeting::kPart);
  EXPECT_FALSE(OverlapsItself(even));
  EXPECT_TRUE(OverlapsItself(Region::Of(0, 4, {huge}, {0})));
}

TEST(FindMeetingsTest, AgainstBruteForce) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  int clashes = 0;
  int aliases = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<View> views;
    std::vector<RegionClaim> claims;
    for (size_t n = rng() % 6; n > 0; --n) {
      View view = !views.empty() && rng() % 3 == 0 ? views[rng() % views.size()] : RandomView(rng);
      if (view.OverlapsItself()) continue;
      if (rng() % 2 == 0) view.begin += 1024 * (rng() % 4);
      views.push_back(view);
      claims.push_back({view.region(), static_cast<int32_t>(rng() % 8 == 0),
                        static_cast<int32_t>(rng() % 8 == 0)});
    }
    // The first clash by index, and owners.
    std::vector<size_t> expected_owners(views.size());
    std::optional<Clash> expected;
    for (size_t b = 0; b < views.size(); ++b) {
      expected_owners[b] = b;
      for (size_t a = 0; a < b; ++a) {
        if (claims[a].space != claims[b].space) continue;
        const Meeting meeting = BruteMeeting(views[a], views[b]);
        if (meeting == Meeting::kApart) continue;
        const bool same = meeting == Meeting::kSame;
        if (same && claims[a].type == claims[b].type) {
          expected_owners[b] = std::min(expected_owners[b], a);
        } else if (!expected.has_value()) {
          expected = Clash{a, b, same};
        }
      }
    }
    std::vector<size_t> owners;
    const std::optional<Clash> clash = FindMeetings(claims, owners);
    ASSERT_EQ(clash.has_value(), expected.has_value());
    if (expected.has_value()) {
      ++clashes;
      EXPECT_EQ(clash->b, expected->b);
      const Meeting meeting = BruteMeeting(views[clash->a], views[clash->b]);
      EXPECT_NE(meeting, Meeting::kApart);
      EXPECT_EQ(clash->types_differ, meeting == Meeting::kSame);
    } else {
      EXPECT_EQ(owners, expected_owners);
      for (size_t i = 0; i < owners.size(); ++i) aliases += owners[i] != i ? 1 : 0;
    }
  }
  EXPECT_GT(clashes, 100);
  EXPECT_GT(aliases, 100);
}

// More pairs of meeting boxes than are compared one by one.
TEST(FindMeetingsTest, ColumnsOfAMatrix) {
  constexpr int64_t kColumns = 400;
  const auto column = [](int64_t c, int64_t width) {
    return RegionClaim{
        View{4096 + static_cast<uintptr_t>(c) * 4, 4, {50, width}, {kColumns, 1}}.region(), 0, 0};
  };
  std::vector<RegionClaim> claims;
  for (int64_t c = 0; c < kColumns; ++c) claims.push_back(column(kColumns - 1 - c, 1));
  std::vector<size_t> owners;
  EXPECT_FALSE(FindMeetings(claims, owners).has_value());
  for (size_t i = 0; i < claims.size(); ++i) EXPECT_EQ(owners[i], i);

  std::vector<RegionClaim> aliased = claims;
  aliased.push_back(column(7, 1));
  aliased.push_back(column(7, 1));
  EXPECT_FALSE(FindMeetings(aliased, owners).has_value());
  EXPECT_EQ(owners[kColumns], static_cast<size_t>(kColumns) - 1 - 7);
  EXPECT_EQ(owners[kColumns + 1], static_cast<size_t>(kColumns) - 1 - 7);

  aliased.back().type = 1;
  std::optional<Clash> clash = FindMeetings(aliased, owners);
  ASSERT_TRUE(clash.has_value());
  EXPECT_TRUE(clash->types_differ);
  EXPECT_EQ(clash->b, static_cast<size_t>(kColumns) + 1);

  claims.push_back(column(10, 2));
  clash = FindMeetings(claims, owners);
  ASSERT_TRUE(clash.has_value());
  EXPECT_FALSE(clash->types_differ);
  EXPECT_EQ(clash->b, static_cast<size_t>(kColumns));
}

TEST(FindMeetingsTest, ManyAliasesOfOneRegionAreCheap) {
  std::vector<RegionClaim> claims(20000, RegionClaim{View{64, 4, {1000}, {1}}.region(), 0, 0});
  std::vector<size_t> owners;
  EXPECT_FALSE(FindMeetings(claims, owners).has_value());
  EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](size_t o) { return o == 0; }));
}

}  // namespace
}  // namespace leafpack
