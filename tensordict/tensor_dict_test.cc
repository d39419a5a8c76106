#include "tensordict/tensor_dict.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/nested_key.h"

namespace leafpack {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Paths(const TensorDict& tree) {
  std::vector<std::string> paths;
  tree.Visit([&](const NestedKey& path, const at::Tensor&) { paths.push_back(path.ToString()); });
  return paths;
}

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(TensorDictTest, SetAndGet) {
  TensorDict tree;
  const at::Tensor w = at::ones({2, 3});
  ASSERT_TRUE(tree.Set({"encoder", "weight"}, w).ok());
  ASSERT_TRUE(tree.Set("bias", at::zeros({2})).ok());
  ASSERT_TRUE(tree.Set({"layers", 0, "w"}, w).ok());
  EXPECT_TRUE(tree.Get({"encoder", "weight"})->is_same(w));
  EXPECT_EQ(tree.size(), 3u);
  EXPECT_EQ(tree.num_leaves(), 3u);
  EXPECT_THAT(Paths(tree), ElementsAre("bias", "encoder.weight", "layers[0].w"));
  EXPECT_TRUE(tree.Contains({"encoder"}));
  EXPECT_TRUE(tree.Contains({}));
  EXPECT_FALSE(tree.Contains({"encoder", "bias"}));
  EXPECT_FALSE(tree.Contains({"layers", "0", "w"}));
}

TEST(TensorDictTest, DotsAndEmptyNamesAreOrdinary) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set("a.b", at::ones({1})).ok());
  ASSERT_TRUE(tree.Set({"a", "b"}, at::ones({2})).ok());
  ASSERT_TRUE(tree.Set("", at::ones({3})).ok());
  ASSERT_TRUE(tree.Set({"", ""}, at::ones({4})).code() == absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(tree.Set({"c", ""}, at::ones({4})).ok());
  EXPECT_EQ(tree.Get("a.b")->numel(), 1);
  EXPECT_EQ(tree.Get({"a", "b"})->numel(), 2);
  EXPECT_EQ(tree.Get("")->numel(), 3);
  EXPECT_EQ(tree.Get({"c", ""})->numel(), 4);
}

TEST(TensorDictTest, ErrorsNameThePath) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set({"a", "b"}, at::ones({2})).ok());
  ExpectRefused(tree.Set({}, at::ones({1})), "the key is empty");
  ExpectRefused(tree.Set({"a", "b", "c"}, at::ones({1})), "a.b is a leaf");
  EXPECT_EQ(tree.Get({"a", "c"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(tree.Get({"x", "c"}).status().message()),
              testing::AllOf(HasSubstr("x"), HasSubstr("x.c")));
  EXPECT_THAT(std::string(tree.Get({"a", "b", "c"}).status().message()),
              HasSubstr("a.b is a leaf"));
  ExpectRefused(tree.Get({"a"}).status(), "a is a node");
  ExpectRefused(tree.Get({}).status(), "root");
  ExpectRefused(tree.GetDict({"a", "b"}).status(), "a.b is a leaf");
  ExpectRefused(tree.Erase({}), "root");
  EXPECT_EQ(tree.Erase({"a", "x"}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(tree.Erase({"x", "x"}).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Paths(tree), ElementsAre("a.b"));
}

TEST(TensorDictTest, HandlesShareTheNode) {
  TensorDict tree;
  TensorDict same = tree;
  ASSERT_TRUE(same.Set("a", at::ones({1})).ok());
  EXPECT_TRUE(tree.Contains("a"));
  EXPECT_TRUE(tree.IsSame(same));

  TensorDict child;
  ASSERT_TRUE(tree.Set({"x", "y"}, child).ok());
  ASSERT_TRUE(tree.Set("z", child).ok());
  ASSERT_TRUE(child.Set("b", at::ones({1})).ok());
  EXPECT_THAT(Paths(tree), ElementsAre("a", "x.y.b", "z.b"));
  EXPECT_TRUE(tree.GetDict({"x", "y"})->IsSame(child));
  EXPECT_TRUE(tree.GetDict({})->IsSame(tree));
  EXPECT_EQ(tree.num_leaves(), 3u);
}

TEST(TensorDictTest, BatchSizeIsChecked) {
  TensorDict tree({4, 2});
  EXPECT_TRUE(tree.Set("a", at::ones({4, 2})).ok());
  EXPECT_TRUE(tree.Set({"n", "b"}, at::ones({4, 2, 7})).ok());
  EXPECT_EQ(tree.GetDict({"n"})->batch_size(), at::IntArrayRef({4, 2}));
  ExpectRefused(tree.Set("c", at::ones({4})), "c");
  ExpectRefused(tree.Set("c", at::ones({4, 3})), "shape [4, 3]");
  ExpectRefused(tree.Set({"m", "c"}, at::ones({2, 4})), "batch size [4, 2]");
  ExpectRefused(tree.Set("c", TensorDict({4})), "batch size [4]");
  EXPECT_FALSE(tree.Contains("m"));
  EXPECT_TRUE(tree.Set("d", TensorDict({4, 2, 3})).ok());
  ExpectRefused(tree.Set({"d", "e"}, at::ones({4, 2})), "[4, 2, 3]");
  EXPECT_TRUE(tree.Set("u", at::Tensor()).ok());  // no sizes to check
  EXPECT_FALSE(tree.Get("u")->defined());
  EXPECT_EQ(tree.num_leaves(), 3u);
}

TEST(TensorDictTest, ReplaceEraseClear) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set({"a", "b"}, at::ones({1})).ok());
  ASSERT_TRUE(tree.Set({"a", "b"}, at::ones({2})).ok());
  EXPECT_EQ(tree.Get({"a", "b"})->numel(), 2);
  ASSERT_TRUE(tree.Set({"a"}, at::ones({3})).ok());  // a node becomes a leaf
  EXPECT_EQ(tree.Get({"a"})->numel(), 3);
  EXPECT_EQ(tree.num_leaves(), 1u);
  ASSERT_TRUE(tree.Set({"a"}, TensorDict()).ok());  // and a node again
  EXPECT_EQ(tree.num_leaves(), 0u);
  ASSERT_TRUE(tree.Set({"a", "c", "d"}, at::ones({1})).ok());
  ASSERT_TRUE(tree.Erase({"a", "c", "d"}).ok());
  EXPECT_TRUE(tree.Contains({"a", "c"}));
  ASSERT_TRUE(tree.Erase({"a"}).ok());
  EXPECT_TRUE(tree.empty());
  ASSERT_TRUE(tree.Set({"a", "c", "d"}, at::ones({1})).ok());
  ASSERT_TRUE(tree.Clear().ok());
  EXPECT_TRUE(tree.empty());
  EXPECT_EQ(tree.num_leaves(), 0u);
}

TEST(TensorDictTest, NestedConstruction) {
  const at::Tensor t = at::ones({2});
  TensorDict sub({2});
  ASSERT_TRUE(sub.Set("x", t).ok());
  absl::StatusOr<TensorDict> tree = TensorDict::Make({{"z", t},
                                                      {"b", {{"d", t}, {"c", t}}},
                                                      {"one", {{"e", t}}},
                                                      {"s", sub},
                                                      {0, {{1, t}}},
                                                      {"n", {}}},
                                                     {2});
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_THAT(Paths(*tree), ElementsAre("[0][1]", "b.c", "b.d", "one.e", "s.x", "z"));
}

TEST(TensorDictTest, NestedConstructionChecks) {
  const at::Tensor t = at::ones({2});
  ExpectRefused(TensorDict::Make({{"b", {{"c", t}, {"c", t}}}}).status(), "b.c is given twice");
  ExpectRefused(TensorDict::Make({{"b", {{"c", t}}}}, {3}).status(), "b.c");
  EXPECT_TRUE(TensorDict::Make({}, {3})->empty());
}

TEST(TensorDictTest, ChildrenAreASnapshotInCanonicalOrder) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set("b", at::ones({1})).ok());
  ASSERT_TRUE(tree.Set("a", TensorDict()).ok());
  ASSERT_TRUE(tree.Set(NestedKey{10}, at::ones({1})).ok());
  ASSERT_TRUE(tree.Set(NestedKey{9}, at::ones({1})).ok());
  std::vector<std::string> keys;
  for (const TensorDict::Child& child : tree.Children()) {
    keys.push_back(child.key.ToString());
    ASSERT_TRUE(tree.Erase(child.key).ok());
    EXPECT_EQ(child.is_leaf(), keys.back() != "a");
  }
  EXPECT_THAT(keys, ElementsAre("[9]", "[10]", "a", "b"));
  EXPECT_TRUE(tree.empty());
}

TEST(TensorDictTest, ANodeCannotStandBelowItself) {
  TensorDict tree;
  ExpectRefused(tree.Set("a", tree), "below itself");
  ExpectRefused(tree.Set({"a", "b"}, tree), "below itself");
  EXPECT_TRUE(tree.empty());
  ASSERT_TRUE(tree.Set({"a", "b", "c"}, at::ones({1})).ok());
  TensorDict b = *tree.GetDict({"a", "b"});
  ExpectRefused(b.Set("x", tree), "below itself");
  ExpectRefused(b.Set("x", *tree.GetDict("a")), "below itself");
  ExpectRefused(tree.Set({"a", "b", "x"}, *tree.GetDict("a")), "below itself");
  // Through another tree.
  TensorDict other;
  ASSERT_TRUE(other.Set({"p", "q"}, tree).ok());
  ExpectRefused(b.Set("x", other), "below itself");
  EXPECT_EQ(tree.num_leaves(), 1u);
}

TEST(TensorDictTest, DepthHasALimit) {
  NestedKey deep;
  for (int i = 0; i < kMaxTreeDepth; ++i) deep.push_back("k");
  TensorDict tree;
  EXPECT_TRUE(tree.Set(deep, at::ones({1})).ok());
  ExpectRefused(TensorDict().Set(deep.Child("k"), at::ones({1})), "limit of 512");
  ExpectRefused(TensorDict().Set("k", tree), "513 components");
  EXPECT_EQ(tree.num_leaves(), 1u);
}

TEST(TensorDictTest, DeepTreesAreFreedWithoutRecursion) {
  // Handles to inner nodes can grow a tree beyond the limit; it must be walked and freed all the
  // same.
  TensorDict root;
  TensorDict at = root;
  for (int i = 0; i < 300000; ++i) {
    ASSERT_TRUE(at.Set("k", TensorDict()).ok());
    at = *at.GetDict("k");
  }
  ASSERT_TRUE(at.Set("leaf", at::ones({1})).ok());
  EXPECT_EQ(root.num_leaves(), 1u);
  size_t depth = 0;
  root.Visit([&](const NestedKey& path, const at::Tensor&) { depth = path.size(); });
  EXPECT_EQ(depth, 300001u);
  ExpectRefused(TensorDict().Set("x", root), "limit of 512");
  TensorDict copy = root;
  ASSERT_TRUE(root.Clear().ok());
  EXPECT_TRUE(copy.empty());
}

TEST(TensorDictTest, SharedNodesDoNotMakeChecksSlow) {
  // 2^60 paths, but 60 nodes.
  TensorDict below;
  for (int i = 0; i < 60; ++i) {
    TensorDict above;
    ASSERT_TRUE(above.Set("l", below).ok());
    ASSERT_TRUE(above.Set("r", below).ok());
    below = above;
  }
  EXPECT_TRUE(TensorDict().Set("x", below).ok());
}

// Random changes against a map from paths to leaves.
TEST(TensorDictTest, RandomChangesAgainstAModel) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 50; ++round) {
    TensorDict tree;
    std::map<NestedKey, at::Tensor> model;
    for (int step = 0; step < 200; ++step) {
      NestedKey key;
      for (size_t n = 1 + rng() % 3; n > 0; --n) {
        if (rng() % 2 == 0) {
          key.push_back(static_cast<int64_t>(rng() % 3));
        } else {
          key.push_back(std::string(1, static_cast<char>('a' + rng() % 3)));
        }
      }
      const auto is_below = [&](const auto& entry) { return key.IsPrefixOf(entry.first); };
      const bool below_leaf = std::any_of(model.begin(), model.end(), [&](const auto& entry) {
        return entry.first.size() < key.size() && entry.first.IsPrefixOf(key);
      });
      if (rng() % 3 == 0) {
        const bool was_there = tree.Contains(key);
        EXPECT_EQ(tree.Erase(key).ok(), was_there);
        EXPECT_EQ(std::erase_if(model, is_below) > 0 && !was_there, false);
      } else {
        const at::Tensor leaf = at::zeros({1});
        EXPECT_EQ(tree.Set(key, leaf).ok(), !below_leaf);
        if (below_leaf) continue;
        std::erase_if(model, is_below);
        model[key] = leaf;
      }
      auto expected = model.begin();
      tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
        ASSERT_NE(expected, model.end());
        EXPECT_EQ(path, expected->first);
        EXPECT_TRUE(leaf.is_same(expected->second));
        ++expected;
      });
      EXPECT_EQ(expected, model.end());
      EXPECT_EQ(tree.num_leaves(), model.size());
    }
  }
}

}  // namespace
}  // namespace leafpack
