// SpreadSchedule: how a tree comes from a root to many ranks without the root sending all of it to each.
// The root deals out every run of bytes in parts, one to each receiver, and the receivers pass their parts
// on to each other. Some runs are passed on while later ones are dealt.
#ifndef LEAFPACK_DISTRIBUTED_TREE_SPREAD_SCHEDULE_H_
#define LEAFPACK_DISTRIBUTED_TREE_SPREAD_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "distributed/core/backend.h"
#include "tensordict/bucket/packer.h"

namespace leafpack::internal {

// With more than two ranks, worth it from so many bytes on: below, messages cost more than bytes.
inline constexpr int64_t kMinSpreadBytes = int64_t{1} << 20;

// Bytes [begin, end) of some buckets that lie one behind another.
struct SpreadRun {
  std::shared_ptr<const std::vector<std::shared_ptr<PackedBucket>>> buckets;
  int64_t begin = 0;
  int64_t end = 0;
};

// What one rank sends and receives. Exchange k deals out run k and passes on run k - kLag, so it may
// start once exchange k - kLag is over.
class SpreadSchedule {
 public:
  static constexpr size_t kLag = 2;

  // `ranks` > 2.
  SpreadSchedule(int rank, int ranks, int root) : rank_(rank), ranks_(ranks), root_(root) {}

  struct Transfers {
    std::vector<Transfer> sends;     // by rising peer
    std::vector<Transfer> receives;  // by rising peer
  };
  // One exchange; null: there is no such run.
  Transfers Exchange(const SpreadRun* dealt, const SpreadRun* passed_on) const;

  // The bytes that `receiver` is dealt of [begin, end): they are cut into ranks - 1 parts in their order.
  std::pair<int64_t, int64_t> PartOf(int receiver, int64_t begin, int64_t end) const;

 private:
  std::vector<LeafView> Part(const SpreadRun& run, int receiver) const;

  const int rank_;
  const int ranks_;
  const int root_;
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_SPREAD_SCHEDULE_H_
