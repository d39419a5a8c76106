// The hand-written digits: images, and how they are split and cut into batches.
#ifndef LEAFPACK_EXAMPLES_DIGITS_DATA_H_
#define LEAFPACK_EXAMPLES_DIGITS_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"

namespace leafpack::digits {

inline constexpr int64_t kPixels = 64;
inline constexpr int64_t kClasses = 10;

struct Images {
  at::Tensor pixels;  // float32 [n, 64], 0 to 1
  at::Tensor labels;  // int64 [n], 0 to 9
  int64_t size() const { return labels.defined() ? labels.size(0) : 0; }
};

struct Digits {
  Images train;
  Images held_out;  // every fifth line
};

// Reads lines of 64 pixels (0 to 16) and a digit. InvalidArgument names the line that is no good.
absl::StatusOr<Digits> ReadDigits(const std::string& path);

// A permutation of 0 to n - 1 that depends on seed and epoch alone: equal on all ranks and platforms.
at::Tensor Permutation(int64_t n, uint64_t seed, int epoch);

// The part of [0, n) that belongs to `rank`; parts differ by one element at most.
struct Range {
  int64_t begin, end;
};
Range Share(int64_t n, int rank, int ranks);

}  // namespace leafpack::digits

#endif  // LEAFPACK_EXAMPLES_DIGITS_DATA_H_
