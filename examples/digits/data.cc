#include "examples/digits/data.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace leafpack::digits {
namespace {

constexpr int64_t kHeldOutEvery = 5;

struct Rows {
  std::vector<float> pixels;
  std::vector<int64_t> labels;

  Images ToImages() {
    const int64_t n = static_cast<int64_t>(labels.size());
    return {at::from_blob(pixels.data(), {n, kPixels}, at::kFloat).clone(),
            at::from_blob(labels.data(), {n}, at::kLong).clone()};
  }
};

}  // namespace

absl::StatusOr<Digits> ReadDigits(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  Rows train, held_out;
  std::string line;
  for (int64_t number = 0; std::getline(file, line); ++number) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ',');
    const auto bad = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number + 1, ": ", what));
    };
    if (words.size() != kPixels + 1) return bad("not 64 pixels and a digit");
    Rows& rows = number % kHeldOutEvery == 0 ? held_out : train;
    for (size_t i = 0; i < kPixels; ++i) {
      int value = 0;
      if (!absl::SimpleAtoi(words[i], &value) || value < 0 || value > 16) {
        return bad("a pixel is not between 0 and 16");
      }
      rows.pixels.push_back(static_cast<float>(value) / 16.0f);
    }
    int label = 0;
    if (!absl::SimpleAtoi(words[kPixels], &label) || label < 0 || label >= kClasses) {
      return bad("the digit is not between 0 and 9");
    }
    rows.labels.push_back(label);
  }
  if (train.labels.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds too few images"));
  }
  return Digits{train.ToImages(), held_out.ToImages()};
}

at::Tensor Permutation(int64_t n, uint64_t seed, int epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  // std::shuffle may differ between standard libraries; the generator itself may not.
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(epoch));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return at::from_blob(order.data(), {n}, at::kLong).clone();
}

Range Share(int64_t n, int rank, int ranks) { return {n * rank / ranks, n * (rank + 1) / ranks}; }

}  // namespace leafpack::digits
