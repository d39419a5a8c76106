#include "distributed/tree/tree_frame.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"

#include "distributed/core/byte_io.h"

namespace leafpack::internal {
namespace {

// A result holds a few bytes of its own beside what it joins.
constexpr int64_t kSlack = 256;

void Write(ByteWriter& out, absl::uint128 value) {
  out.U64(absl::Uint128Low64(value));
  out.U64(absl::Uint128High64(value));
}

absl::uint128 Read128(ByteReader& in) {
  const uint64_t low = in.U64();
  const uint64_t high = in.U64();
  return absl::MakeUint128(high, low);
}

absl::Status NoFrame() { return absl::InternalError("a frame of trees that is none"); }

std::string_view View(absl::Span<const char> bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

std::string TreeFrame::Encode(std::string_view all_values) const {
  ByteWriter out;
  Write(out, soft_digest);
  out.U8(has_specs ? 1 : 0);
  out.U8(in_place.has_value() ? 1 : 0);
  Write(out, in_place.value_or(0));
  out.U32(static_cast<uint32_t>(given.size()));
  for (const Given& each : given) {
    Write(out, each.layout_digest);
    out.U32(static_cast<uint32_t>(each.spec.size()));
    out.U32(static_cast<uint32_t>(each.values.size()));
  }
  for (const Given& each : given) out.Raw(each.spec);
  out.Raw(all_values);
  return std::move(out).Take();
}

absl::StatusOr<TreeFrame> TreeFrame::Parse(std::string_view bytes) {
  ByteReader in(bytes);
  TreeFrame frame;
  frame.soft_digest = Read128(in);
  frame.has_specs = in.U8() != 0;
  const bool has_in_place = in.U8() != 0;
  const absl::uint128 in_place = Read128(in);
  if (has_in_place) frame.in_place = in_place;
  const uint32_t count = in.U32();
  constexpr size_t kBytesEach = 24;
  if (!in.ok() || count > in.remaining() / kBytesEach) return NoFrame();
  std::vector<std::pair<uint32_t, uint32_t>> sizes;
  for (uint32_t i = 0; i < count; ++i) {
    frame.given.emplace_back().layout_digest = Read128(in);
    const uint32_t spec = in.U32();
    sizes.emplace_back(spec, in.U32());
  }
  for (uint32_t i = 0; i < count; ++i) frame.given[i].spec = in.Raw(sizes[i].first);
  for (uint32_t i = 0; i < count; ++i) frame.given[i].values = in.Raw(sizes[i].second);
  if (!in.ok() || in.remaining() != 0) return NoFrame();
  return frame;
}

absl::StatusOr<JoinedFrames> JoinedFrames::Parse(std::string_view bytes, int ranks) {
  ByteReader in(bytes);
  JoinedFrames joined;
  joined.equal = in.U8() != 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string_view part = in.String();
    if (!in.ok()) return NoFrame();
    if (joined.equal) {
      joined.values.push_back(part);
      continue;
    }
    absl::StatusOr<TreeFrame> frame = TreeFrame::Parse(part);
    if (!frame.ok()) return frame.status();
    joined.frames.push_back(*std::move(frame));
  }
  if (in.remaining() != 0) return NoFrame();
  return joined;
}

int64_t MaxJoinedBytes(int ranks) {
  const int64_t all_peers = kMaxFrameBytesAllPeers / std::max(ranks - 1, 1);
  return std::min(kMaxFrameBytes, all_peers) - kSlack;
}

FrameJoiner MakeFrameJoiner(FrameRouting routing, int root) {
  return [routing, root](absl::Span<const absl::Span<const char>> payloads)
             -> absl::StatusOr<std::optional<std::string>> {
    std::vector<TreeFrame> frames;
    for (const absl::Span<const char>& payload : payloads) {
      absl::StatusOr<TreeFrame> frame = TreeFrame::Parse(View(payload));
      if (!frame.ok()) return frame.status();
      frames.push_back(*std::move(frame));
    }
    const bool equal = std::all_of(frames.begin(), frames.end(), [&](const TreeFrame& frame) {
      return frame.soft_digest == frames[0].soft_digest;
    });
    ByteWriter out;
    out.U8(equal ? 1 : 0);
    for (size_t rank = 0; rank < frames.size(); ++rank) {
      const TreeFrame& frame = frames[rank];
      if (!equal && !frame.given.empty() && !frame.has_specs) return std::nullopt;
      if (!equal && frame.in_place.has_value()) {
        const std::vector<TreeFrame::Given>& sent = frames[static_cast<size_t>(root)].given;
        const size_t index = routing == FrameRouting::kByRank ? rank : 0;
        if (index >= sent.size() || sent[index].layout_digest != *frame.in_place) {
          return std::nullopt;
        }
      }
      if (!equal) {
        out.String(View(payloads[rank]));
        continue;
      }
      size_t bytes = 0;
      for (const TreeFrame::Given& each : frame.given) bytes += each.values.size();
      out.String(View(payloads[rank]).substr(payloads[rank].size() - bytes));
    }
    if (static_cast<int64_t>(out.size()) > MaxJoinedBytes(static_cast<int>(frames.size()))) {
      return std::nullopt;
    }
    return std::move(out).Take();
  };
}

}  // namespace leafpack::internal
