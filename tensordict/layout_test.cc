#include "tensordict/layout.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/flat_tree.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Leaves = std::vector<std::pair<NestedKey, at::Tensor>>;

FlatTree Tree(Leaves leaves) {
  absl::StatusOr<FlatTree> flat = MakeFlatTree(std::move(leaves));
  EXPECT_TRUE(flat.ok()) << flat.status();
  return *flat;
}

Layout Of(const FlatTree& tree) {
  absl::StatusOr<Layout> layout = Layout::Of(tree);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : Layout();
}
Layout Of(Leaves leaves) { return Of(Tree(std::move(leaves))); }

std::string ErrorOf(Leaves leaves, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status s = Layout::Of(Tree(std::move(leaves))).status();
  EXPECT_EQ(s.code(), code) << s;
  return std::string(s.message());
}

at::Tensor F(at::IntArrayRef sizes) { return at::zeros(sizes, at::kFloat); }

TEST(LayoutTest, DescribesLeaves) {
  const at::Tensor m = at::zeros({4, 6}, at::kDouble);
  const Layout layout =
      Of({{{"a"}, m.t().slice(0, 1, 3)}, {{"b"}, at::zeros({}, at::kBool)}, {{"c"}, at::Tensor()}});
  ASSERT_EQ(layout.size(), 3u);
  const LeafInfo& a = layout.leaf(0);
  EXPECT_EQ(a.dtype, at::kDouble);
  EXPECT_EQ(a.kind, LeafKind::kDense);
  EXPECT_EQ(a.sizes, (LeafInfo::Dims{2, 4}));
  EXPECT_EQ(a.strides, (LeafInfo::Dims{1, 6}));
  EXPECT_EQ(a.storage_offset, 1);
  EXPECT_EQ(a.numel, 8);
  EXPECT_EQ(a.bytes, 64);
  EXPECT_EQ(a.alias_of, -1);
  EXPECT_FALSE(a.contiguous);
  EXPECT_FALSE(a.dense_in_memory);
  EXPECT_EQ(layout.leaf(1).bytes, 1);
  EXPECT_TRUE(layout.leaf(1).contiguous);
  EXPECT_EQ(layout.leaf(2).kind, LeafKind::kUndefined);
  EXPECT_EQ(layout.leaf(2).bytes, 0);
  EXPECT_EQ(layout.total_bytes(), 65);
  EXPECT_EQ(layout.path(1), NestedKey("b"));
}

TEST(LayoutTest, DigestsAreTheSameEverywhere) {
  EXPECT_EQ(Layout().digest().ToString(), "75cf87fa597283ed3a726d6683b4f012");
  const at::Tensor m = at::zeros({4, 6}, at::kBFloat16);
  const Layout layout = Of({{{"encoder", 0, "w"}, m},
                            {{"tied"}, m.t()},
                            {{"steps"}, at::zeros({}, at::kLong)},
                            {{"x.y"}, at::zeros({2, 0, 3}, at::kComplexDouble)},
                            {{"none"}, at::Tensor()}});
  EXPECT_EQ(layout.digest().ToString(), "2b327c63cf1c70d1ea4344a0ca076497");
  EXPECT_EQ(layout.stride_digest().ToString(), "86e43311ae6e7dc473dbe3294ef5de93");
}

TEST(LayoutTest, DigestCoversWhatMustAgree) {
  const at::Tensor x = F({2, 3});
  const std::vector<Leaves> all = {
      {},
      {{{"a"}, x}},
      {{{"b"}, x}},
      {{{"a"}, F({3, 2})}},
      {{{"a"}, F({6})}},
      {{{"a"}, F({2, 3, 1})}},
      {{{"a"}, at::zeros({2, 3}, at::kInt)}},
      {{{"a"}, at::zeros({2, 3}, at::kDouble)}},
      {{{"a"}, at::Tensor()}},
      {{{"a"}, at::empty({2, 3}, at::TensorOptions().device(at::kMeta))}},
      {{{"a"}, at::sparse_coo_tensor({2, 3}, at::kFloat)}},
      {{{"a"}, x}, {{"b"}, F({2, 3})}},
      {{{"a"}, x}, {{"b"}, x}},
      {{{"a"}, x}, {{"b"}, F({2, 3})}, {{"c"}, F({2, 3})}},
      {{{"a"}, x}, {{"b"}, F({2, 3})}, {{"c"}, x}},
      {{{"a"}, x}, {{"b"}, x}, {{"c"}, F({2, 3})}},
  };
  std::map<Digest128, size_t> digests;
  std::set<std::string> descriptions;
  for (size_t i = 0; i < all.size(); ++i) {
    const Layout layout = Of(all[i]);
    EXPECT_TRUE(digests.try_emplace(layout.digest(), i).second)
        << "cases " << i << " and " << digests[layout.digest()];
    std::string description;
    for (const Layout::Entry& entry : layout.Describe()) {
      description += entry.path + "|" + entry.value + "\n";
    }
    EXPECT_TRUE(descriptions.insert(description).second) << description;
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(layout == Of(all[j]));
      EXPECT_TRUE(Layout::Difference(layout, Of(all[j])).has_value());
    }
    EXPECT_FALSE(Layout::Difference(layout, Of(all[i])).has_value());
  }
}

TEST(LayoutTest, DigestDoesNotCoverWhatMayDiffer) {
  const at::Tensor base = F({8, 8});
  const Layout plain = Of({{{"a"}, F({2, 3})}, {{"b"}, F({3})}});
  const Layout strided = Of(
      {{{"b"}, base.select(1, 7).slice(0, 0, 3)}, {{"a"}, base.slice(0, 0, 6, 3).slice(1, 0, 3)}});
  EXPECT_EQ(plain.digest(), strided.digest());
  EXPECT_EQ(plain, strided);
  EXPECT_EQ(plain.Describe(), strided.Describe());
  EXPECT_NE(plain.stride_digest(), strided.stride_digest());
}

TEST(LayoutTest, StrideDigest) {
  const auto strides = [](const at::Tensor& t) { return Of({{{"a"}, t}}).stride_digest(); };
  const at::Tensor x = F({1, 4, 1, 5});
  EXPECT_EQ(strides(x), strides(x.as_strided({1, 4, 1, 5}, {777, 5, 3, 1})));  // size 1: no meaning
  EXPECT_NE(strides(F({4, 5})), strides(F({5, 4}).t()));
  EXPECT_EQ(strides(F({5, 4}).t()), strides(F({5, 4}).t()));
  EXPECT_EQ(strides(F({4, 0, 3})), strides(F({3, 0, 4}).permute({2, 1, 0})));
  const at::Tensor c = at::zeros({4}, at::kComplexFloat);
  EXPECT_NE(strides(c), strides(c.conj()));
  EXPECT_EQ(Of({{{"a"}, c}}).digest(), Of({{{"a"}, c.conj()}}).digest());
  // Back to back in one storage is part of it.
  const at::Tensor flat = F({10});
  const auto pair = [](const at::Tensor& a, const at::Tensor& b) {
    return Of({{{"a"}, a}, {{"b"}, b}}).stride_digest();
  };
  EXPECT_NE(pair(flat.slice(0, 0, 5), flat.slice(0, 5, 10)), pair(F({5}), F({5})));
  EXPECT_EQ(pair(flat.slice(0, 5, 10), flat.slice(0, 0, 5)), pair(F({5}), F({5})));
}

TEST(LayoutTest, Follows) {
  const at::Tensor flat = F({12});
  const at::Tensor ints = at::zeros({4}, at::kInt);
  const Layout layout = Of({{{"a"}, flat.slice(0, 0, 4)},
                            {{"b"}, ints.slice(0, 0, 2)},
                            {{"c"}, flat.slice(0, 4, 6).view({1, 2})},
                            {{"d"}, F({0})},
                            {{"e"}, ints.slice(0, 2, 4)},
                            {{"f"}, flat.slice(0, 0, 4)},
                            {{"g"}, flat.slice(0, 6, 10).view({2, 2}).t()},
                            {{"h"}, flat.slice(0, 11, 12)}});
  std::vector<int64_t> follows;
  for (const LeafInfo& info : layout.leaves()) follows.push_back(info.follows);
  EXPECT_THAT(follows, testing::ElementsAre(-1, -1, 0, -1, 1, -1, 2, -1));
  EXPECT_EQ(layout.leaf(5).alias_of, 0);
}

TEST(LayoutTest, AliasesAreFound) {
  const at::Tensor m = F({4, 6});
  const Layout layout = Of({{{"a"}, m.slice(1, 0, 2)},
                            {{"b"}, m.slice(1, 2)},
                            {{"c"}, m.slice(1, 0, 2).t()},
                            {{"d"}, m.slice(1, 0, 2)},
                            {{"e"}, F({3})},
                            {{"f"}, m.slice(1, 2).view({4, 2, 2})}});
  std::vector<int64_t> alias;
  for (const LeafInfo& info : layout.leaves()) alias.push_back(info.alias_of);
  EXPECT_THAT(alias, testing::ElementsAre(-1, -1, 0, 0, -1, 1));
  EXPECT_EQ(layout.total_bytes(), (24 + 3) * 4);
  EXPECT_THAT(layout.Describe()[2].value, HasSubstr("the memory of a"));
  EXPECT_EQ(layout.Describe()[1].value, "float32 [4, 4] cpu");
}

TEST(LayoutTest, ColumnsBesideColumnsAreFine) {
  const at::Tensor m = F({5, 4});
  const Layout layout = Of({{{"l"}, m.slice(1, 0, 2)}, {{"r"}, m.slice(1, 2)}});
  EXPECT_EQ(layout.leaf(1).alias_of, -1);
  const at::Tensor v = F({10});
  EXPECT_EQ(
      Of({{{"even"}, v.slice(0, 0, 10, 2)}, {{"odd"}, v.slice(0, 1, 10, 2)}}).leaf(1).alias_of, -1);
  // Real and imaginary parts interlace.
  const at::Tensor c = at::view_as_real(at::zeros({4}, at::kComplexFloat));
  EXPECT_EQ(Of({{{"im"}, c.select(1, 1)}, {{"re"}, c.select(1, 0)}}).leaf(1).alias_of, -1);
}

TEST(LayoutTest, PartialOverlapIsRefusedByPath) {
  const at::Tensor v = F({10});
  EXPECT_THAT(ErrorOf({{{"x", "a"}, v.slice(0, 0, 6)}, {{"y"}, F({2})}, {{"z", 3}, v.slice(0, 5)}}),
              AllOf(HasSubstr("x.a"), HasSubstr("z[3]"), HasSubstr("overlap")));
  const at::Tensor m = F({4, 4});
  EXPECT_THAT(ErrorOf({{{"l"}, m.slice(1, 0, 3)}, {{"r"}, m.slice(1, 2)}}),
              AllOf(HasSubstr("l and r")));
  EXPECT_THAT(ErrorOf({{{"all"}, m}, {{"row"}, m.select(0, 2)}}), HasSubstr("all and row"));
}

TEST(LayoutTest, SelfOverlapIsRefusedByPath) {
  EXPECT_THAT(ErrorOf({{{"a"}, F({3})}, {{"e", "x"}, F({1, 3}).expand({4, 3})}}),
              AllOf(HasSubstr("e.x"), HasSubstr("overlaps itself")));
  EXPECT_THAT(ErrorOf({{{"w"}, F({10}).unfold(0, 4, 2)}}), HasSubstr("w overlaps itself"));
  EXPECT_TRUE(Layout::Of(Tree({{{"w"}, F({10}).unfold(0, 2, 2)}})).ok());
  EXPECT_TRUE(Layout::Of(Tree({{{"w"}, F({1}).expand({1, 1})}})).ok());
  EXPECT_TRUE(Layout::Of(Tree({{{"w"}, F({1, 3}).expand({0, 3})}})).ok());
}

TEST(LayoutTest, TwoDtypesOverOneMemoryAreRefused) {
  const at::Tensor x = F({4});
  EXPECT_THAT(ErrorOf({{{"f"}, x}, {{"i"}, x.view(at::kInt)}}),
              AllOf(HasSubstr("f and i"), HasSubstr("float32"), HasSubstr("int32")));
  EXPECT_THAT(ErrorOf({{{"f"}, x}, {{"i"}, x.view(at::kByte).slice(0, 2, 3)}}),
              HasSubstr("f and i"));
}

TEST(LayoutTest, EmptyAndUndefinedLeavesNeverOverlap) {
  const at::Tensor x = F({4});
  EXPECT_EQ(Of({{{"a"}, x},
                {{"b"}, x.slice(0, 2, 2)},
                {{"c"}, x.slice(0, 2, 2)},
                {{"d"}, at::Tensor()},
                {{"e"}, at::Tensor()}})
                .leaf(2)
                .alias_of,
            -1);
}

TEST(LayoutTest, RandomViewsOfOneStorageAgainstBruteForce) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  int refused = 0;
  int aliases = 0;
  for (int round = 0; round < 3000; ++round) {
    const at::Tensor storage = F({6, 5, 4});
    Leaves leaves;
    std::vector<std::vector<int64_t>> elements;
    for (int64_t n = 2 + static_cast<int64_t>(rng() % 3); n > 0; --n) {
      at::Tensor view = storage;
      for (int64_t d = 0; d < 3; ++d) {
        if (rng() % 2 == 0) continue;
        const auto size = static_cast<uint64_t>(view.size(d));
        const auto begin = static_cast<int64_t>(rng() % size);
        const auto end =
            begin + 1 + static_cast<int64_t>(rng() % (size - static_cast<uint64_t>(begin)));
        view = view.slice(d, begin, end, 1 + static_cast<int64_t>(rng() % 2));
      }
      if (rng() % 2 == 0) view = view.transpose(0, 2);
      leaves.emplace_back(NestedKey{n}, view);
    }
    // Canonical order is by position.
    std::sort(leaves.begin(), leaves.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [path, view] : leaves) {
      const at::Tensor index = at::arange(120)
                                   .as_strided(view.sizes(), view.strides(), view.storage_offset())
                                   .contiguous();
      std::vector<int64_t> e(index.const_data_ptr<int64_t>(),
                             index.const_data_ptr<int64_t>() + index.numel());
      std::sort(e.begin(), e.end());
      elements.push_back(std::move(e));
    }
    bool clash = false;
    std::vector<int64_t> alias(leaves.size(), -1);
    for (size_t b = 0; b < leaves.size(); ++b) {
      for (size_t a = 0; a < b; ++a) {
        std::vector<int64_t> common;
        std::set_intersection(elements[a].begin(), elements[a].end(), elements[b].begin(),
                              elements[b].end(), std::back_inserter(common));
        if (common.empty()) continue;
        if (elements[a] != elements[b]) {
          clash = true;
        } else if (alias[b] < 0) {
          alias[b] = static_cast<int64_t>(a);
        }
      }
    }
    const absl::StatusOr<Layout> layout = Layout::Of(Tree(leaves));
    ASSERT_EQ(layout.ok(), !clash) << layout.status();
    if (clash) {
      ++refused;
      continue;
    }
    for (size_t i = 0; i < alias.size(); ++i) {
      EXPECT_EQ(layout->leaf(i).alias_of, alias[i]);
      aliases += alias[i] >= 0 ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(aliases, 10);
}

TEST(LayoutTest, SparseLeaves) {
  const at::Tensor s = at::sparse_coo_tensor({5, 2}, at::kFloat);
  const Layout layout = Of({{{"a"}, s},
                            {{"b"}, F({2})},
                            {{"c"}, s},
                            {{"d"}, at::sparse_coo_tensor({5, 2}, at::kFloat)}});
  EXPECT_EQ(layout.leaf(0).kind, LeafKind::kSparse);
  EXPECT_EQ(layout.leaf(0).sparse_dim, 2);
  EXPECT_EQ(layout.leaf(0).bytes, 0);
  EXPECT_EQ(layout.leaf(2).alias_of, 0);
  EXPECT_EQ(layout.leaf(3).alias_of, -1);
  EXPECT_THAT(layout.Describe()[0].value, HasSubstr("sparse in 2 dimensions"));
}

TEST(LayoutTest, OtherLayoutsAreRefusedByPath) {
  const at::Tensor csr = at::ones({3, 3}).to_sparse_csr();
  EXPECT_THAT(ErrorOf({{{"x", "csr"}, csr}}, absl::StatusCode::kUnimplemented), HasSubstr("x.csr"));
}

TEST(LayoutTest, TensorsWithoutMemoryAreRefusedByPath) {
  at::Tensor freed = F({4});
  freed.storage().set_data_ptr_noswap(at::DataPtr(nullptr, c10::Device(c10::kCPU)));
  EXPECT_THAT(ErrorOf({{{"x", "freed"}, freed}}, absl::StatusCode::kUnimplemented),
              HasSubstr("x.freed"));
}

TEST(LayoutTest, DeepPathsAreRefused) {
  TensorDict root;
  TensorDict at = root;
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(at.Set("k", TensorDict()).ok());
    at = *at.GetDict("k");
  }
  ASSERT_TRUE(at.Set("leaf", F({1})).ok());
  const absl::Status s = Layout::Of(Flatten(root)).status();
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(s.message()), HasSubstr("limit of 512"));
}

TEST(LayoutTest, MatchesWhileNothingChanged) {
  TensorDict tree;
  const at::Tensor x = F({4, 3});
  ASSERT_TRUE(tree.Set("x", x).ok());
  ASSERT_TRUE(tree.Set("y", at::zeros({2}, at::kComplexFloat)).ok());
  ASSERT_TRUE(tree.Set("n", at::Tensor()).ok());
  ASSERT_TRUE(tree.Set("s", at::sparse_coo_tensor({5}, at::kFloat)).ok());
  const Layout layout = Of(Flatten(tree));
  EXPECT_TRUE(layout.Matches(Flatten(tree)));
  const auto with = [&](const char* key, const at::Tensor& leaf) {
    const at::Tensor old = *tree.Get(key);
    EXPECT_TRUE(tree.Set(key, leaf).ok());
    const bool matches = layout.Matches(Flatten(tree));
    EXPECT_TRUE(tree.Set(key, old).ok());
    return matches;
  };
  EXPECT_TRUE(with("x", x.detach()));  // another tensor object over the same memory
  EXPECT_FALSE(with("x", F({4, 3})));
  EXPECT_FALSE(with("x", x.t()));
  EXPECT_FALSE(with("x", x.view({3, 4})));
  EXPECT_FALSE(with("x", x.view({12})));
  EXPECT_FALSE(with("x", x.view(at::kInt)));
  EXPECT_FALSE(with("x", x.slice(0, 0, 3)));
  EXPECT_FALSE(with("x", at::Tensor()));
  EXPECT_FALSE(with("y", tree.Get("y")->conj()));
  EXPECT_FALSE(with("n", x));
  EXPECT_FALSE(with("s", at::sparse_coo_tensor({5}, at::kFloat)));
  EXPECT_FALSE(with("s", F({5})));
  EXPECT_FALSE(with("x", at::ones({4, 3}).to_sparse_csr()));
  EXPECT_TRUE(layout.Matches(Flatten(tree)));

  // The same object, changed under our hands.
  x.set_data(F({4, 3}));
  EXPECT_FALSE(layout.Matches(Flatten(tree)));
  const Layout again = Of(Flatten(tree));
  EXPECT_EQ(again, layout);
  x.resize_({3, 4});
  EXPECT_FALSE(again.Matches(Flatten(tree)));

  // Equal paths that are another object do not match: the pointer is the proof.
  ASSERT_TRUE(tree.Set("z", x.clone()).ok());
  ASSERT_TRUE(tree.Erase("z").ok());
  EXPECT_FALSE(Of(Tree({{{"a"}, F({1})}})).Matches(Tree({{{"a"}, F({1})}})));
}

TEST(LayoutTest, DifferenceNamesTheFirst) {
  const at::Tensor x = F({2});
  const auto difference = [](Leaves a, Leaves b) {
    return Layout::Difference(Of(std::move(a)), Of(std::move(b)), "rank 0", "rank 1")
        .value_or("none");
  };
  EXPECT_EQ(difference({{{"a"}, x}, {{"k8"}, F({2})}}, {{{"a"}, x}, {{"k9"}, F({2})}}),
            "k8: rank 0 has float32 [2] cpu, rank 1 has no such leaf (its next is k9)");
  EXPECT_EQ(difference({{{"a"}, x}}, {{{"a"}, x}, {{"b", 0}, F({2})}}),
            "b[0]: rank 1 has float32 [2] cpu, rank 0 has no such leaf");
  EXPECT_EQ(difference({{{"a"}, x}, {{"b"}, F({1024})}}, {{{"a"}, x}, {{"b"}, F({1025})}}),
            "b: rank 0 has float32 [1024] cpu, rank 1 has float32 [1025] cpu");
  EXPECT_EQ(difference({{{"a"}, x}, {{"b"}, x}}, {{{"a"}, x}, {{"b"}, F({2})}}),
            "b: rank 0 has float32 [2] cpu, the memory of a, rank 1 has float32 [2] cpu");
  EXPECT_EQ(difference({{{"a"}, x}}, {{{"a"}, at::Tensor()}}),
            "a: rank 0 has float32 [2] cpu, rank 1 has undefined (no tensor)");
  EXPECT_EQ(difference({{{"a"}, x}}, {{{"a"}, x}}), "none");
}

TEST(LayoutTest, CopyOnWriteLeavesGetMemoryOfTheirOwn) {
  const at::Tensor x = F({8});
  const at::Tensor lazy = x._lazy_clone();
  const Layout layout = Of({{{"a"}, x}, {{"b"}, lazy}});
  EXPECT_EQ(layout.leaf(1).alias_of, -1);
  EXPECT_NE(layout.leaf(0).address, layout.leaf(1).address);
}

}  // namespace
}  // namespace leafpack
