#include "tensordict/bucket/bucket_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensordict/layout.h"

namespace leafpack {
namespace {

// The leaves of one device type and dtype, in canonical order.
struct Group {
  c10::DeviceType device;
  c10::ScalarType dtype;
  std::vector<int64_t> leaves;
};

class Planner {
 public:
  Planner(const Layout& layout, Bucketing bucketing, const PlanParams& params)
      : layout_(layout), bucketing_(bucketing), params_(params) {}

  BucketPlan Plan() {
    for (const Group& group : Groups()) {
      switch (bucketing_.mode()) {
        case Bucketing::Mode::kPerLeaf:
          for (const int64_t leaf : group.leaves) Emit(group, {leaf});
          break;
        case Bucketing::Mode::kMaxBytes:
          PlanMaxBytes(group);
          break;
        case Bucketing::Mode::kAuto:
          PlanAuto(group);
          break;
      }
    }
    std::sort(plan_.buckets.begin(), plan_.buckets.end(), [](const Bucket& a, const Bucket& b) {
      return a.slots.front().leaf < b.slots.front().leaf;
    });
    return std::move(plan_);
  }

 private:
  bool Included(size_t leaf) const {
    return params_.included.empty() || params_.included[leaf] != 0;
  }

  int64_t BytesOf(int64_t leaf) const { return layout_.leaf(static_cast<size_t>(leaf)).bytes; }

  std::vector<Group> Groups() {
    std::vector<Group> groups;
    // Set for the first leaf of an alias group once a leaf stands for the group.
    std::vector<bool> covered(layout_.size(), false);
    for (size_t i = 0; i < layout_.size(); ++i) {
      const LeafInfo& info = layout_.leaf(i);
      if (!Included(i)) continue;
      const size_t region = info.alias_of < 0 ? i : static_cast<size_t>(info.alias_of);
      if (covered[region]) continue;
      covered[region] = true;
      if (info.kind == LeafKind::kSparse) plan_.sparse.push_back(static_cast<int64_t>(i));
      if (info.kind != LeafKind::kDense || info.numel == 0) continue;
      auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
        return g.device == info.device.type() && g.dtype == info.dtype;
      });
      if (group == groups.end()) {
        group = groups.insert(group, Group{info.device.type(), info.dtype, {}});
      }
      group->leaves.push_back(static_cast<int64_t>(i));
    }
    return groups;
  }

  // Where a slot begins that comes after `end` bytes.
  int64_t AlignUp(int64_t end, int64_t leaf) const {
    const LeafInfo& info = layout_.leaf(static_cast<size_t>(leaf));
    const int64_t step = std::max(params_.alignment, info.bytes / info.numel);
    return (end + step - 1) / step * step;
  }

  void Emit(const Group& group, absl::Span<const int64_t> leaves) {
    Bucket bucket;
    bucket.device = group.device;
    bucket.dtype = group.dtype;
    bucket.slots.reserve(leaves.size());
    for (const int64_t leaf : leaves) {
      const int64_t offset = AlignUp(bucket.bytes, leaf);
      bucket.slots.push_back({leaf, offset, BytesOf(leaf)});
      bucket.bytes = offset + BytesOf(leaf);
      plan_.payload_bytes += BytesOf(leaf);
    }
    plan_.buckets.push_back(std::move(bucket));
  }

  void PlanMaxBytes(const Group& group) {
    const int64_t cap = bucketing_.max_bytes();
    std::vector<int64_t> open;
    int64_t end = 0;
    for (const int64_t leaf : group.leaves) {
      if (BytesOf(leaf) >= cap) {
        Emit(group, {leaf});
        continue;
      }
      int64_t next = AlignUp(end, leaf) + BytesOf(leaf);
      if (!open.empty() && next > cap) {
        Emit(group, open);
        open.clear();
        next = BytesOf(leaf);
      }
      open.push_back(leaf);
      end = next;
    }
    if (!open.empty()) Emit(group, open);
  }

  // A leaf, or leaves that lie back to back. `bytes` is what packing it would copy.
  struct Unit {
    std::vector<int64_t> leaves;
    int64_t bytes;
  };

  std::vector<Unit> Units(const Group& group) const {
    std::vector<Unit> units;
    // Padding between slots would break up what lies back to back.
    const bool join = params_.memory_agreed && params_.alignment == 0;
    for (const int64_t leaf : group.leaves) {
      const int64_t before = layout_.leaf(static_cast<size_t>(leaf)).follows;
      if (join && before >= 0 && !units.empty() && units.back().leaves.back() == before) {
        units.back().leaves.push_back(leaf);
        units.back().bytes += BytesOf(leaf);
      } else {
        units.push_back({{leaf}, BytesOf(leaf)});
      }
    }
    return units;
  }

  void PlanAuto(const Group& group) {
    const absl::int128 message = absl::int128(params_.costs.message_ns) * 1000;
    const absl::int128 pack = params_.costs.pack_ps_per_byte;
    std::vector<Unit> small;
    absl::int128 small_bytes = 0;
    for (Unit& unit : Units(group)) {
      if (pack * unit.bytes > message || unit.bytes > params_.max_packed_bucket_bytes) {
        Emit(group, unit.leaves);
      } else {
        small_bytes += unit.bytes;
        small.push_back(std::move(unit));
      }
    }
    if (message + small_bytes * pack >= message * static_cast<int64_t>(small.size())) {
      for (const Unit& unit : small) Emit(group, unit.leaves);
      return;
    }
    // The largest k for which k buckets are not worse than k - 1: k * (k - 1) * message <= hidden.
    const auto units = static_cast<int64_t>(small.size());
    int64_t k = 1;
    if (params_.costs.overlap) {
      const absl::int128 hidden =
          small_bytes * std::min(params_.costs.pack_ps_per_byte, params_.costs.wire_ps_per_byte);
      while (k < units && absl::int128(k) * (k + 1) * message <= hidden) ++k;
    }
    const absl::int128 cap = params_.max_packed_bucket_bytes;
    k = std::max(k, static_cast<int64_t>((small_bytes + cap - 1) / cap));
    // Equal parts: a unit belongs to the part in which its middle lies.
    std::vector<int64_t> open;
    int64_t open_part = 0;
    int64_t end = 0;
    absl::int128 sum = 0;
    for (const Unit& unit : small) {
      const auto part = static_cast<int64_t>((sum * 2 + unit.bytes) * k / (small_bytes * 2));
      sum += unit.bytes;
      int64_t next = end;
      for (const int64_t leaf : unit.leaves) next = AlignUp(next, leaf) + BytesOf(leaf);
      if (!open.empty() && (part != open_part || next > params_.max_packed_bucket_bytes)) {
        Emit(group, open);
        open.clear();
        next = 0;
        for (const int64_t leaf : unit.leaves) next = AlignUp(next, leaf) + BytesOf(leaf);
      }
      open.insert(open.end(), unit.leaves.begin(), unit.leaves.end());
      open_part = part;
      end = next;
    }
    if (!open.empty()) Emit(group, open);
  }

  const Layout& layout_;
  const Bucketing bucketing_;
  const PlanParams& params_;
  BucketPlan plan_;
};

}  // namespace

std::string Bucketing::ToString() const {
  switch (mode_) {
    case Mode::kAuto:
      return "auto";
    case Mode::kPerLeaf:
      return "per leaf";
    case Mode::kMaxBytes:
      return absl::StrCat("at most ", max_bytes_, " bytes");
  }
  return "unknown";
}

absl::StatusOr<BucketPlan> MakeBucketPlan(const Layout& layout, Bucketing bucketing,
                                          const PlanParams& params) {
  if (bucketing.mode() == Bucketing::Mode::kMaxBytes && bucketing.max_bytes() <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a bucket cannot hold at most ", bucketing.max_bytes(),
                     " bytes: the cap must be positive (PerLeaf makes a bucket of every leaf)"));
  }
  if (params.alignment < 0 || (params.alignment & (params.alignment - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("slots cannot be aligned to ", params.alignment,
                                                   " bytes: not a power of two"));
  }
  // Offsets must not overflow, whatever the plan is.
  const absl::int128 most =
      absl::int128(params.alignment) * (static_cast<int64_t>(layout.size()) + 1);
  if (most + layout.total_bytes() > std::numeric_limits<int64_t>::max() / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots of ", layout.size(), " leaves cannot be aligned to ", params.alignment,
                     " bytes: offsets would overflow"));
  }
  if (params.max_packed_bucket_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_packed_bucket_bytes must be positive, not ",
                                                   params.max_packed_bucket_bytes));
  }
  const AutoCosts& costs = params.costs;
  if (costs.message_ns < 0 || costs.wire_ps_per_byte < 0 || costs.pack_ps_per_byte < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "costs must not be negative: ", costs.message_ns, " ns a message, ", costs.wire_ps_per_byte,
        " ps a byte on the wire, ", costs.pack_ps_per_byte, " ps a packed byte"));
  }
  if (!params.included.empty() && params.included.size() != layout.size()) {
    return absl::InvalidArgumentError(absl::StrCat(params.included.size(), " flags say which of ",
                                                   layout.size(), " leaves are included"));
  }
  return Planner(layout, bucketing, params).Plan();
}

}  // namespace leafpack
