#include "distributed/backends/shm/view_bytes.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "gtest/gtest.h"

namespace leafpack::shm {
namespace {

struct Leaf {
  LeafView view;
  std::vector<char> memory;
  std::vector<int64_t> offsets;  // of each byte of the run in `memory`
};

// A leaf of random shape whose dimensions lie in random order in memory, with gaps.
Leaf MakeLeaf(std::mt19937& random, at::ScalarType dtype) {
  Leaf leaf;
  const int64_t element = static_cast<int64_t>(c10::elementSize(dtype));
  const size_t dims = random() % 5;
  std::vector<size_t> order;
  for (size_t d = 0; d < dims; ++d) {
    leaf.view.sizes.push_back(static_cast<int64_t>(random() % 7 == 0 ? random() % 2 : 1 + random() % 5));
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(random() % (d + 1)), d);
  }
  if (random() % 3 == 0) std::sort(order.begin(), order.end(), std::greater<>());
  leaf.view.strides.resize(dims);
  int64_t span = 1;
  for (const size_t d : order) {
    leaf.view.strides[d] = span;
    span *= std::max<int64_t>(leaf.view.sizes[d], 1);
    if (random() % 2 == 0) span += static_cast<int64_t>(random() % 3);
  }
  leaf.memory.resize(static_cast<size_t>(span * element + element));
  for (char& c : leaf.memory) c = static_cast<char>(random());
  int64_t count = 1;
  for (const int64_t size : leaf.view.sizes) count *= size;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = dims; d-- > 0;) {
      at += rest % leaf.view.sizes[d] * leaf.view.strides[d];
      rest /= leaf.view.sizes[d];
    }
    for (int64_t b = 0; b < element; ++b) leaf.offsets.push_back(at * element + b);
  }
  leaf.view.dtype = dtype;
  leaf.view.data = leaf.memory.data();
  return leaf;
}

TEST(ViewBytesTest, AnyPartGoesOutAndInAsTheElementsStand) {
  constexpr at::ScalarType kDtypes[] = {at::kByte, at::kHalf, at::kFloat, at::kDouble,
                                        at::kComplexDouble};
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<Leaf> leaves;
    for (size_t i = random() % 5; i-- > 0;) {
      leaves.push_back(MakeLeaf(random, kDtypes[random() % std::size(kDtypes)]));
    }
    std::vector<LeafView> views;
    std::vector<char> expected;
    for (Leaf& leaf : leaves) {
      leaf.view.data = leaf.memory.data();
      views.push_back(leaf.view);
      for (const int64_t at : leaf.offsets) expected.push_back(leaf.memory[static_cast<size_t>(at)]);
    }
    absl::StatusOr<ViewBytes> bytes = ViewBytes::Of(views);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const int64_t size = static_cast<int64_t>(expected.size());
    ASSERT_EQ(bytes->size(), size);
    for (int part = 0; part < 10 && size > 0; ++part) {
      const int64_t begin = static_cast<int64_t>(random()) % size;
      const int64_t count = static_cast<int64_t>(random()) % (size - begin + 1);
      std::vector<char> got(static_cast<size_t>(count));
      bytes->Gather(begin, count, got.data());
      ASSERT_EQ(std::memcmp(got.data(), expected.data() + begin, got.size()), 0)
          << begin << " + " << count;

      // Back with other values: exactly these bytes change.
      std::vector<std::vector<char>> memories;
      for (const Leaf& leaf : leaves) memories.push_back(leaf.memory);
      for (char& c : got) c = static_cast<char>(c + 1);
      bytes->Scatter(got.data(), begin, count);
      int64_t at = 0;
      for (size_t i = 0; i < leaves.size(); ++i) {
        for (const int64_t offset : leaves[i].offsets) {
          if (at >= begin && at < begin + count) {
            memories[i][static_cast<size_t>(offset)] = got[static_cast<size_t>(at - begin)];
            expected[static_cast<size_t>(at)] = got[static_cast<size_t>(at - begin)];
          }
          ++at;
        }
        ASSERT_EQ(memories[i], leaves[i].memory) << "leaf " << i;
      }
    }
  }
}

TEST(ViewBytesTest, APieceIsWhereTheLeafStandsInOneBlock) {
  std::vector<float> memory(100);
  LeafView whole, strided;
  whole.data = memory.data();
  whole.dtype = strided.dtype = at::kFloat;
  whole.sizes = {2, 1, 5};
  whole.strides = {5, 77, 1};
  strided.data = memory.data() + 20;
  strided.sizes = {10};
  strided.strides = {2};
  const LeafView views[] = {whole, strided};
  const absl::StatusOr<ViewBytes> bytes = ViewBytes::Of(views);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->PieceAt(8, 100).data, reinterpret_cast<char*>(memory.data()) + 8);
  EXPECT_EQ(bytes->PieceAt(8, 100).bytes, 32);
  EXPECT_EQ(bytes->PieceAt(8, 10).bytes, 10);
  EXPECT_EQ(bytes->PieceAt(44, 100).data, nullptr);
  EXPECT_EQ(bytes->PieceAt(44, 100).bytes, 36);
}

TEST(ViewBytesTest, WhatCannotBeMovedIsRefused) {
  LeafView view;
  view.dtype = at::kFloat;
  view.sizes = {2};
  EXPECT_EQ(ViewBytes::Of({&view, 1}).status().code(), absl::StatusCode::kInternal);
  view.strides = {-1};
  EXPECT_EQ(ViewBytes::Of({&view, 1}).status().code(), absl::StatusCode::kInternal);
  view.strides = {1};
  view.device = c10::Device(c10::kCUDA, 0);
  EXPECT_EQ(ViewBytes::Of({&view, 1}).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace leafpack::shm
