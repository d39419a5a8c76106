#include "distributed/tree/tree_spec.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/byte_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"
#include "testing/matchers.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

Layout LayoutOf(const FlatTree& tree) {
  absl::StatusOr<Layout> layout = Layout::Of(tree);
  EXPECT_THAT(layout, IsOk());
  return layout.ok() ? *layout : Layout();
}

// Over the wire and back.
TreeSpec RoundTrip(const TreeSpec& spec) {
  absl::StatusOr<std::string> bytes = EncodeTreeSpec(spec);
  EXPECT_THAT(bytes, IsOk());
  if (!bytes.ok()) return {};
  absl::StatusOr<TreeSpec> back = DecodeTreeSpec(*bytes);
  EXPECT_THAT(back, IsOk());
  if (!back.ok()) return {};
  EXPECT_THAT(EncodeTreeSpec(*back), IsOkAndHolds(*bytes));
  EXPECT_EQ(back->total_bytes(), spec.total_bytes());
  return *back;
}

// What a receiver without a tree makes of `tree`.
TensorDict Rebuild(const TensorDict& tree) {
  absl::StatusOr<TreeSpec> spec = DescribeTree(tree);
  EXPECT_THAT(spec, IsOk());
  if (!spec.ok()) return {};
  const TreeSpec back = RoundTrip(*spec);
  absl::StatusOr<FlatTree> fresh = AllocateLeaves(back);
  EXPECT_THAT(fresh, IsOk());
  if (!fresh.ok()) return {};
  EXPECT_EQ(LayoutOf(*fresh).digest(), LayoutOf(Flatten(tree)).digest());
  absl::StatusOr<TensorDict> built = BuildTensorDict(back, fresh->leaves);
  EXPECT_THAT(built, IsOk());
  return built.ok() ? *built : TensorDict();
}

TensorDict SomeTree() {
  TensorDict tree({2});
  EXPECT_THAT(tree.Set({"b", 1, "x"}, at::zeros({2, 3}, at::kFloat)), IsOk());
  EXPECT_THAT(tree.Set({"b", 0}, at::zeros({2}, at::kLong)), IsOk());
  EXPECT_THAT(tree.Set({"a.b", ""}, at::zeros({2, 0, 5}, at::kBFloat16)), IsOk());
  EXPECT_THAT(tree.Set("none", at::Tensor()), IsOk());
  EXPECT_THAT(tree.Set("empty", TensorDict({2, 7})), IsOk());
  EXPECT_THAT(tree.Set({"empty", "below"}, TensorDict({2, 7, 1})), IsOk());
  return tree;
}

TEST(TreeSpecTest, AReceiverRebuildsNodesAndLeaves) {
  const TensorDict tree = SomeTree();
  const TensorDict built = Rebuild(tree);
  EXPECT_EQ(built.batch_size(), at::IntArrayRef({2}));
  absl::StatusOr<TensorDict> below = built.GetDict({"empty", "below"});
  ASSERT_THAT(below, IsOk());
  EXPECT_EQ(below->batch_size(), at::IntArrayRef({2, 7, 1}));
  EXPECT_TRUE(below->empty());
  ASSERT_THAT(built.Get("none"), IsOk());
  EXPECT_FALSE(built.Get("none")->defined());
  EXPECT_EQ(built.Get({"b", 1, "x"})->sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(built.Get({"a.b", ""})->scalar_type(), at::kBFloat16);
  EXPECT_EQ(built.num_leaves(), tree.num_leaves());
}

TEST(TreeSpecTest, ValuesThatAreNoTensorsAndNamesOfDimensions) {
  TensorDict tree({2, 3});
  ASSERT_THAT(tree.SetNames({"time", "batch"}), IsOk());
  const NonTensor list = *NonTensor::List({NonTensor(), NonTensor(-1), *NonTensor::List({true, "x"})});
  ASSERT_THAT(tree.Set({"a", "text"}, NonTensor("resnet")), IsOk());
  ASSERT_THAT(tree.Set({"a", "bytes"}, NonTensor::Bytes(std::string("\0\xff", 2))), IsOk());
  ASSERT_THAT(tree.Set("step", NonTensor(int64_t{1} << 60)), IsOk());
  ASSERT_THAT(tree.Set("rate", NonTensor(-0.0)), IsOk());
  ASSERT_THAT(tree.Set("list", list), IsOk());
  ASSERT_THAT(tree.Set("w", at::zeros({2, 3, 1})), IsOk());
  const TensorDict built = Rebuild(tree);
  EXPECT_THAT(built.names(), ::testing::ElementsAre("time", "batch"));
  EXPECT_THAT(built.GetNonTensor({"a", "text"}), IsOkAndHolds(NonTensor("resnet")));
  EXPECT_THAT(built.GetNonTensor("rate"), IsOkAndHolds(NonTensor(-0.0)));
  EXPECT_THAT(built.GetNonTensor("list"), IsOkAndHolds(list));
  EXPECT_EQ(Layout::Of(Flatten(built))->digest(), Layout::Of(Flatten(tree))->digest());
}

TEST(TreeSpecTest, EmptyTrees) {
  const TensorDict built = Rebuild(TensorDict({4, 5}));
  EXPECT_TRUE(built.empty());
  EXPECT_EQ(built.batch_size(), at::IntArrayRef({4, 5}));
  absl::StatusOr<TreeSpec> flat = DescribeTree(FlatTree(), Layout());
  ASSERT_THAT(flat, IsOk());
  EXPECT_EQ(RoundTrip(*flat).nodes.size(), 1u);
}

TEST(TreeSpecTest, ATreeThatIsOneLeaf) {
  absl::StatusOr<FlatTree> one = MakeFlatTree({{NestedKey(), at::zeros({3}, at::kInt)}});
  ASSERT_THAT(one, IsOk());
  absl::StatusOr<TreeSpec> spec = DescribeTree(*one, LayoutOf(*one));
  ASSERT_THAT(spec, IsOk());
  const TreeSpec back = RoundTrip(*spec);
  EXPECT_THAT(back.nodes, IsEmpty());
  absl::StatusOr<FlatTree> fresh = AllocateLeaves(back);
  ASSERT_THAT(fresh, IsOk());
  EXPECT_EQ(fresh->leaves.at(0).sizes(), at::IntArrayRef({3}));
  EXPECT_TRUE((*fresh->paths)[0].empty());
  EXPECT_THAT(BuildTensorDict(back, fresh->leaves), StatusIs(Code::kInvalidArgument));
}

TEST(TreeSpecTest, NodesOfPlainContainers) {
  absl::StatusOr<FlatTree> flat = MakeFlatTree({{{"a", 0}, at::zeros({1})},
                                                {{"a", 1, "x"}, at::zeros({2})},
                                                {{"b", "c", "d"}, at::zeros({3})}});
  ASSERT_THAT(flat, IsOk());
  absl::StatusOr<TreeSpec> spec = DescribeTree(*flat, LayoutOf(*flat));
  ASSERT_THAT(spec, IsOk());
  std::vector<std::string> nodes;
  for (const TreeSpec::Node& node : spec->nodes) {
    nodes.push_back(absl::StrCat(node.path.ToString(), " ", NodeKindName(node.kind)));
  }
  EXPECT_THAT(nodes, ::testing::ElementsAre(". dict", "a list", "a[1] dict", "b dict", "b.c dict"));
  spec->nodes[1].kind = NodeKind::kTuple;
  spec->nodes[1].note = std::string("any\0bytes", 9);
  const TreeSpec back = RoundTrip(*spec);
  EXPECT_EQ(back.nodes[1].kind, NodeKind::kTuple);
  EXPECT_EQ(back.nodes[1].note, std::string("any\0bytes", 9));
}

TEST(TreeSpecTest, LeavesThatShareMemoryShareItAgain) {
  const at::Tensor whole = at::zeros({4, 10});
  TensorDict tree;
  const at::Tensor w = at::zeros({3, 4});
  ASSERT_THAT(tree.Set("a", w), IsOk());
  ASSERT_THAT(tree.Set("b", w.t()), IsOk());
  ASSERT_THAT(tree.Set("c", w.view({12})), IsOk());
  // With gaps in memory, and the first of them transposed.
  ASSERT_THAT(tree.Set("d", whole.narrow(1, 0, 6).t()), IsOk());
  ASSERT_THAT(tree.Set("e", whole.narrow(1, 0, 6)), IsOk());
  ASSERT_THAT(tree.Set("f", whole.narrow(1, 0, 6).view({4, 2, 3})), IsOk());
  ASSERT_THAT(tree.Set("g", whole.narrow(1, 6, 4)), IsOk());
  const TensorDict built = Rebuild(tree);
  built.Get("c")->copy_(at::arange(12));
  EXPECT_THAT(*built.Get("a"), BitEq(at::arange(12).to(at::kFloat).view({3, 4})));
  EXPECT_THAT(*built.Get("b"), BitEq(at::arange(12).to(at::kFloat).view({3, 4}).t().contiguous()));
  const at::Tensor values = at::arange(24).to(at::kFloat);
  built.Get("g")->fill_(-1);
  built.Get("f")->copy_(values.view({4, 2, 3}));
  EXPECT_THAT(built.Get("e")->contiguous(), BitEq(values.view({4, 6})));
  EXPECT_THAT(built.Get("d")->contiguous(), BitEq(values.view({4, 6}).t().contiguous()));
  EXPECT_EQ(DescribeTree(built)->total_bytes(), (12 + 24 + 16) * 4);
}

TEST(TreeSpecTest, SparseLeaves) {
  const at::Tensor indices = at::zeros({2, 3}, at::kLong);
  const at::Tensor sparse =
      at::sparse_coo_tensor(indices, at::zeros({3, 5}, at::kDouble), {4, 4, 5});
  TensorDict tree;
  ASSERT_THAT(tree.Set("s", sparse), IsOk());
  ASSERT_THAT(tree.Set("t", sparse), IsOk());
  ASSERT_THAT(tree.Set("u", sparse.coalesce()), IsOk());
  const TensorDict built = Rebuild(tree);
  EXPECT_EQ(built.Get("s")->_nnz(), 3);
  EXPECT_FALSE(built.Get("s")->is_coalesced());
  EXPECT_TRUE(built.Get("t")->is_same(*built.Get("s")));
  EXPECT_TRUE(built.Get("u")->is_coalesced());
  EXPECT_EQ(built.Get("u")->_nnz(), 1);
  EXPECT_EQ(DescribeTree(built)->total_bytes(), 3 * (2 * 8 + 5 * 8) + 1 * (2 * 8 + 5 * 8));
}

TEST(TreeSpecTest, EveryDtype) {
  for (int code = 0; code < 256; ++code) {
    const at::ScalarType dtype = DtypeOfCode(static_cast<uint8_t>(code));
    if (dtype == at::ScalarType::Undefined) continue;
    TensorDict tree;
    ASSERT_THAT(tree.Set("x", at::zeros({2}, at::kByte).to(at::kFloat).to(dtype)), IsOk());
    EXPECT_EQ(Rebuild(tree).Get("x")->scalar_type(), dtype);
  }
}

TEST(TreeSpecTest, DeepTrees) {
  NestedKey path;
  for (int i = 0; i < kMaxTreeDepth; ++i) path.push_back("k");
  TensorDict tree;
  ASSERT_THAT(tree.Set(path, at::zeros({1})), IsOk());
  EXPECT_THAT(Rebuild(tree).Get(path), IsOk());
  // One level more than a tree can have.
  std::string deep("\1", 1);
  for (int i = 0; i <= kMaxTreeDepth + 1; ++i) {
    ByteWriter node;
    node.U8(0);
    if (i > 0) {
      node.U8(1);
      node.String("k");
    }
    node.U8(0);
    node.U8(0);
    node.U8(0);
    node.String("");
    node.U32(i <= kMaxTreeDepth ? 1 : 0);
    deep += std::move(node).Take();
  }
  EXPECT_THAT(DecodeTreeSpec(deep), StatusIs(Code::kInvalidArgument, HasSubstr("too deep")));
}

// ---- What must be refused.

TreeSpec OneLeaf(std::vector<int64_t> sizes, at::ScalarType dtype = at::kFloat) {
  TensorDict tree;
  EXPECT_THAT(tree.Set("x", at::zeros({1}, dtype)), IsOk());
  TreeSpec spec = *DescribeTree(tree);
  spec.leaves[0].sizes = std::move(sizes);
  return spec;
}

// The description with the sizes of its only leaf (two dimensions) replaced on the wire.
std::string WithSizes(int64_t a, int64_t b) {
  std::string bytes = *EncodeTreeSpec(OneLeaf({7, 9}));
  ByteWriter old_sizes, new_sizes;
  old_sizes.I64(7);
  old_sizes.I64(9);
  new_sizes.I64(a);
  new_sizes.I64(b);
  const std::string old_bytes = std::move(old_sizes).Take();
  const size_t at = bytes.find(old_bytes);
  EXPECT_NE(at, std::string::npos);
  return bytes.replace(at, old_bytes.size(), std::move(new_sizes).Take());
}

TEST(TreeSpecTest, SizesThatCannotBe) {
  EXPECT_THAT(DecodeTreeSpec(WithSizes(8, 8)), IsOk());
  const int64_t huge = int64_t{1} << 62;
  for (const auto& [a, b] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 4}, {4, -1}, {huge, 4}, {huge, 1}, {int64_t{1} << 31, int64_t{1} << 31},
           {0, huge}, {INT64_MAX, 0}, {INT64_MIN, 1}}) {
    SCOPED_TRACE(absl::StrCat(a, " x ", b));
    const auto decoded = DecodeTreeSpec(WithSizes(a, b));
    EXPECT_THAT(decoded, StatusIs(Code::kInvalidArgument, HasSubstr("at x")));
    EXPECT_THAT(EncodeTreeSpec(OneLeaf({a, b})), StatusIs(Code::kInvalidArgument));
  }
}

TEST(TreeSpecTest, LimitsAreKept) {
  const std::string bytes = WithSizes(1 << 20, 1 << 10);  // 4 GiB
  EXPECT_THAT(DecodeTreeSpec(bytes), IsOk());
  EXPECT_THAT(DecodeTreeSpec(bytes, {.max_leaf_bytes = int64_t{4} << 30}), IsOk());
  EXPECT_THAT(DecodeTreeSpec(bytes, {.max_leaf_bytes = (int64_t{4} << 30) - 1}),
              StatusIs(Code::kInvalidArgument, HasSubstr("at x")));
  EXPECT_THAT(DecodeTreeSpec(bytes, {.max_bytes = bytes.size()}), IsOk());
  EXPECT_THAT(DecodeTreeSpec(bytes, {.max_bytes = bytes.size() - 1}),
              StatusIs(Code::kInvalidArgument, HasSubstr("limit")));
  EXPECT_THAT(DecodeTreeSpec(bytes, {.max_path_components = 0}),
              StatusIs(Code::kInvalidArgument));
  EXPECT_THAT(EncodeTreeSpec(OneLeaf({1}), {.max_bytes = 10}), StatusIs(Code::kInvalidArgument));
  // More than there can be: an error of its own, not the end of the process.
  TreeSpec vast = OneLeaf({int64_t{1} << 50});
  EXPECT_THAT(AllocateLeaves(vast), StatusIs(Code::kResourceExhausted, HasSubstr("leaf x")));
}

TEST(TreeSpecTest, TheSumOfLeavesDoesNotOverflow) {
  TensorDict tree;
  for (int i = 0; i < 5; ++i) ASSERT_THAT(tree.Set(KeyComponent(i), at::zeros({1})), IsOk());
  TreeSpec spec = *DescribeTree(tree);
  for (TreeSpec::Leaf& leaf : spec.leaves) leaf.sizes = {int64_t{1} << 59};
  EXPECT_THAT(EncodeTreeSpec(spec), StatusIs(Code::kInvalidArgument, HasSubstr("[3]")));
}

TEST(TreeSpecTest, AliasesThatLieAreRefused) {
  const at::Tensor w = at::zeros({3, 4});
  TensorDict tree;
  ASSERT_THAT(tree.Set("a", w), IsOk());
  ASSERT_THAT(tree.Set("b", w.t()), IsOk());
  const TreeSpec good = *DescribeTree(tree);
  ASSERT_EQ(good.leaves[1].alias_of, 0);
  const auto refused = [&](auto change) {
    TreeSpec bad = good;
    change(bad.leaves[0], bad.leaves[1]);
    EXPECT_THAT(EncodeTreeSpec(bad), StatusIs(Code::kInvalidArgument));
  };
  using Leaf = TreeSpec::Leaf;
  refused([](Leaf&, Leaf& b) { b.alias_of = 1; });
  refused([](Leaf&, Leaf& b) { b.alias_of = 7; });
  refused([](Leaf&, Leaf& b) { b.alias_of = -2; });
  refused([](Leaf&, Leaf& b) { b.dtype = at::kInt; });
  refused([](Leaf&, Leaf& b) { b.strides = {1, 5}; });
  refused([](Leaf&, Leaf& b) { b.strides = {1, INT64_MAX}; });
  refused([](Leaf&, Leaf& b) { b.strides = {-1, 4}; });
  refused([](Leaf&, Leaf& b) { b.strides = {1}; });
  refused([](Leaf&, Leaf& b) { b.sizes = {4, 4}; });
  refused([](Leaf& a, Leaf&) { a.strides = {4, 1, 1}; });
  refused([](Leaf& a, Leaf&) { a.strides = {1, 1}; });
  refused([](Leaf& a, Leaf&) { a.sizes = {100}; });
}

TEST(TreeSpecTest, DescriptionsThatContradictThemselves) {
  const TreeSpec good = *DescribeTree(SomeTree());
  const auto refused = [&](auto change) {
    TreeSpec bad = good;
    change(bad);
    EXPECT_THAT(EncodeTreeSpec(bad), StatusIs(Code::kInvalidArgument));
  };
  refused([](TreeSpec& s) { s.nodes.clear(); });
  refused([](TreeSpec& s) { s.nodes.erase(s.nodes.begin()); });
  refused([](TreeSpec& s) { s.nodes.erase(s.nodes.begin() + 1); });
  refused([](TreeSpec& s) { std::swap(s.nodes[1], s.nodes[2]); });
  refused([](TreeSpec& s) { s.nodes.push_back(s.nodes.back()); });
  refused([](TreeSpec& s) { s.leaves.pop_back(); });
  refused([](TreeSpec& s) { s.nodes[0].batch_size = {3}; });
  refused([](TreeSpec& s) { s.nodes[0].batch_size = {-2}; });
  refused([](TreeSpec& s) { s.nodes[0].kind = static_cast<NodeKind>(77); });
  refused([](TreeSpec& s) { s.nodes[0].names = {"a", "b"}; });
  refused([](TreeSpec& s) { s.nodes[0].note = std::string(kMaxNoteBytes + 1, 'x'); });
  refused([](TreeSpec& s) { s.leaves[0].kind = static_cast<LeafKind>(9); });
  refused([](TreeSpec& s) { s.leaves[0].sizes = std::vector<int64_t>(65, 1); });
}

TEST(TreeSpecTest, BuildingNeedsTheRightLeaves) {
  const TreeSpec spec = *DescribeTree(SomeTree());
  const FlatTree fresh = *AllocateLeaves(spec);
  std::vector<at::Tensor> leaves = fresh.leaves;
  leaves.pop_back();
  EXPECT_THAT(BuildTensorDict(spec, leaves), StatusIs(Code::kInvalidArgument));
  leaves = fresh.leaves;
  leaves[0] = at::zeros({3});
  EXPECT_THAT(BuildTensorDict(spec, leaves),
              StatusIs(Code::kInvalidArgument, HasSubstr("\"a.b\"")));
}

TEST(TreeSpecTest, HostileBytes) {
  TensorDict tree = SomeTree();
  const at::Tensor w = at::zeros({3, 4});
  TensorDict shared;
  ASSERT_THAT(shared.Set("p", w.t()), IsOk());
  ASSERT_THAT(shared.Set("q", w), IsOk());
  ASSERT_THAT(shared.Set("s", at::sparse_coo_tensor({2, 3}, at::kFloat)), IsOk());
  TensorDict root;
  ASSERT_THAT(root.Set("one", tree), IsOk());
  ASSERT_THAT(root.Set("two", shared), IsOk());
  ASSERT_THAT(root.Set("list", *NonTensor::List({NonTensor("a"), NonTensor(2.5), NonTensor(true)})),
              IsOk());
  const std::string good = *EncodeTreeSpec(*DescribeTree(root));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(DecodeTreeSpec(good.substr(0, size)), StatusIs(Code::kInvalidArgument)) << size;
  }
  EXPECT_THAT(DecodeTreeSpec(good + "x"), StatusIs(Code::kInvalidArgument));
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int accepted = 0;
  const TreeSpecLimits limits = {.max_leaf_bytes = 1 << 20};
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    if (round % 4 == 0) {
      bytes.resize(below(200));
      for (char& c : bytes) c = static_cast<char>(random() % (round % 8 == 0 ? 256 : 3));
    } else {
      for (size_t n = below(4) + 1; n > 0; --n) {
        const size_t at = below(bytes.size());
        if (below(3) == 0) {
          bytes.replace(at, below(9), std::string(below(9), static_cast<char>(random())));
        } else {
          bytes[at] = static_cast<char>(below(2) == 0 ? 0xff : random());
        }
        if (bytes.empty()) bytes = "\1";
      }
    }
    const absl::StatusOr<TreeSpec> spec = DecodeTreeSpec(bytes, limits);
    if (!spec.ok()) {
      EXPECT_EQ(spec.status().code(), Code::kInvalidArgument);
      continue;
    }
    // What is accepted can be used, and means only one thing.
    ++accepted;
    EXPECT_THAT(EncodeTreeSpec(*spec, limits), IsOkAndHolds(bytes));
    absl::StatusOr<FlatTree> fresh = AllocateLeaves(*spec);
    ASSERT_THAT(fresh, IsOk());
    for (const at::Tensor& leaf : fresh->leaves) {
      if (leaf.defined() && !leaf.is_sparse()) leaf.zero_();
    }
    if (spec->nodes.empty()) continue;
    EXPECT_THAT(BuildTensorDict(*spec, fresh->leaves), IsOk());
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace leafpack
