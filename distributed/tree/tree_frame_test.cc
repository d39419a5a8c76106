#include "distributed/tree/tree_frame.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace leafpack::internal {
namespace {

std::string Frame(absl::uint128 soft, std::vector<std::string_view> values, bool specs = true,
                  std::optional<absl::uint128> in_place = std::nullopt) {
  TreeFrame frame;
  frame.soft_digest = soft;
  frame.has_specs = specs;
  frame.in_place = in_place;
  std::string all;
  for (const std::string_view each : values) {
    frame.given.push_back({.layout_digest = 40 + frame.given.size(),
                           .spec = specs ? "spec" : std::string_view(),
                           .values = each});
    all.append(each);
  }
  return frame.Encode(all);
}

absl::StatusOr<std::optional<std::string>> Join(const std::vector<std::string>& frames,
                                                FrameRouting routing, int root) {
  std::vector<absl::Span<const char>> spans(frames.begin(), frames.end());
  return MakeFrameJoiner(routing, root)(spans);
}

TEST(TreeFrameTest, RoundTrip) {
  const std::string bytes = Frame(absl::MakeUint128(7, 9), {"abc", "", "de"}, true, 5);
  const absl::StatusOr<TreeFrame> frame = TreeFrame::Parse(bytes);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->soft_digest, absl::MakeUint128(7, 9));
  EXPECT_EQ(frame->in_place, 5u);
  ASSERT_EQ(frame->given.size(), 3u);
  EXPECT_EQ(frame->given[0].values, "abc");
  EXPECT_EQ(frame->given[1].values, "");
  EXPECT_EQ(frame->given[2].values, "de");
  EXPECT_EQ(frame->given[2].spec, "spec");
  EXPECT_EQ(frame->given[2].layout_digest, 42u);
}

TEST(TreeFrameTest, WhatIsNoFrameIsRefused) {
  const std::string bytes = Frame(1, {"abc", "de"});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(TreeFrame::Parse(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(TreeFrame::Parse(bytes + "x").ok());
  std::string huge = bytes;
  huge.replace(34, 4, "\xff\xff\xff\xff");  // the number of trees
  EXPECT_FALSE(TreeFrame::Parse(huge).ok());
  EXPECT_FALSE(Join({bytes, "nonsense"}, FrameRouting::kSameToAll, -1).ok());
}

TEST(TreeFrameTest, EqualTreesAreJoinedWithoutTheirDescriptions) {
  const auto joined = Join({Frame(3, {"ab"}), Frame(3, {"cd"}, /*specs=*/false), Frame(3, {})},
                           FrameRouting::kSameToAll, -1);
  ASSERT_TRUE(joined.ok() && joined->has_value());
  EXPECT_EQ((*joined)->find("spec"), std::string::npos);
  const absl::StatusOr<JoinedFrames> parsed = JoinedFrames::Parse(**joined, 3);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->equal);
  EXPECT_EQ(parsed->values, (std::vector<std::string_view>{"ab", "cd", ""}));
  EXPECT_FALSE(JoinedFrames::Parse(**joined, 2).ok());
  EXPECT_FALSE(JoinedFrames::Parse(**joined, 4).ok());
}

TEST(TreeFrameTest, TreesThatDifferAreJoinedWithTheirDescriptions) {
  const auto joined =
      Join({Frame(1, {"ab"}), Frame(2, {"cde"})}, FrameRouting::kSameToAll, -1);
  ASSERT_TRUE(joined.ok() && joined->has_value());
  const absl::StatusOr<JoinedFrames> parsed = JoinedFrames::Parse(**joined, 2);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->equal);
  EXPECT_EQ(parsed->frames[1].given[0].spec, "spec");
  EXPECT_EQ(parsed->frames[1].given[0].values, "cde");
}

TEST(TreeFrameTest, WhatTheDataPhaseMustSettleIsNotJoined) {
  // Trees that differ, one without its description.
  auto joined = Join({Frame(1, {"ab"}), Frame(2, {"cd"}, /*specs=*/false)},
                     FrameRouting::kSameToAll, -1);
  ASSERT_TRUE(joined.ok());
  EXPECT_FALSE(joined->has_value());
  // A tree that is written in place and has another layout than what is sent; one that has the same.
  joined = Join({Frame(1, {"ab"}), Frame(2, {}, true, 99)}, FrameRouting::kSameToAll, 0);
  ASSERT_TRUE(joined.ok());
  EXPECT_FALSE(joined->has_value());
  joined = Join({Frame(1, {"ab", "cd"}), Frame(2, {}, true, 41)}, FrameRouting::kByRank, 0);
  ASSERT_TRUE(joined.ok());
  EXPECT_TRUE(joined->has_value());
  // Too much.
  const std::string much(60 << 10, 'x');
  joined = Join({Frame(1, {much}), Frame(1, {much})}, FrameRouting::kSameToAll, -1);
  ASSERT_TRUE(joined.ok());
  EXPECT_FALSE(joined->has_value());
}

}  // namespace
}  // namespace leafpack::internal
