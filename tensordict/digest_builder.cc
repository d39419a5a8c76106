#include "tensordict/digest_builder.h"

#include <xxhash.h>

namespace leafpack {

Digest128 DigestBuilder::Finish() const {
  const XXH128_hash_t hash = XXH3_128bits(bytes_.data(), bytes_.size());
  return Digest128{.lo = hash.low64, .hi = hash.high64};
}

}  // namespace leafpack
