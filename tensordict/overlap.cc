#include "tensordict/overlap.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace leafpack {
namespace {

// Work after which the search for a common byte gives way to a map of the memory.
constexpr int64_t kSearchSteps = int64_t{1} << 16;
// Pairs after which FindMeetings gives way to it.
constexpr int64_t kPairs = int64_t{1} << 15;
// Most entries of such a map (4 bytes each). Beyond, the search goes on for as long as it takes.
constexpr int64_t kMapEntries = int64_t{1} << 28;

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - ((a % b != 0 && (a < 0)) ? 1 : 0); }
int64_t CeilDiv(int64_t a, int64_t b) { return -FloorDiv(-a, b); }

// Is there a vector u with sum of stride_k * u_k = target and min_k <= u_k <= max_k? A search over
// the dimensions from the largest stride down. What the smaller ones can still reach bounds each
// u_k, so that for strides that are nested, as almost all are, one or two values remain per
// dimension.
class SumSearch {
 public:
  struct Term {
    int64_t stride;  // > 0
    int64_t min;
    int64_t max;
  };
  using Terms = absl::InlinedVector<Term, 8>;

  // With `nonzero`, u = 0 does not count; ranges must then be symmetric.
  SumSearch(Terms terms, bool nonzero, int64_t max_steps)
      : terms_(std::move(terms)), nonzero_(nonzero), steps_left_(max_steps) {
    std::sort(terms_.begin(), terms_.end(),
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    rest_.resize(terms_.size() + 1);
    for (size_t k = terms_.size(); k-- > 0;) {
      rest_[k].low = rest_[k + 1].low + terms_[k].stride * terms_[k].min;
      rest_[k].high = rest_[k + 1].high + terms_[k].stride * terms_[k].max;
      rest_[k].gcd = std::gcd(rest_[k + 1].gcd, terms_[k].stride);
    }
  }

  // nullopt if the steps did not suffice.
  std::optional<bool> Solve(int64_t target) {
    const bool found = Search(0, target, false);
    if (found) return true;
    return steps_left_ < 0 ? std::nullopt : std::optional<bool>(false);
  }

 private:
  struct Rest {
    int64_t low = 0;
    int64_t high = 0;
    int64_t gcd = 0;
  };

  // Recursion is as deep as there are terms: at most 65 per tensor.
  bool Search(size_t k, int64_t target, bool moved) {
    if (--steps_left_ < 0) return false;
    if (k == terms_.size()) return target == 0 && (moved || !nonzero_);
    const Rest& rest = rest_[k + 1];
    const Term& term = terms_[k];
    if (rest_[k].gcd != 0 && target % rest_[k].gcd != 0) return false;
    int64_t low = std::max(term.min, CeilDiv(target - rest.high, term.stride));
    const int64_t high = std::min(term.max, FloorDiv(target - rest.low, term.stride));
    // With u also -u is a solution of the nonzero problem: the first step may be taken upwards.
    if (nonzero_ && !moved) low = std::max<int64_t>(low, 0);
    for (int64_t u = low; u <= high; ++u) {
      if (Search(k + 1, target - u * term.stride, moved || u != 0)) return true;
      if (steps_left_ < 0) return false;
    }
    return false;
  }

  Terms terms_;
  bool nonzero_;
  int64_t steps_left_;
  absl::InlinedVector<Rest, 9> rest_;
};

// Every stride is larger than all that the smaller ones span together. Then no two indices lead to
// one byte, and the normalized form is the only one that the set of bytes has: its smallest stride
// and the length of its first run can be read off the set, and so on upwards.
bool IsNested(const Region& region) {
  int64_t span = 0;
  for (const Region::Dim& dim : region.dims) {
    if (dim.stride <= span) return false;
    span += dim.stride * (dim.count - 1);
  }
  return true;
}

// A map from memory to the claim that covers it, in units that divide all addresses and strides.
class MemoryMap {
 public:
  enum class Result : uint8_t { kDone, kTooLarge };

  // Marks the claims with these indices in order of rising index. On kDone `owners` holds the first
  // claim of the same bytes for each, or `clash` is set.
  static Result Mark(absl::Span<const RegionClaim> claims, std::vector<size_t> which,
                     std::vector<size_t>& owners, std::optional<Clash>& clash) {
    std::sort(which.begin(), which.end());
    uintptr_t begin = UINTPTR_MAX;
    uintptr_t end = 0;
    for (const size_t i : which) {
      begin = std::min(begin, claims[i].region.begin);
      end = std::max(end, claims[i].region.end);
    }
    int64_t unit = 0;
    for (const size_t i : which) {
      const Region& region = claims[i].region;
      unit = std::gcd(unit, static_cast<int64_t>(region.begin - begin));
      for (const Region::Dim& dim : region.dims) {
        // The bytes of one run count as a whole.
        unit = std::gcd(unit, dim.stride == 1 ? dim.count : dim.stride);
      }
      if (region.dims.empty() || region.dims.front().stride != 1) unit = 1;
    }
    const int64_t entries = static_cast<int64_t>(end - begin) / unit;
    if (entries > kMapEntries) return Result::kTooLarge;
    std::vector<int32_t> map(static_cast<size_t>(entries), -1);
    for (size_t w = 0; w < which.size() && !clash.has_value(); ++w) {
      const RegionClaim& claim = claims[which[w]];
      // Whom the first unit meets; all others must meet the same.
      int64_t first = -2;
      ForEachUnit(claim.region, begin, unit, [&](int64_t at) {
        int32_t& entry = map[static_cast<size_t>(at)];
        if (entry == static_cast<int32_t>(w)) {
          clash = Clash{which[w], which[w]};
          return false;
        }
        if (first == -2) first = entry;
        if (entry != first) {
          const auto other = static_cast<size_t>(std::max<int64_t>(entry, first));
          clash = Clash{which[other], which[w]};
          return false;
        }
        if (entry < 0) entry = static_cast<int32_t>(w);
        return true;
      });
      if (clash.has_value()) break;
      if (first < 0) {
        owners[which[w]] = which[w];
        continue;
      }
      // All bytes are another's. As none was met twice (a region that overlaps itself does not come
      // here, or was marked by itself), equal counts make equal sets.
      const size_t other = which[static_cast<size_t>(first)];
      if (claims[other].region.bytes != claim.region.bytes) {
        clash = Clash{other, which[w]};
      } else if (claims[other].type != claim.type) {
        clash = Clash{other, which[w], true};
      } else {
        owners[which[w]] = other;
      }
    }
    return Result::kDone;
  }

 private:
  template <typename F>
  static void ForEachUnit(const Region& region, uintptr_t begin, int64_t unit, F visit) {
    absl::InlinedVector<Region::Dim, 4> dims;
    for (const Region::Dim& dim : region.dims) {
      if (dim.stride == 1) {
        if (dim.count > unit) dims.push_back({1, dim.count / unit});
      } else {
        dims.push_back({dim.stride / unit, dim.count});
      }
    }
    absl::InlinedVector<int64_t, 4> index(dims.size(), 0);
    int64_t at = static_cast<int64_t>(region.begin - begin) / unit;
    while (true) {
      if (!visit(at)) return;
      size_t k = 0;
      for (; k < dims.size(); ++k) {
        at += dims[k].stride;
        if (++index[k] < dims[k].count) break;
        at -= dims[k].stride * dims[k].count;
        index[k] = 0;
      }
      if (k == dims.size()) return;
    }
  }
};

std::optional<bool> HaveCommonByte(const Region& a, const Region& b, int64_t max_steps) {
  SumSearch::Terms terms;
  size_t i = 0;
  size_t j = 0;
  while (i < a.dims.size() || j < b.dims.size()) {
    const int64_t sa = i < a.dims.size() ? a.dims[i].stride : INT64_MAX;
    const int64_t sb = j < b.dims.size() ? b.dims[j].stride : INT64_MAX;
    SumSearch::Term term{std::min(sa, sb), 0, 0};
    if (sa <= sb) term.max = a.dims[i++].count - 1;
    if (sb <= sa) term.min = -(b.dims[j++].count - 1);
    terms.push_back(term);
  }
  return SumSearch(std::move(terms), false, max_steps)
      .Solve(static_cast<int64_t>(b.begin) - static_cast<int64_t>(a.begin));
}

Meeting MeetByMap(const Region& a, const Region& b) {
  const RegionClaim claims[] = {{a, 0, 0}, {b, 0, 0}};
  std::vector<size_t> owners(2);
  std::optional<Clash> clash;
  if (MemoryMap::Mark(claims, {0, 1}, owners, clash) == MemoryMap::Result::kTooLarge) {
    // Too large for a map: search to the end. Sets that are equal but have two forms that are not
    // nested are not told from a partial meeting here; either way it is safe.
    return *HaveCommonByte(a, b, INT64_MAX) ? Meeting::kPart : Meeting::kApart;
  }
  if (clash.has_value()) return Meeting::kPart;
  return owners[1] == 0 ? Meeting::kSame : Meeting::kApart;
}

}  // namespace

Region Region::Of(uintptr_t address, int64_t element_bytes, absl::Span<const int64_t> sizes,
                  absl::Span<const int64_t> strides) {
  Region region;
  region.begin = address;
  region.bytes = element_bytes;
  int64_t span = element_bytes - 1;
  absl::InlinedVector<Dim, 4> dims;
  if (element_bytes > 1) dims.push_back({1, element_bytes});
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 1) continue;
    const int64_t stride = strides[k] * element_bytes;
    region.bytes *= sizes[k];
    span += stride * (sizes[k] - 1);
    dims.push_back({stride, sizes[k]});
  }
  region.end = address + static_cast<uintptr_t>(span) + 1;
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) {
    return a.stride != b.stride ? a.stride < b.stride : a.count < b.count;
  });
  for (const Dim& dim : dims) {
    Dim* last = region.dims.empty() ? nullptr : &region.dims.back();
    if (last != nullptr && dim.stride == last->stride * last->count) {
      last->count *= dim.count;
    } else {
      region.dims.push_back(dim);
    }
  }
  return region;
}

bool OverlapsItself(const Region& region) {
  if (IsNested(region)) return false;
  SumSearch::Terms terms;
  for (const Region::Dim& dim : region.dims) {
    if (dim.stride == 0) return true;
    terms.push_back({dim.stride, -(dim.count - 1), dim.count - 1});
  }
  if (std::optional<bool> found = SumSearch(terms, true, kSearchSteps).Solve(0)) return *found;
  const RegionClaim claims[] = {{region, 0, 0}};
  std::vector<size_t> owners(1);
  std::optional<Clash> clash;
  if (MemoryMap::Mark(claims, {0}, owners, clash) == MemoryMap::Result::kDone) {
    return clash.has_value();
  }
  return *SumSearch(terms, true, INT64_MAX).Solve(0);
}

Meeting Meet(const Region& a, const Region& b) {
  if (a.end <= b.begin || b.end <= a.begin) return Meeting::kApart;
  if (a.begin == b.begin && a.dims == b.dims) return Meeting::kSame;
  const std::optional<bool> common = HaveCommonByte(a, b, kSearchSteps);
  if (!common.has_value()) return MeetByMap(a, b);
  if (!*common) return Meeting::kApart;
  const bool may_be_same = a.begin == b.begin && a.end == b.end && a.bytes == b.bytes;
  if (!may_be_same || (IsNested(a) && IsNested(b))) return Meeting::kPart;
  return MeetByMap(a, b);
}

std::optional<Clash> FindMeetings(absl::Span<const RegionClaim> claims,
                                  std::vector<size_t>& owners) {
  const size_t n = claims.size();
  owners.resize(n);
  std::iota(owners.begin(), owners.end(), size_t{0});
  struct Box {
    uintptr_t begin;
    uintptr_t end;
    int32_t space;
    uint32_t claim;
  };
  std::vector<Box> boxes(n);
  bool sorted = true;
  const auto before = [](const Box& a, const Box& b) {
    if (a.space != b.space) return a.space < b.space;
    return a.begin != b.begin ? a.begin < b.begin : a.claim < b.claim;
  };
  for (size_t i = 0; i < n; ++i) {
    const Region& region = claims[i].region;
    boxes[i] = {region.begin, region.end, claims[i].space, static_cast<uint32_t>(i)};
    sorted = sorted && (i == 0 || before(boxes[i - 1], boxes[i]));
  }
  if (!sorted) std::sort(boxes.begin(), boxes.end(), before);

  std::optional<Clash> clash;
  const auto note = [&clash](size_t x, size_t y, bool types_differ) {
    const Clash found{std::min(x, y), std::max(x, y), types_differ};
    // The report must not depend on where memory lies: the clash that comes first in index wins.
    if (!clash.has_value() || std::pair(found.b, found.a) < std::pair(clash->b, clash->a)) {
      clash = found;
    }
  };
  // Compares the boxes from `first` up to `to` in pairs; false if that would take more than
  // `max_pairs`. One claim stands for all of the same bytes: the first by index, as they have one
  // address and ties go by index.
  const auto compare_pairs = [&](size_t first, size_t to, int64_t max_pairs) {
    int64_t pairs = 0;
    std::vector<size_t> live;  // claims whose boxes may still meet what comes
    for (size_t i = first; i < to; ++i) {
      const size_t c = boxes[i].claim;
      std::erase_if(live, [&](size_t other) { return claims[other].region.end <= boxes[i].begin; });
      pairs += static_cast<int64_t>(live.size());
      if (pairs > max_pairs) return false;
      bool stands_alone = true;
      for (const size_t other : live) {
        const Meeting meeting = Meet(claims[other].region, claims[c].region);
        if (meeting == Meeting::kApart) continue;
        if (meeting == Meeting::kPart || claims[other].type != claims[c].type) {
          note(other, c, meeting == Meeting::kSame);
          continue;
        }
        stands_alone = false;
        owners[c] = other;
        break;
      }
      if (stands_alone) live.push_back(c);
    }
    return true;
  };

  // Clusters of boxes that meet, directly or through others.
  for (size_t from = 0; from < n;) {
    uintptr_t end = boxes[from].end;
    size_t to = from + 1;
    while (to < n && boxes[to].space == boxes[from].space && boxes[to].begin < end) {
      end = std::max(end, boxes[to].end);
      ++to;
    }
    const size_t first = from;
    from = to;
    if (to - first == 1) continue;

    // Pairs, as long as they are few; else a map; else pairs, however many.
    if (compare_pairs(first, to, kPairs)) continue;
    std::vector<size_t> which;
    for (size_t i = first; i < to; ++i) {
      which.push_back(boxes[i].claim);
      owners[boxes[i].claim] = boxes[i].claim;
    }
    std::optional<Clash> marked;
    if (MemoryMap::Mark(claims, which, owners, marked) == MemoryMap::Result::kTooLarge) {
      compare_pairs(first, to, INT64_MAX);
    } else if (marked.has_value()) {
      note(marked->a, marked->b, marked->types_differ);
    }
  }
  return clash;
}

}  // namespace leafpack
