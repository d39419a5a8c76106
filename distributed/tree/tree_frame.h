// Trees that ride in the control channel: what each rank brings to an open call, and how rank 0 joins it.
#ifndef LEAFPACK_DISTRIBUTED_TREE_TREE_FRAME_H_
#define LEAFPACK_DISTRIBUTED_TREE_TREE_FRAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/engine.h"

namespace leafpack::internal {

// What one rank brings. Views point into what was parsed.
struct TreeFrame {
  struct Given {
    absl::uint128 layout_digest = 0;
    std::string_view spec{};  // encoded; empty if `has_specs` is false
    std::string_view values{};
  };
  absl::uint128 soft_digest = 0;
  bool has_specs = false;
  std::optional<absl::uint128> in_place;  // layout digest of the tree to be written here
  std::vector<Given> given;

  // `values` may be left out of `given` and follow as one run.
  std::string Encode(std::string_view all_values) const;
  // Internal for bytes that are no frame.
  static absl::StatusOr<TreeFrame> Parse(std::string_view bytes);
};

// Which of rank `from`'s trees goes to rank `to`.
enum class FrameRouting : uint8_t { kSameToAll, kByRank };

// What rank 0 made of all frames.
struct JoinedFrames {
  // All soft digests agree: of each rank the values only.
  bool equal = false;
  std::vector<std::string_view> values;  // by rank, if equal
  std::vector<TreeFrame> frames;         // by rank, if not

  static absl::StatusOr<JoinedFrames> Parse(std::string_view bytes, int ranks);
};

// Most bytes of a joined result over `ranks` ranks.
int64_t MaxJoinedBytes(int ranks);

// The joiner of such a call. None if trees differ and a rank did not describe its own, if a tree that is
// to be written in place has another layout than what `root` sends (the data phase then tells it), or
// if the result is too large.
FrameJoiner MakeFrameJoiner(FrameRouting routing, int root);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_TREE_FRAME_H_
