// DigestBuilder: turns values into a Digest128 that is the same in every process and on every
// platform.
//
//   DigestBuilder builder("my record 1");
//   builder.U64(count);
//   builder.Bytes(name);
//   Digest128 digest = builder.Finish();
#ifndef LEAFPACK_TENSORDICT_DIGEST_BUILDER_H_
#define LEAFPACK_TENSORDICT_DIGEST_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensordict/digest128.h"

namespace leafpack {

// Values are written in the order of the calls: numbers little endian and of fixed width, strings
// behind their length. The digest is XXH3-128 of these bytes: no defence against an attacker.
class DigestBuilder {
 public:
  // `tag` tells kinds of digests, and versions of one kind, apart.
  explicit DigestBuilder(std::string_view tag) { Bytes(tag); }

  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  void U8(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void U32(uint32_t value) { Append(value); }
  void U64(uint64_t value) { Append(value); }
  void I64(int64_t value) { Append(static_cast<uint64_t>(value)); }
  // Any bytes.
  void Bytes(std::string_view value) {
    U64(value.size());
    bytes_.append(value);
  }
  void Digest(const Digest128& value) {
    U64(value.lo);
    U64(value.hi);
  }

  // Of all that was written so far.
  Digest128 Finish() const;

 private:
  template <typename T>
  void Append(T value) {
    char raw[sizeof(T)];
    for (size_t i = 0; i < sizeof(T); ++i) raw[i] = static_cast<char>(value >> (8 * i));
    bytes_.append(raw, sizeof(T));
  }

  std::string bytes_;
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_DIGEST_BUILDER_H_
