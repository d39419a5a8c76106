// What a tree holds beside tensors, and the rules of its nodes: batch size, names, device, lock.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const c10::Device kCpu(c10::DeviceType::CPU);
const c10::Device kMeta(c10::DeviceType::Meta);

void ExpectRefused(const absl::Status& status, const std::string& text,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

void ExpectLocked(const absl::Status& status) {
  ExpectRefused(status, "locked", absl::StatusCode::kFailedPrecondition);
}

Layout LayoutOf(const TensorDict& tree) {
  absl::StatusOr<Layout> layout = Layout::Of(Flatten(tree));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : Layout();
}

// ---- Leaves that are no tensors.

TEST(NonTensorLeavesTest, TravelWithTheTree) {
  TensorDict tree({2});
  ASSERT_TRUE(tree.Set({"n", "text"}, "x").ok());  // has no sizes to check
  ASSERT_TRUE(tree.Set({"n", "a"}, at::ones({2})).ok());
  ASSERT_TRUE(tree.Set("z", NonTensor()).ok());
  ASSERT_TRUE(tree.Set("b", true).ok());
  EXPECT_EQ(tree.num_leaves(), 4u);
  EXPECT_EQ(*tree.GetNonTensor({"n", "text"})->AsString(), "x");
  EXPECT_EQ(tree.GetNonTensor("b")->AsBool(), true);
  EXPECT_TRUE(tree.GetNonTensor("z")->is_none());
  ExpectRefused(tree.Get({"n", "text"}).status(), "n.text is a value that is no tensor");
  ExpectRefused(tree.GetNonTensor({"n", "a"}).status(), "n.a is a tensor");
  ExpectRefused(tree.GetNonTensor("n").status(), "n is a node");
  ExpectRefused(tree.GetDict("b").status(), "b is a leaf");
  ExpectRefused(tree.Set({"b", "c"}, 1), "b is a leaf");
  EXPECT_EQ(tree.GetNonTensor("q").status().code(), absl::StatusCode::kNotFound);

  std::vector<std::string> tensors, values;
  tree.Visit([&](const NestedKey& path, const at::Tensor&) { tensors.push_back(path.ToString()); });
  tree.VisitNonTensors([&](const NestedKey& path, const NonTensor& value) {
    values.push_back(path.ToString() + "=" + value.ToString());
  });
  EXPECT_THAT(tensors, ElementsAre("n.a"));
  EXPECT_THAT(values, ElementsAre("b=true", "n.text=\"x\"", "z=none"));
  EXPECT_TRUE(tree.Children()[0].is_non_tensor());
  EXPECT_TRUE(tree.Children()[0].is_leaf());
  EXPECT_FALSE(tree.Children()[0].is_dict());
  ASSERT_TRUE(tree.Erase("b").ok());
  EXPECT_EQ(tree.num_leaves(), 3u);
}

TEST(NonTensorLeavesTest, InNestedConstruction) {
  const absl::StatusOr<TensorDict> tree =
      TensorDict::Make({{"a", at::ones({1})}, {"b", {{"step", 3}, {"name", "x"}}}, {"c", 2.5}});
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->GetNonTensor({"b", "step"})->AsInt(), 3);
  EXPECT_EQ(*tree->GetNonTensor({"b", "name"})->AsString(), "x");
  EXPECT_EQ(tree->GetNonTensor("c")->AsFloat(), 2.5);
}

TEST(NonTensorLeavesTest, Flattened) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set("b", at::ones({1})).ok());
  ASSERT_TRUE(tree.Set("a", 1).ok());
  ASSERT_TRUE(tree.Set("c", 2).ok());
  FlatTree flat = Flatten(tree);
  ASSERT_EQ(flat.size(), 3u);
  EXPECT_FALSE(flat.leaves[0].defined());
  EXPECT_EQ(*flat.non_tensor(0), NonTensor(1));
  EXPECT_EQ(flat.non_tensor(1), nullptr);
  EXPECT_EQ(*flat.non_tensor(2), NonTensor(2));
  // Another value is no change of the structure, another kind of leaf is.
  const auto paths = flat.paths;
  ASSERT_TRUE(tree.Set("a", "other").ok());
  flat = Flatten(tree);
  EXPECT_EQ(flat.paths, paths);
  EXPECT_EQ(*flat.non_tensor(0), NonTensor("other"));
  ASSERT_TRUE(tree.Set("a", at::ones({2})).ok());
  flat = Flatten(tree);
  EXPECT_NE(flat.paths, paths);
  EXPECT_EQ(flat.non_tensor(0), nullptr);
  EXPECT_EQ(flat.leaves[0].numel(), 2);
  ASSERT_TRUE(tree.Set("b", false).ok());
  EXPECT_FALSE(Flatten(tree).leaves[1].defined());

  const absl::StatusOr<FlatTree> made =
      MakeFlatTree({{"b", at::ones({1})}, {"d", at::ones({1})}}, {{"c", 2}, {"a", 1}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->non_tensors, (std::vector<NonTensorLeaf>{{0, 1}, {2, 2}}));
  ExpectRefused(MakeFlatTree({{"b", at::ones({1})}}, {{"b", 1}}).status(), "two leaves stand at b");
  ExpectRefused(MakeFlatTree({{NestedKey{"b", "c"}, at::ones({1})}}, {{"b", 1}}).status(),
                "b.c stands below the leaf b");
}

TEST(NonTensorLeavesTest, TheLayoutCoversTheValue) {
  const auto with = [](const NonTensor& value) {
    return LayoutOf(*TensorDict::Make({{"a", value}, {"w", at::ones({2})}}));
  };
  const Layout layout = with(3);
  EXPECT_EQ(layout.digest().ToString(), "1a8ba2f038052e3c60f49f476976fd66");
  EXPECT_EQ(layout.leaf(0).kind, LeafKind::kNonTensor);
  EXPECT_EQ(layout.leaf(0).value, NonTensor(3));
  EXPECT_EQ(layout.leaf(0).numel, 0);
  EXPECT_EQ(layout.num_non_tensors(), 1u);
  EXPECT_EQ(layout.total_bytes(), 8);
  EXPECT_EQ(layout, with(3));
  EXPECT_NE(layout, with(4));
  EXPECT_NE(layout, with(3.0));
  EXPECT_NE(layout, LayoutOf(*TensorDict::Make({{"a", at::Tensor()}, {"w", at::ones({2})}})));
  EXPECT_EQ(*Layout::Difference(layout, with("3")),
            "a: one side has the value 3, the other has the value \"3\"");
  EXPECT_EQ(layout.stride_digest(), with(4).stride_digest());
}

TEST(NonTensorLeavesTest, ALayoutMatchesWhileTheValuesAreEqual) {
  TensorDict tree = *TensorDict::Make({{"a", 1}, {"b", at::Tensor()}, {"c", at::ones({1})}});
  const Layout layout = LayoutOf(tree);
  EXPECT_TRUE(layout.Matches(Flatten(tree)));
  ASSERT_TRUE(tree.Set("a", 2).ok());
  EXPECT_FALSE(layout.Matches(Flatten(tree)));
  ASSERT_TRUE(tree.Set("a", 1).ok());
  EXPECT_TRUE(layout.Matches(Flatten(tree)));
}

TEST(NonTensorLeavesTest, AFlatTreeThatContradictsItselfIsRefused) {
  FlatTree flat = Flatten(*TensorDict::Make({{"a", 1}, {"b", at::ones({1})}}));
  flat.non_tensors[0].leaf = 1;
  ExpectRefused(Layout::Of(flat).status(), "leaf 1");
  flat.non_tensors[0].leaf = 2;
  ExpectRefused(Layout::Of(flat).status(), "leaf 2 of 2");
  flat.non_tensors = {{0, 1}, {0, 1}};
  ExpectRefused(Layout::Of(flat).status(), "leaf 0");
}

// ---- Batch size.

TEST(BatchSizeTest, MayBeChangedWhereTheLeavesAllowIt) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set("a", at::ones({4, 3})).ok());
  ASSERT_TRUE(tree.Set({"n", "b"}, at::ones({4, 3, 2})).ok());
  ASSERT_TRUE(tree.Set({"n", "text"}, "x").ok());
  ASSERT_TRUE(tree.Set("deep", TensorDict({4, 3, 2})).ok());
  ASSERT_TRUE(tree.SetBatchSize({4}).ok());
  EXPECT_EQ(tree.batch_size(), at::IntArrayRef({4}));
  EXPECT_EQ(tree.GetDict("n")->batch_size(), at::IntArrayRef({4}));
  EXPECT_EQ(tree.GetDict("deep")->batch_size(), at::IntArrayRef({4, 3, 2}));
  ASSERT_TRUE(tree.SetBatchSize({4, 3}).ok());
  EXPECT_EQ(tree.GetDict("n")->batch_size(), at::IntArrayRef({4, 3}));
  // Too long for a leaf, or another size: nothing changes.
  ExpectRefused(tree.SetBatchSize({4, 3, 2}), "shape of a is [4, 3]");
  ExpectRefused(tree.SetBatchSize({5}), "[4, 3]");
  EXPECT_EQ(tree.GetDict("n")->batch_size(), at::IntArrayRef({4, 3}));
  // Shorter: the nodes below keep theirs.
  ASSERT_TRUE(tree.SetBatchSize({}).ok());
  EXPECT_EQ(tree.GetDict("n")->batch_size(), at::IntArrayRef({4, 3}));
  ExpectRefused(tree.SetBatchSize({3}), "is [4, 3");
}

// ---- Names.

TEST(NamesTest, AreInheritedAndCheckedAgainstEachOther) {
  TensorDict tree({4, 3});
  EXPECT_THAT(tree.names(), IsEmpty());
  ASSERT_TRUE(tree.Set("deep", TensorDict({4, 3, 2})).ok());
  ASSERT_TRUE(tree.SetNames({"time", ""}).ok());
  EXPECT_THAT(tree.names(), ElementsAre("time", ""));
  EXPECT_THAT(tree.GetDict("deep")->names(), ElementsAre("time", "", ""));
  ASSERT_TRUE(tree.Set({"n", "m", "a"}, at::ones({4, 3})).ok());
  EXPECT_THAT((tree.GetDict({"n", "m"})->names()), ElementsAre("time", ""));

  ExpectRefused(tree.SetNames({"time"}), "1 names for 2 batch dimensions");
  ExpectRefused(tree.SetNames({"x", "x"}), "name x");
  ASSERT_TRUE(tree.GetDict("deep")->SetNames({"time", "", "feature"}).ok());
  ExpectRefused(tree.SetNames({"time", "feature"}), "name feature");
  EXPECT_THAT(tree.names(), ElementsAre("time", ""));

  TensorDict other({4, 3, 5});
  ASSERT_TRUE(other.SetNames({"space", "", "x"}).ok());
  ExpectRefused(tree.Set("o", other), "name space, but above it the name time");
  ASSERT_TRUE(other.SetNames({"", "mine", "x"}).ok());
  ASSERT_TRUE(tree.Set("o", other).ok());
  EXPECT_THAT(other.names(), ElementsAre("time", "mine", "x"));

  ASSERT_TRUE(tree.SetBatchSize({4}).ok());
  EXPECT_THAT(tree.names(), ElementsAre("time"));
  ASSERT_TRUE(tree.SetNames({}).ok());
  EXPECT_THAT(tree.names(), IsEmpty());
  EXPECT_THAT(other.names(), ElementsAre("", "mine", "x"));
}

// ---- Device.

TEST(DeviceTest, TensorsAreCopiedAndNodesInherit) {
  TensorDict tree({}, kMeta);
  EXPECT_EQ(tree.device(), kMeta);
  ASSERT_TRUE(tree.Set({"n", "a"}, at::ones({2})).ok());
  EXPECT_TRUE(tree.Get({"n", "a"})->is_meta());
  EXPECT_EQ(tree.GetDict("n")->device(), kMeta);
  ASSERT_TRUE(tree.Set("text", "x").ok());
  ASSERT_TRUE(tree.Set("u", at::Tensor()).ok());

  TensorDict other;
  ASSERT_TRUE(other.Set({"x", "y"}, at::ones({1})).ok());
  ExpectRefused(tree.Set("o", other), "its leaf y lies on cpu");
  EXPECT_EQ(other.device(), std::nullopt);
  TensorDict fits;
  ASSERT_TRUE(fits.Set({"x", "y"}, at::empty({1}, at::TensorOptions().device(kMeta))).ok());
  ASSERT_TRUE(tree.Set("fits", fits).ok());
  EXPECT_EQ(fits.GetDict("x")->device(), kMeta);
  ExpectRefused(tree.Set("cpu", TensorDict({}, kCpu)), "its device is cpu, but above it meta");

  tree.ClearDevice();
  EXPECT_EQ(tree.device(), std::nullopt);
  EXPECT_EQ(fits.device(), std::nullopt);
  ASSERT_TRUE(tree.Set({"n", "b"}, at::ones({2})).ok());
  EXPECT_FALSE(tree.Get({"n", "b"})->is_meta());
  // Nobody knows how to copy values from nowhere.
  TensorDict cpu({}, kCpu);
  ExpectRefused(cpu.Set({"a", "b"}, at::empty({1}, at::TensorOptions().device(kMeta))),
                "cannot set a.b: it cannot be copied to cpu");
  EXPECT_TRUE(cpu.empty());
}

// ---- Lock.

TEST(LockTest, ForbidsChangesOfStructureOnly) {
  TensorDict tree;
  ASSERT_TRUE(tree.Set({"n", "m", "a"}, at::ones({2})).ok());
  TensorDict inner = *tree.GetDict({"n", "m"});
  tree.Lock();
  tree.Lock();
  EXPECT_TRUE(inner.is_locked());
  ExpectLocked(tree.Set({"n", "m", "a"}, at::ones({2})));
  ExpectLocked(tree.Set({"n", "x", "b"}, at::ones({2})));
  ExpectLocked(inner.Set("a", 1));
  ExpectLocked(inner.Erase("a"));
  ExpectLocked(inner.Clear());
  ExpectLocked(tree.SetBatchSize({2}));
  TensorDict above;
  ASSERT_TRUE(above.Set("t", tree).ok());
  ExpectLocked(above.SetBatchSize({2}));
  ExpectLocked(inner.Unlock());
  tree.Get({"n", "m", "a"})->fill_(3);
  EXPECT_EQ(tree.Get({"n", "m", "a"})->sum().item<double>(), 6);
  EXPECT_EQ(tree.num_leaves(), 1u);
  ASSERT_TRUE(tree.Unlock().ok());
  ASSERT_TRUE(tree.Unlock().ok());
  EXPECT_FALSE(inner.is_locked());
  EXPECT_TRUE(inner.Set("a", 1).ok());
}

TEST(LockTest, OfANodeInTwoTrees) {
  TensorDict shared;
  ASSERT_TRUE(shared.Set({"x", "y"}, at::ones({1})).ok());
  std::optional<TensorDict> a = TensorDict();
  TensorDict b;
  ASSERT_TRUE(a->Set("s", shared).ok());
  ASSERT_TRUE(a->Set("again", shared).ok());
  ASSERT_TRUE(b.Set("s", shared).ok());
  a->Lock();
  b.Lock();
  shared.Lock();
  ExpectLocked(shared.Unlock());
  ASSERT_TRUE(b.Unlock().ok());
  ExpectLocked(shared.Unlock());
  a.reset();  // a tree that is gone locks nothing
  EXPECT_TRUE(shared.is_locked());  // on its own
  ExpectLocked(shared.Set("z", 1));
  ASSERT_TRUE(shared.Unlock().ok());
  EXPECT_FALSE(shared.GetDict("x")->is_locked());
  // A locked node that dies inside a tree that dies.
  TensorDict inner;
  {
    TensorDict middle, outer;
    ASSERT_TRUE(middle.Set("i", inner).ok());
    middle.Lock();
    ASSERT_TRUE(outer.Set("m", std::move(middle)).ok());
  }
  EXPECT_FALSE(inner.is_locked());
}

}  // namespace
}  // namespace leafpack
