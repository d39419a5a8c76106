// A 128-bit digest: a plain value that is compared, printed and sent.
#ifndef LEAFPACK_TENSORDICT_DIGEST128_H_
#define LEAFPACK_TENSORDICT_DIGEST128_H_

#include <cstdint>
#include <string>
#include <utility>

namespace leafpack {

// Two halves of one 128-bit number. All zero means "no digest".
struct Digest128 {
  uint64_t lo = 0;
  uint64_t hi = 0;

  // 32 lower-case hexadecimal digits, the most significant first.
  std::string ToString() const;

  bool IsZero() const { return lo == 0 && hi == 0; }

  friend bool operator==(const Digest128&, const Digest128&) = default;
  friend auto operator<=>(const Digest128&, const Digest128&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const Digest128& digest) {
    return H::combine(std::move(h), digest.lo, digest.hi);
  }
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_DIGEST128_H_
