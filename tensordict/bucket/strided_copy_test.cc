#include "tensordict/bucket/strided_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace leafpack {
namespace {

// Byte offsets of all elements, in row-major order of the indices.
std::vector<int64_t> Offsets(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                             int64_t element) {
  std::vector<int64_t> offsets = {0};
  for (size_t k = 0; k < sizes.size(); ++k) {
    std::vector<int64_t> next;
    for (const int64_t o : offsets) {
      for (int64_t i = 0; i < sizes[k]; ++i) next.push_back(o + i * strides[k] * element);
    }
    offsets = std::move(next);
  }
  return offsets;
}

TEST(StridedCopyTest, AgainstOneElementAtATime) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 5000; ++round) {
    const size_t element = size_t{1} << (rng() % 5);
    // Strides of a contiguous tensor with gaps, permuted.
    std::vector<int64_t> sizes(rng() % 5);
    std::vector<int64_t> strides(sizes.size());
    for (int64_t& size : sizes) {
      size = static_cast<int64_t>(rng() % 8 == 0 ? rng() % 40 : 1 + rng() % 5);
      if (rng() % 40 == 0) size = 0;
    }
    std::vector<size_t> order(sizes.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::shuffle(order.begin(), order.end(), rng);
    int64_t stride = 1 + static_cast<int64_t>(rng() % 2);
    for (const size_t k : order) {
      strides[k] = stride;
      stride *= std::max<int64_t>(sizes[k], 1) + static_cast<int64_t>(rng() % 2);
    }
    const std::vector<int64_t> offsets = Offsets(sizes, strides, static_cast<int64_t>(element));
    std::vector<char> memory(static_cast<size_t>(stride) * element + 32);
    for (char& c : memory) c = static_cast<char>(rng());
    std::vector<char> row(offsets.size() * element + 32, 'x');
    std::vector<char> expected_row = row;
    for (size_t i = 0; i < offsets.size(); ++i) {
      std::memcpy(&expected_row[i * element], &memory[static_cast<size_t>(offsets[i])], element);
    }
    GatherStrided(memory.data(), sizes, strides, element, row.data());
    ASSERT_EQ(row, expected_row);

    for (char& c : row) c = static_cast<char>(rng());
    std::vector<char> expected = memory;
    for (size_t i = 0; i < offsets.size(); ++i) {
      std::memcpy(&expected[static_cast<size_t>(offsets[i])], &row[i * element], element);
    }
    ScatterStrided(row.data(), sizes, strides, element, memory.data());
    ASSERT_EQ(memory, expected);
  }
}

TEST(StridedCopyTest, ManyDimensions) {
  std::vector<int64_t> sizes(64, 1);
  std::vector<int64_t> strides(64, 1000);
  for (const size_t k : {size_t{3}, size_t{20}, size_t{40}, size_t{63}}) sizes[k] = 2;
  strides[3] = 1;
  strides[20] = 9;
  strides[40] = 3;
  strides[63] = 30;
  std::vector<char> memory(100);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i);
  std::vector<char> row(16);
  GatherStrided(memory.data(), sizes, strides, 1, row.data());
  const std::vector<int64_t> offsets = Offsets(sizes, strides, 1);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(row[i], memory[static_cast<size_t>(offsets[i])]);
}

}  // namespace
}  // namespace leafpack
