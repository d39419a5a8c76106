// Ranges of views against a copy element by element.
#include "distributed/messages/view_sequence.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace leafpack::messages {
namespace {

using at::ScalarType;

// Memory that views lie in, byte i of it i * 7 + 1.
std::vector<char> Memory(size_t bytes) {
  std::vector<char> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(i * 7 + 1);
  return memory;
}

LeafView View(char* data, ScalarType dtype, std::vector<int64_t> sizes,
              std::vector<int64_t> strides) {
  LeafView view;
  view.data = data;
  view.dtype = dtype;
  view.sizes.assign(sizes.begin(), sizes.end());
  view.strides.assign(strides.begin(), strides.end());
  return view;
}

// The addresses of the elements of `views`, in order.
std::vector<char*> Addresses(const std::vector<LeafView>& views) {
  std::vector<char*> addresses;
  for (const LeafView& view : views) {
    const auto element = static_cast<int64_t>(c10::elementSize(view.dtype));
    for (int64_t i = 0; i < ElementCount(view); ++i) {
      int64_t rest = i;
      char* at = static_cast<char*>(view.data);
      for (size_t d = view.sizes.size(); d-- > 0;) {
        at += rest % view.sizes[d] * view.strides[d] * element;
        rest /= view.sizes[d];
      }
      addresses.push_back(at);
    }
  }
  return addresses;
}

class Ranges : public ::testing::TestWithParam<ScalarType> {};
INSTANTIATE_TEST_SUITE_P(ElementSizes, Ranges,
                         ::testing::Values(ScalarType::Byte, ScalarType::Half, ScalarType::Float,
                                           ScalarType::Double, ScalarType::ComplexDouble));

TEST_P(Ranges, AreCopiedOutAndInAndNothingElseIsWritten) {
  const ScalarType dtype = GetParam();
  const size_t element = c10::elementSize(dtype);
  std::vector<char> memory = Memory(400 * element);
  const auto at = [&](size_t i) { return memory.data() + i * element; };
  const std::vector<LeafView> views = {
      View(at(0), dtype, {5}, {1}),
      View(at(5), dtype, {2, 3}, {3, 1}),           // back to back with the first
      View(at(20), dtype, {3, 4}, {10, 1}),         // rows with gaps
      View(at(60), dtype, {4, 5}, {1, 4}),          // transposed
      View(at(100), dtype, {}, {}),                 // one element
      View(at(110), dtype, {2, 1, 3, 2}, {30, 7, 4, 2}),
      View(at(200), dtype, {0, 3}, {3, 1}),         // none
      View(at(210), dtype, {6, 1}, {3, 1}),
      View(at(300), dtype, {2, 2, 2}, {4, 2, 1}),
  };
  const std::vector<char*> addresses = Addresses(views);
  const ViewSequence sequence(views);
  ASSERT_EQ(sequence.segments().size(), 1u);
  const Segment& segment = sequence.segments()[0];
  EXPECT_EQ(segment.dtype, dtype);
  EXPECT_EQ(segment.element_bytes, static_cast<int64_t>(element));
  const auto numel = static_cast<int64_t>(addresses.size());
  ASSERT_EQ(segment.numel, numel);
  const std::vector<char> before = memory;
  for (int64_t begin = 0; begin < numel; ++begin) {
    for (int64_t count = 1; begin + count <= numel; ++count) {
      SCOPED_TRACE(absl::StrCat("elements [", begin, ", ", begin + count, ")"));
      const size_t bytes = static_cast<size_t>(count) * element;
      std::vector<char> row(bytes);
      std::vector<char> want(bytes);
      bool in_a_row = true;
      for (int64_t i = 0; i < count; ++i) {
        const char* from = addresses[static_cast<size_t>(begin + i)];
        std::memcpy(want.data() + static_cast<size_t>(i) * element, from, element);
        in_a_row = in_a_row && from == addresses[static_cast<size_t>(begin)] +
                                           static_cast<size_t>(i) * element;
      }
      sequence.Gather(segment, begin, count, row.data());
      ASSERT_EQ(row, want);
      char* const run = sequence.Run(segment, begin, count);
      if (run != nullptr) {
        ASSERT_TRUE(in_a_row);
        ASSERT_EQ(run, addresses[static_cast<size_t>(begin)]);
      }

      std::vector<char> changed = before;
      for (size_t i = 0; i < bytes; ++i) row[i] = static_cast<char>(row[i] ^ 0x55);
      for (int64_t i = 0; i < count; ++i) {
        const auto offset =
            static_cast<size_t>(addresses[static_cast<size_t>(begin + i)] - memory.data());
        std::memcpy(changed.data() + offset, row.data() + static_cast<size_t>(i) * element,
                    element);
      }
      sequence.Scatter(segment, begin, count, row.data());
      ASSERT_EQ(memory, changed);
      memory = before;

      int64_t next = 0;
      sequence.ForEachRun(segment, begin, count, [&](char* data, int64_t offset, int64_t n) {
        EXPECT_EQ(offset, next * static_cast<int64_t>(element));
        for (int64_t i = 0; data != nullptr && i < n; ++i) {
          EXPECT_EQ(data + static_cast<size_t>(i) * element,
                    addresses[static_cast<size_t>(begin + next + i)]);
        }
        next += n;
      });
      ASSERT_EQ(next, count);
    }
  }
}

TEST(ViewSequence, WhatLiesBackToBackIsOneRun) {
  std::vector<char> memory = Memory(64);
  const std::vector<LeafView> views = {
      View(memory.data(), ScalarType::Float, {4}, {1}),
      View(memory.data() + 16, ScalarType::Float, {2, 2}, {2, 1}),
      View(memory.data() + 36, ScalarType::Float, {2}, {1})};
  const ViewSequence sequence(views);
  ASSERT_EQ(sequence.segments().size(), 1u);
  const Segment& segment = sequence.segments()[0];
  EXPECT_EQ(sequence.Run(segment, 1, 7), memory.data() + 4);
  EXPECT_EQ(sequence.Run(segment, 8, 2), memory.data() + 36);
  EXPECT_EQ(sequence.Run(segment, 7, 2), nullptr);
}

// Ranks with equal dtypes and sizes cut an operation alike.
TEST(ViewSequence, SegmentsDoNotDependOnStrides) {
  const int64_t large = ViewSequence::kLargeBytes / 4;
  std::vector<char> memory(static_cast<size_t>(ViewSequence::kLargeBytes) * 3);
  const auto make = [&](bool strided) {
    const int64_t step = strided ? 2 : 1;
    char* const data = memory.data();
    return std::vector<LeafView>{View(data, ScalarType::Float, {10}, {step}),
                                 View(data, ScalarType::Float, {20}, {step}),
                                 View(data, ScalarType::Float, {large}, {step}),
                                 View(data, ScalarType::Float, {large, 1}, {step, 1}),
                                 View(data, ScalarType::Float, {30}, {step}),
                                 View(data, ScalarType::Long, {2}, {step}),
                                 View(data, ScalarType::Float, {0}, {step}),
                                 View(data, ScalarType::Float, {40}, {step})};
  };
  for (const bool strided : {false, true}) {
    const ViewSequence sequence(make(strided));
    std::vector<std::pair<int64_t, bool>> segments;
    for (const Segment& segment : sequence.segments()) {
      segments.emplace_back(segment.numel, segment.large);
    }
    const std::vector<std::pair<int64_t, bool>> want = {{30, false}, {large, true}, {large, true},
                                                        {30, false}, {2, false},    {40, false}};
    EXPECT_EQ(segments, want);
  }
}

}  // namespace
}  // namespace leafpack::messages
