// Random trees of random views: every bucketing gives what a plain loop in one process gives, and the
// memory around the leaves stays as it was. The seed of a failure is printed.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack {
namespace {

using ::leafpack::testing::WithGroup;

// A tree over a few storages. The same seed gives the same shapes and views on every rank; `rank`
// changes the values.
struct RandomTree {
  TensorDict tree;
  std::vector<at::Tensor> storages;  // flat
  std::vector<at::Tensor> leaves;    // views of them, disjoint but for aliases
  std::vector<NestedKey> paths;
};

at::Tensor Permuted(const at::Tensor& t, std::mt19937& rng) {
  std::vector<int64_t> order(static_cast<size_t>(t.dim()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::shuffle(order.begin(), order.end(), rng);
  return t.permute(order);
}

RandomTree Make(uint32_t seed, int rank) {
  std::mt19937 rng(seed);
  const auto below = [&rng](int64_t n) {
    return static_cast<int64_t>(rng() % static_cast<uint64_t>(n));
  };
  const at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kLong, at::kInt, at::kHalf};
  RandomTree random;
  const int storages = 1 + static_cast<int>(below(5));
  for (int s = 0; s < storages; ++s) {
    const at::ScalarType dtype = dtypes[below(5)];
    const int64_t rows = 1 + below(6);
    const int64_t columns = 2 + 2 * below(below(4) == 0 ? 4000 : 30);
    at::Tensor storage = at::arange(rows * columns, at::TensorOptions().dtype(at::kDouble))
                             .remainder(13)
                             .add(rank)
                             .to(dtype);
    random.storages.push_back(storage);
    const at::Tensor matrix = storage.view({rows, columns});
    std::vector<at::Tensor> pieces;
    switch (below(5)) {
      case 0: pieces = {matrix}; break;
      case 1: pieces = {matrix.slice(1, 0, columns / 2), matrix.slice(1, columns / 2, columns)}; break;
      case 2: pieces = {matrix.slice(1, 0, columns, 2)}; break;                    // gaps
      case 3: pieces = {storage.slice(0, 1, rows * columns)}; break;               // odd offset
      case 4:                                                                      // neighbours
        for (int64_t r = 0; r < rows; ++r) pieces.push_back(matrix.select(0, r));
        break;
    }
    for (at::Tensor piece : pieces) {
      if (below(3) == 0) piece = Permuted(piece, rng);
      const auto add = [&](const at::Tensor& leaf) {
        NestedKey path;
        for (int64_t depth = below(3); depth >= 0; --depth) {
          path.push_back(absl::StrCat("n", below(4)));
        }
        path.push_back(static_cast<int64_t>(random.leaves.size()));
        ASSERT_TRUE(random.tree.Set(path, leaf).ok());
        random.leaves.push_back(leaf);
        random.paths.push_back(path);
      };
      add(piece);
      if (below(4) == 0) add(piece.dim() == 2 ? piece.t() : piece.unsqueeze(0));  // tied
    }
  }
  return random;
}

TEST(AllReduceRandomTest, EveryBucketingGivesWhatAPlainLoopGives) {
  constexpr int kTrees = 60;
  const uint32_t first = std::random_device()() % 1'000'000u;
  for (const int ranks : {2, 3}) {
    WithGroup(ranks, [&](const Group& group) {
      const int rank = group.rank().value();
      for (uint32_t seed = first; seed < first + kTrees; ++seed) {
        for (const Bucketing bucketing :
             {Bucketing::Auto(), Bucketing::PerLeaf(), Bucketing::MaxBytes(1 + seed % 5000)}) {
          SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", bucketing.ToString()));
          RandomTree random = Make(seed, rank);
          std::vector<at::Tensor> expected(random.storages.size());
          for (int r = 0; r < ranks; ++r) {
            const RandomTree other = Make(seed, r);
            for (size_t s = 0; s < other.storages.size(); ++s) {
              expected[s] = r == 0 ? other.storages[s].clone() : expected[s].add(other.storages[s]);
            }
          }
          // What no leaf covers keeps this rank's value.
          std::vector<at::Tensor> before;
          for (const at::Tensor& storage : random.storages) before.push_back(storage.clone());
          RandomTree marks = Make(seed, rank);
          for (at::Tensor& storage : marks.storages) storage.zero_();
          for (at::Tensor& leaf : marks.leaves) leaf.fill_(1);
          const absl::Status status = AllReduce(random.tree, group, {.bucketing = bucketing});
          ASSERT_TRUE(status.ok()) << status;
          for (size_t s = 0; s < before.size(); ++s) {
            const at::Tensor covered = marks.storages[s].to(at::kBool);
            EXPECT_TRUE(at::equal(random.storages[s],
                                  at::where(covered, expected[s], before[s])))
                << "storage " << s;
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace leafpack
