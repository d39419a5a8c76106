#include "tensordict/ops/keys.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/ops_testutil.h"
#include "tensordict/ops/print.h"

namespace leafpack {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kLocked = absl::StatusCode::kFailedPrecondition;

TensorDict Sample() {
  return *TensorDict::Make({{"a", {{"b", at::ones({4, 3})}, {"e", {}}}},
                            {"c", at::ones({4, 3, 2})},
                            {"e", {}},
                            {"s", "text"}},
                           {4, 3});
}

TEST(KeysTest, OneKey) {
  TensorDict tree = Sample();
  EXPECT_EQ(std::get<NonTensor>(*GetValue(tree, "s")), NonTensor("text"));
  EXPECT_TRUE(std::get<TensorDict>(*GetValue(tree, {})).IsSame(tree));
  ExpectError(GetValue(tree, {"a", "q"}), "a.q", kNotFound);
  const at::Tensor fallback = at::ones({1});
  EXPECT_TRUE(GetOr(tree, {"a", "q"}, fallback)->is_same(fallback));
  EXPECT_TRUE(GetOr(tree, {"c", "q"}, fallback)->is_same(fallback));
  EXPECT_EQ(GetOr(tree, "c", fallback)->dim(), 3);
  ExpectError(GetOr(tree, "a", fallback), "a is a node");

  const at::Tensor c = *tree.Get("c");
  EXPECT_TRUE(std::get<at::Tensor>(*Pop(tree, "c")).is_same(c));
  ExpectError(Pop(tree, "c"), "there is no c", kNotFound);
  tree.Lock();
  ExpectError(Pop(tree, "s"), "locked", kLocked);
  EXPECT_TRUE(tree.Contains("s"));
}

TEST(KeysTest, SetInPlaceWritesIntoTheTensor) {
  TensorDict tree = Sample();
  const at::Tensor c = *tree.Get("c");
  tree.Lock();
  ASSERT_TRUE(SetInPlace(tree, "c", Counted({4, 3, 2})).ok());
  EXPECT_TRUE(c.equal(Counted({4, 3, 2})));
  ASSERT_TRUE(SetInPlace(tree, "c", at::zeros({4, 3, 1})).ok());  // broadcasts behind the batch
  EXPECT_EQ(c.sum().item<double>(), 0);
  ExpectError(SetInPlace(tree, "c", at::ones({4, 1, 2})), "batch size [4, 3]");
  ExpectError(SetInPlace(tree, "c", at::ones({3, 2})), "shape [3, 2] do not fit");
  ExpectError(SetInPlace(tree, "c", at::ones({4, 3, 2}, at::kLong)), "int64, the leaf is float32");
  EXPECT_EQ(c.sum().item<double>(), 0);
  ASSERT_TRUE(SetInPlace(tree, "c", at::ones({4, 3, 2}, at::kLong), Cast::kAllow).ok());
  EXPECT_EQ(c.sum().item<double>(), 24);
  ExpectError(SetInPlace(tree, "q", c), "no q", kNotFound);
  ExpectError(SetInPlace(tree, "s", c), "no tensor");
  ExpectError(SetInPlace(tree, "c", at::Tensor()), "undefined");
  // 0-dim leaves, and what torch itself refuses.
  TensorDict scalar = *TensorDict::Make({{"x", at::zeros({})}, {"w", at::ones({2})}});
  ASSERT_TRUE(SetInPlace(scalar, "x", at::ones({})).ok());
  EXPECT_EQ(scalar.Get("x")->item<double>(), 1);
  scalar.Get("w")->requires_grad_(true);
  ExpectError(SetInPlace(scalar, "w", at::zeros({2})), "w: it is a leaf of autograd that requires grad");
}

TEST(KeysTest, Rename) {
  TensorDict tree = Sample();
  ASSERT_TRUE(RenameKey(tree, "c", {"a", "b"}).ok());
  EXPECT_THAT(PathsIn(tree), ElementsAre("a", "a.b", "a.e", "e", "s"));
  EXPECT_EQ(tree.Get({"a", "b"})->dim(), 3);
  ExpectError(RenameKey(tree, "e", "s", /*safe=*/true), "something at s");
  ExpectError(RenameKey(tree, "a", {"a", "b"}), "below itself");
  ExpectError(RenameKey(tree, "q", "r"), "no q", kNotFound);
  ExpectError(RenameKey(tree, {}, "r"), "root");
  ASSERT_TRUE(RenameKey(tree, "s", "s").ok());
  ASSERT_TRUE(RenameKey(tree, {"a", "b"}, "a").ok());  // what stood above it goes
  EXPECT_THAT(PathsIn(tree), ElementsAre("a", "e", "s"));
  tree.Lock();
  ExpectError(RenameKey(tree, "s", "t"), "locked", kLocked);
  // Nothing happens where the new place does not take it.
  TensorDict other;
  ASSERT_TRUE(other.Set("x", at::ones({2})).ok());
  ASSERT_TRUE(other.Set("n", TensorDict({3})).ok());
  ExpectError(RenameKey(other, "x", {"n", "x"}), "batch size [3]");
  EXPECT_TRUE(other.Contains("x"));
}

TEST(KeysTest, Lists) {
  const TensorDict tree = Sample();
  const auto text = [](const std::vector<NestedKey>& keys) {
    std::vector<std::string> result;
    for (const NestedKey& key : keys) result.push_back(key.ToString());
    return result;
  };
  EXPECT_THAT(text(Keys(tree)), ElementsAre("a", "c", "e", "s"));
  EXPECT_THAT(text(Keys(tree, {.leaves_only = true})), ElementsAre("c", "s"));
  EXPECT_THAT(text(Keys(tree, {.nested = true})),
              ElementsAre("a", "a.b", "a.e", "c", "e", "s"));
  EXPECT_THAT(text(Keys(tree, {.nested = true, .leaves_only = true})),
              ElementsAre("a.b", "c", "s"));
  EXPECT_EQ(Values(tree).size(), 4u);
  const auto items = Items(tree, {.nested = true, .leaves_only = true});
  EXPECT_TRUE(std::get<at::Tensor>(items[1].second).is_same(*tree.Get("c")));
  EXPECT_THAT(Keys(TensorDict(), {.nested = true}), IsEmpty());
}

TEST(KeysTest, Update) {
  TensorDict tree = Sample();
  const at::Tensor b = *tree.Get({"a", "b"});
  const at::Tensor q = at::ones({4, 3});
  TensorDict a = *tree.GetDict("a");
  ASSERT_TRUE(
      Update(tree, *TensorDict::Make({{"a", {{"q", q}}}, {"c", q}, {"s", 3}}, {4, 3})).ok());
  EXPECT_THAT(PathsIn(tree), ElementsAre("a", "a.b", "a.e", "a.q", "c", "e", "s"));
  EXPECT_TRUE(tree.GetDict("a")->IsSame(a));
  EXPECT_TRUE(tree.Get({"a", "b"})->is_same(b));
  EXPECT_TRUE(tree.Get("c")->is_same(q));
  EXPECT_EQ(tree.GetNonTensor("s")->AsInt(), 3);
  ASSERT_TRUE(Update(tree, *TensorDict::Make({{"a", q}}, {4, 3})).ok());  // a leaf for a node
  EXPECT_TRUE(tree.Get("a")->is_same(q));
  ASSERT_TRUE(Update(tree, tree).ok());
  ExpectError(Update(tree, *TensorDict::Make({{"z", at::ones({4})}})), "cannot set z");
}

TEST(KeysTest, UpdateInPlaceIsAllOrNothing) {
  TensorDict tree = Sample();
  const at::Tensor b = *tree.Get({"a", "b"});
  tree.Lock();
  ExpectError(UpdateInPlace(tree, *TensorDict::Make({{"a", {{"b", at::zeros({4, 3})}}},
                                                     {"zz", at::zeros({4, 3})}})),
              "no zz", kNotFound);
  ExpectError(UpdateInPlace(tree, *TensorDict::Make({{"a", {{"b", at::zeros({4, 3})}}},
                                                     {"c", at::zeros({4, 3}, at::kInt)}})),
              "update in place: c");
  ExpectError(UpdateInPlace(tree, *TensorDict::Make({{"c", 1}})), "c: the two are of different");
  EXPECT_EQ(b.sum().item<double>(), 12);
  ASSERT_TRUE(UpdateInPlace(tree, *TensorDict::Make({{"a", {{"b", at::zeros({4, 3})}}},
                                                     {"s", "other"}}))
                  .ok());
  EXPECT_EQ(b.sum().item<double>(), 0);
  EXPECT_EQ(*tree.GetNonTensor("s")->AsString(), "other");
}

TEST(KeysTest, LoadIsStrictAndAllOrNothing) {
  TensorDict tree = Sample();
  tree.Get("c")->requires_grad_(true);
  const at::Tensor b = *tree.Get({"a", "b"});
  const TensorDict state = *TensorDict::Make(
      {{"a", {{"b", at::zeros({4, 3})}}}, {"c", at::zeros({4, 3, 2})}, {"s", "new"}});
  const auto with = [&](const NestedKey& key, TreeValue value) {
    TensorDict other = *Select(state, {{"a", "b"}, "c", "s"});
    EXPECT_TRUE(SetValue(other, key, std::move(value)).ok());
    return other;
  };
  ExpectError(Load(tree, with("z", 1)), "load: z: the state has it, the tree has not");
  ExpectError(Load(tree, *Exclude(state, {"c"})), "c: the tree has it, the state has not",
              kNotFound);
  ExpectError(Load(tree, with("c", at::zeros({4, 3, 1}))),
              "c: the state has the shape [4, 3, 1], the tree the shape [4, 3, 2]");
  ExpectError(Load(tree, with("c", at::zeros({4, 3, 2}, at::kInt))), "c: the state is int32");
  ExpectError(Load(tree, with("c", at::Tensor())), "c: the state has an undefined tensor");
  ExpectError(Load(tree, with("s", at::zeros({1}))), "s: the two are of different kinds");
  EXPECT_EQ(b.sum().item<double>(), 12);
  tree.Lock();
  ExpectError(Load(tree, state, {.assign = true}), "locked", kLocked);
  ASSERT_TRUE(Load(tree, state).ok());
  EXPECT_EQ(b.sum().item<double>(), 0);
  EXPECT_EQ(tree.Get("c")->sum().item<double>(), 0);
  EXPECT_TRUE(tree.Get("c")->requires_grad());
  EXPECT_EQ(*tree.GetNonTensor("s"), NonTensor("new"));
  ASSERT_TRUE(tree.Unlock().ok());
  ASSERT_TRUE(Load(tree, *Exclude(with("z", 1), {"c"}), {.strict = false, .assign = true}).ok());
  EXPECT_TRUE(tree.Get({"a", "b"})->is_same(*state.Get({"a", "b"})));
  EXPECT_FALSE(tree.Contains("z"));
}

TEST(KeysTest, Select) {
  TensorDict tree = Sample();
  ASSERT_TRUE(tree.SetNames({"x", "y"}).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict part, Select(tree, {{"a", "b"}, "s"}));
  EXPECT_THAT(PathsIn(part), ElementsAre("a", "a.b", "s"));
  EXPECT_EQ(part.batch_size(), at::IntArrayRef({4, 3}));
  EXPECT_THAT(part.names(), ElementsAre("x", "y"));
  EXPECT_FALSE(part.GetDict("a")->IsSame(*tree.GetDict("a")));
  EXPECT_TRUE(part.Get({"a", "b"})->is_same(*tree.Get({"a", "b"})));
  EXPECT_EQ(part.num_leaves(), 2u);
  for (const auto& keys : {std::vector<NestedKey>{"a", {"a", "b"}},
                           std::vector<NestedKey>{{"a", "b"}, "a"}}) {
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict whole, Select(tree, keys));
    EXPECT_THAT(PathsIn(whole), ElementsAre("a", "a.b", "a.e"));
    EXPECT_TRUE(whole.GetDict("a")->IsSame(*tree.GetDict("a")));
    EXPECT_EQ(whole.num_leaves(), 1u);
  }
  ExpectError(Select(tree, {"c", {"a", "q"}}), "a.q", kNotFound);
  ExpectError(Select(tree, {{}}), "whole tree");
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict lenient,
                          Select(tree, {{"a", "q"}, "zz", {"c", "x"}}, /*strict=*/false));
  EXPECT_THAT(PathsIn(lenient), ElementsAre("a"));
}

TEST(KeysTest, SelectKeyByKeyInAnyOrder) {
  TensorDict tree;
  for (const char* node : {"m", "n", "o"}) {
    for (int i = 0; i < 12; ++i) {
      ASSERT_TRUE(tree.Set({node, "deep", absl::StrCat("k", i)}, at::ones({1})).ok());
    }
  }
  // Every order of these keys, neighbours of one node or not, gives the same tree.
  std::vector<NestedKey> keys = {{"m", "deep", "k3"}, {"m", "deep", "k9"}, {"n", "deep"},
                                 {"n", "deep", "k1"}, {"o", "deep", "k0"}};
  do {
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict part, Select(tree, keys));
    EXPECT_THAT(PathsIn(part),
                ElementsAre("m", "m.deep", "m.deep.k3", "m.deep.k9", "n", "n.deep", "n.deep.k0",
                            "n.deep.k1", "n.deep.k10", "n.deep.k11", "n.deep.k2", "n.deep.k3",
                            "n.deep.k4", "n.deep.k5", "n.deep.k6", "n.deep.k7", "n.deep.k8",
                            "n.deep.k9", "o", "o.deep", "o.deep.k0"));
    EXPECT_TRUE(part.GetDict({"n", "deep"})->IsSame(*tree.GetDict({"n", "deep"})));
    EXPECT_EQ(part.GetDict("n")->num_leaves(), 12u);
    EXPECT_EQ(part.num_leaves(), 15u);
  } while (std::next_permutation(keys.begin(), keys.end()));
  EXPECT_EQ(tree.num_leaves(), 36u);
  ExpectError(Select(tree, {{"n", "deep"}, {"n", "deep", "none"}}), "n.deep.none", kNotFound);
  ExpectError(Select(tree, {{"m", "deep", "k3", "below"}}), "m.deep.k3", kNotFound);
}

TEST(KeysTest, VisitItemsShowsWhereThingsAre) {
  const TensorDict tree = Sample();
  std::vector<std::string> seen;
  const auto note = [&](size_t depth, const KeyComponent& key, const TreeValue& value) {
    seen.push_back(absl::StrCat(depth, key.ToString(), value.index()));
  };
  VisitItems(tree, /*nested=*/true, note);
  EXPECT_THAT(seen, ElementsAre("0a1", "1b0", "1e1", "0c0", "0e1", "0s2"));
  seen.clear();
  VisitItems(tree, /*nested=*/false, note);
  EXPECT_THAT(seen, ElementsAre("0a1", "0c0", "0e1", "0s2"));
}

TEST(KeysTest, StructureMarkHoldsUntilTheStructureChanges) {
  TensorDict tree = Sample();
  TensorDict below = *tree.GetDict("a");
  const StructureMark whole(tree, /*nested=*/true);
  const StructureMark first(tree, /*nested=*/false);
  EXPECT_TRUE(whole.Holds(tree));
  EXPECT_FALSE(whole.Holds(Sample()));
  EXPECT_FALSE(whole.Holds(*Clone(tree, /*recurse=*/false)));
  ASSERT_TRUE(tree.Set("c", at::zeros({4, 3})).ok());  // a tensor in place of a tensor
  EXPECT_TRUE(whole.Holds(tree));
  ASSERT_TRUE(below.Set("new", at::zeros({4, 3})).ok());
  EXPECT_FALSE(whole.Holds(tree));
  EXPECT_TRUE(first.Holds(tree));
  ASSERT_TRUE(tree.Set("a", TensorDict({4, 3})).ok());  // another node at the same key
  EXPECT_FALSE(first.Holds(tree));
  // The node that is gone is not looked at.
  const StructureMark again(tree, /*nested=*/true);
  ASSERT_TRUE(tree.Erase("a").ok());
  EXPECT_FALSE(again.Holds(tree));
}

TEST(KeysTest, Exclude) {
  const TensorDict tree = Sample();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict rest,
                          Exclude(tree, {{"a", "b"}, "zz", {"a", "zz"}, "e"}));
  EXPECT_THAT(PathsIn(rest), ElementsAre("a", "a.e", "c", "s"));
  EXPECT_THAT(PathsIn(tree), ElementsAre("a", "a.b", "a.e", "c", "e", "s"));
  EXPECT_EQ(rest.num_leaves(), 2u);
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict untouched, Exclude(tree, {"c"}));
  EXPECT_TRUE(untouched.GetDict("a")->IsSame(*tree.GetDict("a")));
  ExpectError(Exclude(tree, {{}}), "whole tree");
}

TEST(KeysTest, FlattenAndUnflatten) {
  TensorDict tree = Sample();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict flat, FlattenKeys(tree));
  EXPECT_THAT(PathsIn(flat), ElementsAre("\"a.b\"", "c", "s"));
  EXPECT_EQ(flat.batch_size(), at::IntArrayRef({4, 3}));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict back, UnflattenKeys(flat));
  EXPECT_THAT(PathsIn(back), ElementsAre("a", "a.b", "c", "s"));
  EXPECT_EQ(back.GetDict("a")->batch_size(), at::IntArrayRef({4, 3}));
  EXPECT_EQ(back.num_leaves(), 3u);
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict slashes, FlattenKeys(tree, "//"));
  EXPECT_THAT(PathsIn(slashes), ElementsAre("a//b", "c", "s"));

  ASSERT_TRUE(tree.Set("a.b", at::ones({4, 3})).ok());
  ExpectError(FlattenKeys(tree), "\"a.b\"");
  ExpectError(UnflattenKeys(tree), "\"a.b\": something stands");
  const at::Tensor x = at::ones({1});
  ExpectError(UnflattenKeys(*TensorDict::Make({{"a", x}, {"a.c", x}})), "a leaf stands");
  ExpectError(UnflattenKeys(tree, ""), "separator");
  // Joined with a node that is there, which stays as it is.
  const TensorDict mixed = *TensorDict::Make({{"a", {{"b", x}}}, {"a.c", x}, {".", x}});
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict joined, UnflattenKeys(mixed));
  EXPECT_THAT(PathsIn(joined), ElementsAre("\"\"", "\"\".\"\"", "a", "a.b", "a.c"));
  EXPECT_THAT(PathsIn(*mixed.GetDict("a")), ElementsAre("b"));
  ExpectError(UnflattenKeys(*TensorDict::Make({{"a", TensorDict({1, 1})}, {"a.c", x}})),
              "batch size [1, 1]");
  // Positions become numbers.
  TensorDict list;
  ASSERT_TRUE(list.Set({"l", 0}, x).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict names, FlattenKeys(list));
  EXPECT_THAT(PathsIn(names), ElementsAre("\"l.0\""));
  ASSERT_TRUE(list.Set({"l", "0"}, x).ok());
  ExpectError(FlattenKeys(list), "l.0");
}

TEST(PrintTest, OneLinePerNodeAndLeaf) {
  TensorDict tree = Sample();
  ASSERT_TRUE(tree.SetNames({"time", ""}).ok());
  tree.Get("c")->requires_grad_(true);
  EXPECT_EQ(ToString(tree),
            "TensorDict batch [4, 3] (time, _)\n"
            "  a: batch [4, 3]\n"
            "    b: float32 [4, 3]\n"
            "    e: batch [4, 3], empty\n"
            "  c: float32 [4, 3, 2], requires grad\n"
            "  e: batch [4, 3], empty\n"
            "  s: \"text\"");
  EXPECT_EQ(ToString(tree, {.max_lines = 2}),
            "TensorDict batch [4, 3] (time, _)\n"
            "  a: batch [4, 3]\n"
            "  ... (5 more)");
  EXPECT_EQ(ToString(TensorDict()), "TensorDict batch [], empty");
}

}  // namespace
}  // namespace leafpack
