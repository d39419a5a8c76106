#include "distributed/core/error.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

TEST(ErrorDetailsTest, SurviveTheStatusAndItsAnnotation) {
  ErrorDetails details;
  details.kind = ErrorKind::kPeerLost;
  details.path = std::string("a\0b", 3);
  details.ranks = {GlobalRank(3), GlobalRank(7)};
  details.paths_done = {"x", "", "y/z"};
  details.tree_unchanged = false;
  details.outcome_unknown = true;
  const absl::Status status = AnnotateStatus(
      WithErrorDetails(absl::UnavailableError("gone"), details), "all_reduce 'grads'");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "all_reduce 'grads': gone");
  const ErrorDetails read = GetErrorDetails(status);
  EXPECT_EQ(read.kind, details.kind);
  EXPECT_EQ(read.path, details.path);
  EXPECT_EQ(read.ranks, details.ranks);
  EXPECT_EQ(read.paths_done, details.paths_done);
  EXPECT_FALSE(read.tree_unchanged);
  EXPECT_TRUE(read.outcome_unknown);
}

TEST(ErrorDetailsTest, AreDefaultsWhereThereAreNone) {
  const ErrorDetails details = GetErrorDetails(absl::InternalError("bug"));
  EXPECT_EQ(details.kind, ErrorKind::kOther);
  EXPECT_TRUE(details.ranks.empty());
  EXPECT_TRUE(details.tree_unchanged);
  EXPECT_TRUE(WithErrorDetails(absl::OkStatus(), details).ok());
}

TEST(ErrorDetailsTest, HaveThePathThatATreeAttached) {
  absl::Status status = absl::InvalidArgumentError("x");
  status.SetPayload("leafpack/Path", absl::Cord("a.b"));
  EXPECT_EQ(GetErrorDetails(AnnotateStatus(status, "all_reduce")).path, "a.b");
  EXPECT_EQ(GetErrorDetails(WithErrorDetails(status, {})).path, "a.b");
  EXPECT_EQ(GetErrorDetails(WithErrorDetails(status, {.path = "c"})).path, "c");
  EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kOther);
  absl::Status kind = absl::UnimplementedError("nested");
  kind.SetPayload("leafpack/Path", absl::Cord("a.b"));
  EXPECT_EQ(GetErrorDetails(kind).kind, ErrorKind::kUnsupported);
}

TEST(ErrorDetailsTest, DamagedPayloadDoesNotReadPastItsEnd) {
  absl::Status status = WithErrorDetails(absl::InternalError("x"), ErrorDetails{.path = "p"});
  status.SetPayload("leafpack/ErrorDetails", absl::Cord(std::string(13, '\xff')));
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_TRUE(details.ranks.empty());
  EXPECT_TRUE(details.path.empty());
}

TEST(FormatRanksTest, ReadsAsASentence) {
  EXPECT_EQ(FormatRanks({}), "no rank");
  EXPECT_EQ(FormatRanks({GlobalRank(3)}), "rank 3");
  EXPECT_EQ(FormatRanks({GlobalRank(1), GlobalRank(2)}), "ranks 1 and 2");
  EXPECT_EQ(FormatRanks({GlobalRank(0), GlobalRank(2), GlobalRank(5)}), "ranks 0, 2 and 5");
}

}  // namespace
}  // namespace leafpack
