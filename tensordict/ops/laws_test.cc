// Laws that hold for every tree, tried on random ones: what one operation does another undoes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/ops/ops.h"
#include "tensordict/ops/ops_testutil.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

class LawsTest : public testing::Test {
 protected:
  int64_t Below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }

  std::vector<int64_t> Sizes(int64_t most_dims) {
    std::vector<int64_t> sizes;
    for (int64_t n = Below(most_dims + 1); n > 0; --n) sizes.push_back(Below(4));
    return sizes;
  }

  // Leaves have distinct values; some are permuted in memory, empty, or whole numbers.
  at::Tensor Leaf(const std::vector<int64_t>& batch) {
    std::vector<int64_t> sizes = batch;
    for (const int64_t size : Sizes(2)) sizes.push_back(size);
    int64_t numel = 1;
    for (const int64_t size : sizes) numel *= size;
    at::Tensor leaf = at::arange(next_, next_ + numel, Below(3) == 0 ? at::kLong : at::kFloat);
    next_ += numel;
    leaf = leaf.view(sizes);
    if (leaf.dim() > 1 && Below(2) == 0) leaf = leaf.transpose(0, 1).contiguous().transpose(0, 1);
    return leaf;
  }

  TensorDict Node(const std::vector<int64_t>& batch, int depth) {
    TensorDict tree(batch);
    for (int64_t n = 1 + Below(4); n > 0; --n) {
      const std::string key(1, static_cast<char>('a' + Below(6)));
      switch (Below(6)) {
        case 0:
          EXPECT_TRUE(tree.Set(key, NonTensor(Below(5))).ok());
          break;
        case 1:
        case 2:
          if (depth > 0) {
            std::vector<int64_t> longer = batch;
            if (Below(3) == 0) longer.push_back(Below(3) + 1);
            EXPECT_TRUE(tree.Set(key, Node(longer, depth - 1)).ok());
            break;
          }
          [[fallthrough]];
        default:
          EXPECT_TRUE(tree.Set(key, Leaf(batch)).ok());
      }
    }
    return tree;
  }

  // `body` gets many random trees; the seed is printed with a failure.
  template <typename Body>
  void ForRandomTrees(const Body& body) {
    const uint64_t seed = std::random_device()();
    for (uint64_t round = 0; round < 200 && !HasFailure(); ++round) {
      rng_.seed(seed + round);
      next_ = 1;
      std::vector<int64_t> batch = Sizes(3);
      const TensorDict tree = Node(batch, 2);
      SCOPED_TRACE(testing::Message() << "seed " << seed + round << "\n" << ToString(tree));
      body(tree);
    }
  }

  static void ExpectSame(const absl::StatusOr<TensorDict>& result, const TensorDict& tree) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(*Equal(*result, tree)) << ToString(*result);
  }

  std::mt19937_64 rng_;
  int64_t next_ = 1;
};

TEST_F(LawsTest, Keys) {
  ForRandomTrees([&](const TensorDict& tree) {
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict flat, FlattenKeys(tree));
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict back, UnflattenKeys(flat));
    // Empty nodes and the longer batch sizes of nodes do not survive; leaves and their paths do.
    EXPECT_EQ(*LayoutDigest(back), *LayoutDigest(tree));
    TensorDict updated(tree.batch_size());
    ASSERT_TRUE(Update(updated, tree).ok());
    ExpectSame(updated, tree);
    const std::vector<NestedKey> keys = Keys(tree, {.nested = true});
    ExpectSame(Select(tree, keys), tree);
    EXPECT_TRUE(Exclude(tree, Keys(tree))->empty());
    for (const NestedKey& key : keys) {
      TensorDict renamed = *Clone(tree, false);
      ASSERT_TRUE(RenameKey(renamed, key, "zz").ok());
      EXPECT_FALSE(renamed.Contains(key));
      ASSERT_TRUE(RenameKey(renamed, "zz", key).ok());
      ExpectSame(renamed, tree);
    }
  });
}

TEST_F(LawsTest, Shapes) {
  ForRandomTrees([&](const TensorDict& tree) {
    const std::vector<int64_t> batch = tree.batch_size().vec();
    ExpectSame(View(*Reshape(tree, {BatchNumel(tree)}), batch), tree);
    ExpectSame(Squeeze(*Unsqueeze(tree, 0), 0), tree);
    ExpectSame(Index(tree, {}), tree);
    ExpectSame(Index(*Index(tree, {NewAxis()}), {0}), tree);
    ExpectSame(Squeeze(*Expand(*Unsqueeze(tree, 0), [&] {
                 std::vector<int64_t> sizes = {1};
                 sizes.insert(sizes.end(), batch.begin(), batch.end());
                 return sizes;
               }()),
                       0),
               tree);
    for (int64_t dim = 0; dim < static_cast<int64_t>(batch.size()); ++dim) {
      const int64_t size = batch[static_cast<size_t>(dim)];
      ExpectSame(Transpose(*Transpose(tree, 0, dim), 0, dim), tree);
      ExpectSame(Cat(*Chunk(tree, 1 + Below(3), dim), dim), tree);
      ExpectSame(Cat(*Split(tree, 1 + Below(3), dim), dim), tree);
      if (size == 0) continue;
      LEAFPACK_ASSIGN_OR_FAIL(const std::vector<TensorDict> rows, Unbind(tree, dim));
      ExpectSame(Stack(rows, dim), tree);
      const int64_t at = Below(size);
      std::vector<IndexItem> index(static_cast<size_t>(dim), IndexItem(Slice()));
      index.push_back(at);
      ExpectSame(Index(tree, index), rows[static_cast<size_t>(at)]);
      index.back() = at::zeros({1}, at::kLong).add(at);
      ExpectSame(Index(tree, index), *Unsqueeze(rows[static_cast<size_t>(at)], dim));
    }
  });
}

TEST_F(LawsTest, ValuesAndCopies) {
  ForRandomTrees([&](const TensorDict& tree) {
    LEAFPACK_ASSIGN_OR_FAIL(TensorDict copy, Clone(tree));
    ExpectSame(copy, tree);
    ExpectSame(Sub(*Add(tree, tree), tree), tree);
    ExpectSame(Apply(UnaryOp::kNeg, *Apply(UnaryOp::kNeg, tree)), tree);
    ExpectSame(Apply(BinaryOp::kMul, tree, 1), tree);
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict packed, Consolidate(tree));
    ExpectSame(packed, tree);
    const Layout layout = *Layout::Of(Flatten(packed));
    EXPECT_EQ(layout.digest(), *LayoutDigest(tree));
    EXPECT_TRUE(NeedsNoPacking(layout));
    ASSERT_TRUE(ZeroInPlace(copy).ok());
    ASSERT_TRUE(UpdateInPlace(copy, tree).ok());
    ExpectSame(copy, tree);
    ASSERT_TRUE(ZeroInPlace(copy).ok());
    ASSERT_TRUE(Load(copy, tree).ok());
    ExpectSame(copy, tree);
    if (!tree.batch_size().empty() && tree.batch_size()[0] > 0) {
      ASSERT_TRUE(ZeroInPlace(copy).ok());
      ASSERT_TRUE(SetIndex(copy, {Ellipsis()}, tree).ok());
      ExpectSame(copy, tree);
    }
    ExpectSame(LazyStack::FromTree(LazyStack::Make({tree, tree})->AsTree())->Dense(),
               *Stack({tree, tree}));
  });
}

}  // namespace
}  // namespace leafpack
