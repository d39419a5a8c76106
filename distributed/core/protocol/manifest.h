// Descriptions of a call as they are compared after digests differed, and the report of the first
// difference.
//
// A manifest is a list of entries: first the arguments of the call by name, then the leaves in
// canonical order. Each has a key that identifies it and orders it (bytes), the key as a person
// reads it, and its value as a person reads it.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_MANIFEST_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "distributed/core/protocol/types.h"

namespace leafpack::protocol {

struct ManifestEntry {
  bool argument = false;  // an argument of the call, else a leaf
  std::string
      key;  // bytes that identify it; leaves are in ascending order of the tree, not of these bytes
  std::string printable;  // "op", "encoder.weight"
  std::string value;      // "sum", "float32 [3, 4]"; two entries are equal if key and value are
};

// u32 count, then for each entry u8 argument and three strings of u32 length. Strings over 4 KiB
// are cut and end in a hash of the whole, so that they differ where the originals do.
std::string EncodeManifest(absl::Span<const ManifestEntry> entries);

// Checks every count and length against what remains.
absl::StatusOr<std::vector<ManifestEntry>> DecodeManifest(std::string_view bytes);

// One side of a difference: the ranks that called the same thing, and its manifest.
struct ManifestSide {
  std::vector<uint32_t> ranks;  // ascending, not empty
  bool known = false;           // the manifest arrived and decoded
  std::vector<ManifestEntry> entries;
};

struct Difference {
  std::string text;  // e.g. "rank 0 has k8 (float32 [3]), ranks 1 and 2 have k9 (float32 [3])"
  std::string path;  // printable key of the first leaf that differs; empty for an argument
  std::vector<uint32_t>
      ranks;  // ranks outside the largest side (of equal ones, the first); ascending
};

// The first place where any side differs from the first known one, arguments before leaves. With
// fewer than two known sides it says which ranks differ and whose description is missing.
Difference DescribeDifference(absl::Span<const ManifestSide> sides, const RankNamer& name);

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_MANIFEST_H_
