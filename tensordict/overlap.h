// Which sets of bytes do strided tensors cover, and do they meet? Exact. For this folder only.
#ifndef LEAFPACK_TENSORDICT_OVERLAP_H_
#define LEAFPACK_TENSORDICT_OVERLAP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace leafpack {

// The bytes of a strided tensor: begin + sum of i_k * stride_k, 0 <= i_k < count_k. The bytes of an
// element are a dimension of stride 1. Normalized: strides rise, every count is at least 2, and
// neighbours that make one longer run are merged, so a contiguous tensor has one dimension.
struct Region {
  struct Dim {
    int64_t stride;  // bytes, >= 0
    int64_t count;   // >= 2
    friend bool operator==(const Dim&, const Dim&) = default;
  };
  uintptr_t begin = 0;
  uintptr_t end = 0;  // behind the last byte
  int64_t bytes = 0;  // with multiplicity
  absl::InlinedVector<Dim, 4> dims;

  // `sizes` must hold no 0, `strides` no negative number; both in elements of `element_bytes`.
  static Region Of(uintptr_t address, int64_t element_bytes, absl::Span<const int64_t> sizes,
                   absl::Span<const int64_t> strides);
};

// True if two indices lead to one byte.
bool OverlapsItself(const Region& region);

enum class Meeting : uint8_t {
  kApart,  // no common byte
  kSame,   // the same set of bytes
  kPart,   // some common bytes, others not
};

// How two regions that do not overlap themselves meet.
Meeting Meet(const Region& a, const Region& b);

// One region of a set, for FindMeetings.
struct RegionClaim {
  Region region;
  // Regions meet legally only as kSame and with equal types.
  int32_t type = 0;
  // Memory spaces whose addresses have nothing to do with each other.
  int32_t space = 0;
};

// Two claims that meet and must not: `a` < `b`.
struct Clash {
  size_t a = 0;
  size_t b = 0;
  // The same bytes, but two types.
  bool types_differ = false;
};

// For each claim the index of the first one that has the same bytes, itself if it is the first; or a
// clash. No region may overlap itself. Sorts by address and compares only those whose bounding boxes meet; many boxes that meet (the
// columns of one matrix) are marked in a map of their memory instead of compared in pairs.
// `owners` has one entry per claim after the call, if there is no clash.
std::optional<Clash> FindMeetings(absl::Span<const RegionClaim> claims, std::vector<size_t>& owners);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OVERLAP_H_
