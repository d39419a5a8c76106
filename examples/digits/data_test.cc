// The images are read and split as they should be, and bad files are refused by line.
#include "examples/digits/data.h"

#include <fstream>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/matchers.h"

namespace leafpack::digits {
namespace {

using ::testing::HasSubstr;

TEST(Digits, AreReadAndSplit) {
  absl::StatusOr<Digits> digits = ReadDigits("examples/data/digits.csv");
  ASSERT_THAT(digits, IsOk());
  EXPECT_EQ(digits->train.size(), 1437);
  EXPECT_EQ(digits->held_out.size(), 360);
  for (const Images* images : {&digits->train, &digits->held_out}) {
    EXPECT_EQ(images->pixels.sizes(), (at::IntArrayRef{images->size(), kPixels}));
    EXPECT_EQ(images->pixels.min().item().toDouble(), 0.0);
    EXPECT_EQ(images->pixels.max().item().toDouble(), 1.0);
    EXPECT_EQ(images->labels.min().item().toLong(), 0);
    EXPECT_EQ(images->labels.max().item().toLong(), 9);
  }
  // The first line of the file: pixels 0,0,5,13,9,1,0,0, ... and the digit 0.
  EXPECT_EQ(digits->held_out.pixels[0][3].item().toDouble(), 13.0 / 16);
  EXPECT_EQ(digits->held_out.labels[0].item().toLong(), 0);
  EXPECT_EQ(digits->train.labels[0].item().toLong(), 1);
}

std::string WriteFile(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/digits.csv";
  std::ofstream(path) << text;
  return path;
}

TEST(Digits, BadFilesAreRefused) {
  std::string good = "1";
  for (int i = 1; i < 64; ++i) good += ",16";
  EXPECT_THAT(ReadDigits("/no/such/file"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ReadDigits(WriteFile("")), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ReadDigits(WriteFile(good + ",3\n" + good + "\n")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(":2: not 64 pixels")));
  EXPECT_THAT(ReadDigits(WriteFile("17" + good.substr(1) + ",3\n")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(":1: a pixel")));
  EXPECT_THAT(ReadDigits(WriteFile(good + ",10\n")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(":1: the digit")));
}

TEST(Permutation, HoldsEveryNumberOnceAndDependsOnSeedAndEpoch) {
  const at::Tensor order = Permutation(1000, 1, 0);
  EXPECT_THAT(std::get<0>(order.sort()), BitEq(at::arange(1000, at::kLong)));
  EXPECT_THAT(Permutation(1000, 1, 0), BitEq(order));
  EXPECT_THAT(Permutation(1000, 1, 1), ::testing::Not(BitEq(order)));
  EXPECT_THAT(Permutation(1000, 2, 0), ::testing::Not(BitEq(order)));
}

TEST(Share, PartsCoverEverythingOnce) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Range range = Share(64, rank, ranks);
      EXPECT_EQ(range.begin, next);
      EXPECT_GE(range.end - range.begin, 64 / ranks);
      EXPECT_LE(range.end - range.begin, 64 / ranks + 1);
      next = range.end;
    }
    EXPECT_EQ(next, 64);
  }
}

}  // namespace
}  // namespace leafpack::digits
