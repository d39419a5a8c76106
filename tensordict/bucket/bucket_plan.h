// BucketPlan: which leaves travel together in one message, and where in it each one lies.
//
// A plan is a pure function of what a layout's digest covers and of PlanParams: never of strides,
// addresses or timing. Ranks whose digests and parameters agree have equal plans.
#ifndef LEAFPACK_TENSORDICT_BUCKET_BUCKET_PLAN_H_
#define LEAFPACK_TENSORDICT_BUCKET_BUCKET_PLAN_H_

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensordict/layout.h"

namespace leafpack {

// How leaves are put into buckets.
class Bucketing {
 public:
  enum class Mode : uint8_t { kAuto = 0, kPerLeaf = 1, kMaxBytes = 2 };

  // See MakeBucketPlan.
  static Bucketing Auto() { return Bucketing(Mode::kAuto, 0); }
  // Every leaf is a bucket of its own.
  static Bucketing PerLeaf() { return Bucketing(Mode::kPerLeaf, 0); }
  // At most `bytes` a bucket; a larger leaf is a bucket of its own. MakeBucketPlan refuses
  // bytes <= 0.
  static Bucketing MaxBytes(int64_t bytes) { return Bucketing(Mode::kMaxBytes, bytes); }

  Mode mode() const { return mode_; }
  // The cap of kMaxBytes, else 0.
  int64_t max_bytes() const { return max_bytes_; }
  // "auto", "per leaf", "at most 1048576 bytes".
  std::string ToString() const;

  friend bool operator==(const Bucketing&, const Bucketing&) = default;

 private:
  Bucketing(Mode mode, int64_t max_bytes) : mode_(mode), max_bytes_(max_bytes) {}

  Mode mode_;
  int64_t max_bytes_;
};

// What a message and a copy cost, for Auto. Whole numbers, so that every platform computes the same
// plan. They must be constants of the backend (and may depend on the number of ranks), never
// measured at run time.
struct AutoCosts {
  // Fixed cost of one more message, in nanoseconds.
  int64_t message_ns = 100'000;
  // Cost of one more byte in a message, in picoseconds: what can hide the packing of another bucket.
  int64_t wire_ps_per_byte = 500;
  // Cost of packing and unpacking one byte, in picoseconds.
  int64_t pack_ps_per_byte = 200;
  // True if buckets are packed and unpacked while others are under way.
  bool overlap = true;
};

struct PlanParams {
  // Slots begin at multiples of this many bytes (a power of two). 0: of the element size, so that
  // slots are tight and leaves that lie back to back in one storage are one slot with no copy.
  int64_t alignment = 0;
  // Auto makes no packed bucket of more bytes than this, so that a pipeline that keeps k buckets in
  // flight holds at most k times as many packed bytes. (A leaf larger than this is a bucket of its
  // own, and needs as many bytes if it is not contiguous.) Must be positive.
  int64_t max_packed_bucket_bytes = int64_t{64} << 20;
  AutoCosts costs;
  // True if all ranks are known to have equal stride digests. Then Auto may also see which leaves lie
  // back to back in memory and so need no packing.
  bool memory_agreed = false;
  // Empty, or one flag per leaf: leaves with 0 are in no bucket. The flags must be the same on all
  // ranks. If the first leaf of an alias group is left out, the next one that is not stands for it.
  absl::Span<const uint8_t> included;
};

// One leaf in a bucket.
struct Slot {
  int64_t leaf = 0;    // index in the layout
  int64_t offset = 0;  // bytes from the begin of the bucket
  int64_t bytes = 0;   // > 0
  friend bool operator==(const Slot&, const Slot&) = default;
};

// One message: leaves of one dtype on one type of device. Slots are in canonical order and do not
// overlap; they are tight unless PlanParams::alignment says otherwise.
struct Bucket {
  c10::DeviceType device = c10::DeviceType::CPU;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<Slot> slots;  // not empty
  int64_t bytes = 0;        // end of the last slot; a multiple of the element size
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketPlan {
  // Ordered by the first leaf of each.
  std::vector<Bucket> buckets;
  // Of the slots of all buckets, without padding.
  int64_t payload_bytes = 0;
  // The sparse leaves that are included, each alias group once: they are in no bucket, the caller
  // handles them one by one.
  std::vector<int64_t> sparse;
  friend bool operator==(const BucketPlan&, const BucketPlan&) = default;
};

// Every included dense leaf with elements is in exactly one bucket, except that an alias group is
// there once, by its first included leaf. Undefined and non-tensor leaves are in none. The plan
// holds no reference to anything.
//
// MaxBytes fills buckets in canonical order, one open bucket per (device type, dtype), and closes a
// bucket when the next leaf does not fit; a leaf larger than the cap does not close it.
//
// Auto minimises, for the leaves of one device type and dtype, the modelled cost
//     messages * message + packed bytes * pack
// (bytes on the wire cost the same whatever the plan is). Packing a leaf of b bytes costs b * pack and
// saves a message, so a leaf of more than message / pack bytes travels alone, where a contiguous
// leaf is not copied at all. The smaller ones, n leaves of S bytes, are packed if
// message + S * pack < n * message, else they travel alone too. The sum is never more than that of
// one message per leaf, nor than that of one bucket of all leaves, whatever the sizes are.
// If packing overlaps transfers, only the first packing and the last unpacking are exposed: k buckets
// cost k * message + S * (pack - (1 - 1 / k) * min(pack, wire)), and the packed leaves are cut into
// the k that makes this least, k = sqrt(S * min(pack, wire) / message), in parts of about equal bytes
// (never more than the leaves allow, never larger than max_packed_bucket_bytes).
// With `memory_agreed`, leaves that lie back to back count as one leaf that needs no packing.
//
// InvalidArgument, naming the value, for a cap <= 0, an alignment that is negative or no power of
// two, a negative cost, or a wrong number of flags.
absl::StatusOr<BucketPlan> MakeBucketPlan(const Layout& layout, Bucketing bucketing,
                                          const PlanParams& params = {});

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_BUCKET_BUCKET_PLAN_H_
