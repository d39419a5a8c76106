// Strong types for the two ways to number a process: by its place in a group and by its place in
// the whole job. A function that takes one does not accept the other.
#ifndef LEAFPACK_DISTRIBUTED_CORE_RANK_H_
#define LEAFPACK_DISTRIBUTED_CORE_RANK_H_

#include <compare>
#include <cstdint>
#include <string>

namespace leafpack {

// Rank of a process within one group: 0 .. group size - 1.
class GroupRank {
 public:
  constexpr explicit GroupRank(int value) : value_(value) {}
  constexpr int value() const { return value_; }
  friend constexpr auto operator<=>(GroupRank, GroupRank) = default;
  template <typename H>
  friend H AbslHashValue(H h, GroupRank r) {
    return H::combine(std::move(h), r.value_);
  }

 private:
  int value_;
};

// Rank of a process within the job (RANK of the launcher). Errors shown to users speak of these.
class GlobalRank {
 public:
  constexpr explicit GlobalRank(int value) : value_(value) {}
  constexpr int value() const { return value_; }
  friend constexpr auto operator<=>(GlobalRank, GlobalRank) = default;
  template <typename H>
  friend H AbslHashValue(H h, GlobalRank r) {
    return H::combine(std::move(h), r.value_);
  }

 private:
  int value_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_RANK_H_
