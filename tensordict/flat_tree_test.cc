#include "tensordict/flat_tree.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

using testing::HasSubstr;
using Leaves = std::vector<std::pair<NestedKey, at::Tensor>>;

TEST(FlattenTest, CanonicalOrder) {
  const at::Tensor a = at::ones({1});
  const at::Tensor b = at::ones({2});
  TensorDict tree;
  ASSERT_TRUE(tree.Set({"x", 10}, a).ok());
  ASSERT_TRUE(tree.Set({"x", 9}, b).ok());
  ASSERT_TRUE(tree.Set({"w.x"}, at::Tensor()).ok());
  ASSERT_TRUE(tree.Set({"empty", "node"}, TensorDict()).ok());
  const FlatTree flat = Flatten(tree);
  ASSERT_EQ(flat.size(), 3u);
  EXPECT_EQ((*flat.paths)[0], NestedKey("w.x"));
  EXPECT_FALSE(flat.leaves[0].defined());
  EXPECT_EQ((*flat.paths)[1], NestedKey({"x", 9}));
  EXPECT_TRUE(flat.leaves[1].is_same(b));
  EXPECT_EQ((*flat.paths)[2], NestedKey({"x", 10}));
  EXPECT_TRUE(flat.leaves[2].is_same(a));
  EXPECT_EQ(Flatten(TensorDict()).size(), 0u);
  EXPECT_NE(Flatten(TensorDict()).paths, nullptr);
}

TEST(FlattenTest, PathsAreTheSameObjectUntilTheStructureChanges) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set({"a", "b", "c"}, at::ones({1})).ok());
  ASSERT_TRUE(tree.Set({"a", "d"}, at::ones({1})).ok());
  TensorDict inner = *tree.GetDict({"a", "b"});
  auto paths = Flatten(tree).paths;
  const auto same = [&] {
    const auto now = Flatten(tree).paths;
    const bool is_same = now == paths;
    paths = now;
    return is_same;
  };
  EXPECT_TRUE(same());
  // Another tensor at the same path is no change, and it is seen.
  const at::Tensor other = at::ones({5});
  ASSERT_TRUE(inner.Set("c", other).ok());
  EXPECT_TRUE(same());
  EXPECT_TRUE(Flatten(tree).leaves[0].is_same(other));

  ASSERT_TRUE(inner.Set("e", other).ok());
  EXPECT_FALSE(same());
  ASSERT_TRUE(inner.Erase("e").ok());
  EXPECT_FALSE(same());
  ASSERT_TRUE(inner.Set("c", TensorDict()).ok());
  EXPECT_FALSE(same());
  ASSERT_TRUE(inner.Set("c", other).ok());
  EXPECT_FALSE(same());
  EXPECT_TRUE(same());
  // A node replaced by another node with the same paths.
  TensorDict replacement;
  ASSERT_TRUE(replacement.Set("c", other).ok());
  ASSERT_TRUE(tree.Set({"a", "b"}, replacement).ok());
  EXPECT_FALSE(same());
  ASSERT_TRUE(inner.Set("not in the tree any more", other).ok());
  EXPECT_TRUE(same());
  ASSERT_TRUE(inner.Clear().ok());
  EXPECT_TRUE(same());
  ASSERT_TRUE(replacement.Clear().ok());
  EXPECT_FALSE(same());
  EXPECT_EQ(Flatten(tree).size(), 1u);
  // A change that fails is none.
  EXPECT_FALSE(tree.Set({"a", "d", "x"}, other).ok());
  EXPECT_TRUE(same());
}

TEST(FlattenTest, DigestOfPaths) {
  const auto digest = [](std::vector<NestedKey> paths) {
    return PathList(std::move(paths)).digest();
  };
  const std::vector<std::vector<NestedKey>> all = {{},
                                                   {NestedKey()},
                                                   {{"a"}},
                                                   {{"a"}, {"b"}},
                                                   {{"a", "b"}},
                                                   {{"ab"}},
                                                   {{"a.b"}},
                                                   {{0}},
                                                   {{"0"}},
                                                   {{""}},
                                                   {{"", ""}},
                                                   {{"a", 0}},
                                                   {{"a"}, {0}},
                                                   {{"a", ""}},
                                                   {{"a", "b"}, {"c"}},
                                                   {{"a"}, {"b", "c"}}};
  std::set<Digest128> digests;
  for (const auto& paths : all) {
    EXPECT_EQ(digest(paths), digest(paths));
    EXPECT_TRUE(digests.insert(digest(paths)).second);
  }
  // The same in every process and on every platform.
  EXPECT_EQ(digest({{"a", 1}, {"b.c", ""}}).ToString(), "a3f8f2b854489fff875660ef862e54c4");
}

TEST(MakeFlatTreeTest, OrderOfInsertionNeverMatters) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 100; ++round) {
    // A random tree, its leaves told apart by their tensors.
    TensorDict tree;
    Leaves leaves;
    for (int i = 0; i < 30; ++i) {
      NestedKey key;
      for (size_t n = 1 + rng() % 4; n > 0; --n) {
        if (rng() % 2 == 0) {
          key.push_back(static_cast<int64_t>(rng() % 12));
        } else {
          key.push_back(std::string(rng() % 3, static_cast<char>('a' + rng() % 3)));
        }
      }
      if (!tree.Contains(key)) (void)tree.Set(key, at::ones({1}));
    }
    tree.Visit(
        [&](const NestedKey& path, const at::Tensor& leaf) { leaves.emplace_back(path, leaf); });
    const FlatTree expected = Flatten(tree);
    std::shuffle(leaves.begin(), leaves.end(), rng);
    TensorDict again;
    for (const auto& [path, leaf] : leaves) ASSERT_TRUE(again.Set(path, leaf).ok());
    const absl::StatusOr<FlatTree> made = MakeFlatTree(leaves);
    ASSERT_TRUE(made.ok()) << made.status();
    for (const FlatTree& flat : {Flatten(again), *made}) {
      EXPECT_EQ(flat.paths->paths(), expected.paths->paths());
      EXPECT_EQ(flat.paths->digest(), expected.paths->digest());
      ASSERT_EQ(flat.size(), expected.size());
      for (size_t i = 0; i < flat.size(); ++i) {
        EXPECT_TRUE(flat.leaves[i].is_same(expected.leaves[i]));
      }
    }
  }
}

TEST(MakeFlatTreeTest, RefusesWhatIsNoTree) {
  const at::Tensor t = at::ones({1});
  const auto error = [](Leaves leaves) {
    const absl::Status s = MakeFlatTree(std::move(leaves)).status();
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    return std::string(s.message());
  };
  EXPECT_THAT(error({{{"b"}, t}, {{"a", 1}, t}, {{"b"}, t}}), HasSubstr("two leaves stand at b"));
  EXPECT_THAT(error({{{"b", 1, "c"}, t}, {{"b"}, t}}), HasSubstr("b[1].c stands below the leaf b"));
  EXPECT_THAT(error({{{}, t}, {{"b"}, t}}), HasSubstr("b stands below the leaf ."));
  NestedKey deep;
  for (int i = 0; i <= kMaxTreeDepth; ++i) deep.push_back(0);
  EXPECT_THAT(error({{deep, t}}), HasSubstr("limit of 512"));
}

TEST(MakeFlatTreeTest, ATreeMayBeOneLeafOrNone) {
  const at::Tensor t = at::ones({1});
  const absl::StatusOr<FlatTree> one = MakeFlatTree({{NestedKey(), t}});
  ASSERT_TRUE(one.ok());
  EXPECT_TRUE((*one->paths)[0].empty());
  const absl::StatusOr<FlatTree> none = MakeFlatTree({});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->size(), 0u);
  EXPECT_NE(none->paths, nullptr);
}

TEST(FlattenTest, ManyThreadsMayFlattenOneTree) {
  TensorDict tree;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(tree.Set({"n", i}, at::ones({1})).ok());
  std::vector<std::thread> threads;
  std::vector<FlatTree> results(4);
  for (FlatTree& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) result = Flatten(tree);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const FlatTree& result : results) {
    EXPECT_EQ(result.size(), 100u);
    EXPECT_EQ(result.paths, Flatten(tree).paths);
  }
}

}  // namespace
}  // namespace leafpack
