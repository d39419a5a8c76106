// A 128-bit digest as it travels in records: two words, comparable, hashable, printable as 32 hex
// digits.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_DIGEST128_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_DIGEST128_H_

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

namespace leafpack::protocol {

// The value alone; what was hashed is the business of whoever made it (layers above have a type of
// their own, which this layer may not see). All zero means "none".
struct Digest128 {
  uint64_t lo = 0;
  uint64_t hi = 0;

  friend auto operator<=>(const Digest128&, const Digest128&) = default;

  bool IsZero() const { return lo == 0 && hi == 0; }

  // 32 lower-case hex digits, `hi` first.
  std::string ToString() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text(32, '0');
    for (int i = 0; i < 16; ++i) {
      text[15 - i] = kDigits[(hi >> (4 * i)) & 15];
      text[31 - i] = kDigits[(lo >> (4 * i)) & 15];
    }
    return text;
  }

  template <typename H>
  friend H AbslHashValue(H h, const Digest128& d) {
    return H::combine(std::move(h), d.lo, d.hi);
  }
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_DIGEST128_H_
