// Single cases of the protocol: agreement, frames, refusals, withdrawal, descriptions, windows,
// connecting late.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "distributed/core/protocol/test_group.h"
#include "gtest/gtest.h"

namespace leafpack::protocol {
namespace {

using testing::Test;
constexpr SteadyNanos kMs = kMillisecond;

std::vector<uint32_t> Ranks(std::initializer_list<uint32_t> ranks) { return ranks; }

TEST(AgreementTest, FrameIsReducedInRankOrderAndEqualOnAllRanks) {
  TestGroup group(3);
  for (uint32_t r = 0; r < 3; ++r)
    group.Issue(r, TestGroup::Frame(std::string(1, static_cast<char>(r + 1))));
  for (uint32_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(group.End(r, 1).ok()) << group.End(r, 1).text;
    EXPECT_EQ(*group.End(r, 1).frame, std::string(1, 6));
    EXPECT_EQ(group.End(r, 1).tree, TreeState::kComplete);
  }
  EXPECT_EQ(group.coordinator->table_size(), 0u);
}

TEST(AgreementTest, DataIsGrantedOnlyWhenAllAreIn) {
  TestGroup group(3);
  group.Issue(0, TestGroup::Data());
  group.Issue(2, TestGroup::Data());
  EXPECT_TRUE(group.ranks[0].granted.empty());
  group.Issue(1, TestGroup::Data());
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(group.Granted(r, 1));
    group.DataDone(r, 1);
    EXPECT_TRUE(group.End(r, 1).ok());
  }
  EXPECT_EQ(group.coordinator->table_size(), 0u);
}

TEST(AgreementTest, EmptyFrame) {
  TestGroup group(2);
  group.IssueAll(TestGroup::Frame(""));
  EXPECT_TRUE(group.End(1, 1).ok());
  EXPECT_EQ(*group.End(1, 1).frame, "");
}

absl::StatusOr<FrameOutcome> Join(absl::Span<const std::string_view> payloads) {
  std::string joined;
  for (const std::string_view payload : payloads) joined.append(payload);
  return joined;
}

TEST(OpenCallTest, IsAFrameWhenAllBringOne) {
  TestGroup group(3);
  group.join = Join;
  group.Issue(0, TestGroup::OpenCall("a"));
  group.Issue(1, TestGroup::OpenCall(""));
  group.Issue(2, TestGroup::OpenCall("bcd"));
  for (uint32_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(group.End(r, 1).ok()) << group.End(r, 1).text;
    EXPECT_EQ(*group.End(r, 1).frame, "abcd");
    EXPECT_FALSE(group.Granted(r, 1));
  }
  EXPECT_TRUE(group.dropped.empty());
  group.join = nullptr;
  group.ExpectUsable();
}

TEST(OpenCallTest, IsADataCallWhenOneBringsNone) {
  TestGroup group(3);
  group.join = Join;
  group.Issue(0, TestGroup::OpenCall("a"));
  group.Issue(1, TestGroup::OpenCall(std::nullopt));
  group.Issue(2, TestGroup::OpenCall("b"));
  for (uint32_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(group.Granted(r, 1));
    group.DataDone(r, 1);
    ASSERT_TRUE(group.End(r, 1).ok());
    EXPECT_EQ(group.End(r, 1).frame, nullptr);
  }
  group.join = nullptr;
  group.ExpectUsable();
}

TEST(OpenCallTest, IsADataCallWhenTheResultIsTooLarge) {
  TestGroup group(2);
  group.join = Join;
  group.Issue(0, TestGroup::OpenCall(std::string(kMaxFramePayload, 'x')));
  group.Issue(1, TestGroup::OpenCall("y"));
  for (uint32_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(group.Granted(r, 1));
    group.DataDone(r, 1);
    EXPECT_TRUE(group.End(r, 1).ok());
  }
}

TEST(OpenCallTest, IsADataCallWhenTheJoinerSaysSo) {
  TestGroup group(2);
  group.join = [](absl::Span<const std::string_view>) -> absl::StatusOr<FrameOutcome> {
    return std::nullopt;
  };
  group.IssueAll(TestGroup::OpenCall("a"));
  for (uint32_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(group.Granted(r, 1));
    group.DataDone(r, 1);
    EXPECT_TRUE(group.End(r, 1).ok());
  }
}

TEST(OpenCallTest, KeepsItsCompletionRoundAsADataCallOnly) {
  TestGroup group(2);
  group.join = Join;
  CallSpec with = TestGroup::OpenCall("a");
  CallSpec without = TestGroup::OpenCall(std::nullopt);
  with.restore = without.restore = true;
  group.Issue(0, with);
  group.Issue(1, with);
  EXPECT_TRUE(group.End(0, 1).ok());
  group.Issue(0, with);
  group.Issue(1, without);
  group.DataDone(0, 2);
  EXPECT_FALSE(group.Ended(0, 2));
  group.DataDone(1, 2);
  EXPECT_TRUE(group.End(0, 2).ok());
  EXPECT_TRUE(group.End(1, 2).ok());
}

TEST(OpenCallTest, EndsAsMismatchWhenTheJoinerFindsOne) {
  TestGroup group(3);
  group.join = [](absl::Span<const std::string_view>) -> absl::StatusOr<FrameOutcome> {
    DecideBody body;
    body.ranks = {2};
    body.text = "rank 2 has another tree";
    body.path = "a.b";
    return body;
  };
  group.IssueAll(TestGroup::OpenCall("a"));
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(group.End(r, 1).kind, OutcomeKind::kMismatch);
    EXPECT_EQ(group.End(r, 1).tree, TreeState::kUnchanged);
    EXPECT_EQ(group.End(r, 1).ranks, Ranks({2}));
    EXPECT_EQ(group.End(r, 1).path, "a.b");
    EXPECT_NE(group.End(r, 1).text.find("another tree"), std::string::npos);
  }
  group.join = nullptr;
  group.ExpectUsable();
}

TEST(OpenCallTest, DoesNotPairWithAFrame) {
  TestGroup group(2);
  group.join = Join;
  CallSpec frame = TestGroup::Frame("a");
  CallSpec open = TestGroup::OpenCall("a");
  open.digest = frame.digest;
  group.Issue(0, frame);
  group.Issue(1, open);
  group.Withdraw(0, 1);
  for (uint32_t r = 0; r < 2; ++r) EXPECT_EQ(group.End(r, 1).kind, OutcomeKind::kMismatch);
}

TEST(AgreementTest, RestoreCallEndsOnCommit) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Restore());
  group.DataDone(0, 1);
  group.DataDone(1, 1);
  EXPECT_FALSE(group.Ended(0, 1));
  group.DataDone(2, 1);
  for (uint32_t r = 0; r < 3; ++r) EXPECT_TRUE(group.End(r, 1).ok());
  EXPECT_EQ(group.coordinator->table_size(), 0u);
}

TEST(RefusalTest, RefuserDoesNotWaitAndOthersReadItsReason) {
  TestGroup group(3);
  group.Refuse(1, "leaf a overlaps itself");
  group.Issue(0, TestGroup::Data());
  EXPECT_FALSE(group.Ended(0, 1));
  group.Issue(2, TestGroup::Data());
  for (const uint32_t r : {0u, 2u}) {
    EXPECT_EQ(group.End(r, 1).kind, OutcomeKind::kPeerRefused);
    EXPECT_EQ(group.End(r, 1).code, absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(group.End(r, 1).tree, TreeState::kUnchanged);
    EXPECT_EQ(group.End(r, 1).ranks, Ranks({1}));
    EXPECT_EQ(group.End(r, 1).text, "call 1: rank 1 refused it: leaf a overlaps itself");
  }
  EXPECT_EQ(group.ranks[1].machine->in_flight(), 0u);
  group.ExpectUsable();
}

TEST(RefusalTest, ReportDoesNotDependOnTheOrderOfArrival) {
  std::vector<std::string> texts;
  for (const bool first : {true, false}) {
    TestGroup group(4);
    if (first) group.Refuse(2, "x");
    group.Refuse(1, "y");
    group.Issue(0, TestGroup::Data());
    if (!first) group.Refuse(2, "x");
    group.Issue(3, TestGroup::Data());
    texts.push_back(group.End(3, 1).text);
    EXPECT_EQ(group.End(3, 1).ranks, Ranks({1, 2}));
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(WithdrawTest, DeadlineBeforeTheLastPost) {
  TestGroup group(3);
  group.Issue(0, TestGroup::Data());
  group.Issue(1, TestGroup::Data(1, group.now + 5 * kMs));
  group.Advance(6 * kMs);
  for (const uint32_t r : {0u, 1u}) {
    EXPECT_EQ(group.End(r, 1).kind, OutcomeKind::kDeadline);
    EXPECT_EQ(group.End(r, 1).code, absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(group.End(r, 1).ranks, Ranks({2}));
    EXPECT_EQ(group.End(r, 1).tree, TreeState::kUnchanged);
  }
  EXPECT_EQ(group.End(0, 1).text, "call 1: deadline exceeded on rank 1; rank 2 had not called it");
  // The late rank is answered from the table.
  group.Issue(2, TestGroup::Data());
  EXPECT_EQ(group.End(2, 1).kind, OutcomeKind::kGivenUp);
  EXPECT_EQ(group.End(2, 1).code, absl::StatusCode::kCancelled);
  EXPECT_EQ(group.End(2, 1).ranks, Ranks({1}));
  EXPECT_EQ(group.coordinator->table_size(), 0u);
  group.ExpectUsable();
}

TEST(WithdrawTest, InterruptNamesTheRank) {
  for (const uint32_t who : {0u, 1u}) {
    TestGroup group(3);
    group.Issue(0, TestGroup::Data());
    group.Issue(1, TestGroup::Data());
    group.Withdraw(who, 1);
    EXPECT_EQ(group.End(who, 1).kind, OutcomeKind::kInterrupted);
    EXPECT_EQ(group.End(who, 1).ranks, Ranks({2}));  // whom it waited for
    EXPECT_EQ(group.End(1 - who, 1).kind, OutcomeKind::kGivenUp);
    EXPECT_EQ(group.End(1 - who, 1).ranks, Ranks({who}));
    group.Issue(2, TestGroup::Data());
    EXPECT_EQ(group.End(2, 1).kind, OutcomeKind::kGivenUp);
    group.ExpectUsable();
  }
}

TEST(WithdrawTest, AfterOkTheRankObeys) {
  TestGroup group(2);
  group.ranks[1].hold_in = true;
  group.Issue(1, TestGroup::Frame("\x01", group.now + 5 * kMs));
  group.Issue(0, TestGroup::Frame());
  group.Issue(1, TestGroup::Data(1, group.now + 5 * kMs));
  group.Issue(0, TestGroup::Data());
  group.Advance(6 * kMs);  // WITHDRAW of both crosses OK
  EXPECT_FALSE(group.Ended(1, 1));
  group.ranks[1].hold_in = false;
  group.Pump();
  EXPECT_TRUE(group.End(1, 1).ok());
  EXPECT_TRUE(group.Granted(1, 2));
  // A grant that crosses the deadline may use kGrace.
  group.Advance(kGrace / 2);
  EXPECT_FALSE(group.Ended(1, 2));
  group.DataDone(0, 2);
  group.DataDone(1, 2);
  EXPECT_TRUE(group.End(1, 2).ok());
  group.ExpectUsable();
}

TEST(WithdrawTest, AfterARefusalItIsRefused) {
  TestGroup group(3);
  group.Refuse(1, "no");
  group.Issue(0, TestGroup::Data(1, group.now + kMs));
  group.Advance(2 * kMs);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kPeerRefused);
  group.Issue(2, TestGroup::Data());
  EXPECT_EQ(group.End(2, 1).kind, OutcomeKind::kPeerRefused);
  group.ExpectUsable();
}

TEST(WithdrawTest, SecondWithdrawReadsTheFirstDecision) {
  TestGroup group(3);
  group.ranks[0].hold_in = group.ranks[1].hold_in = true;
  group.Issue(0, TestGroup::Data(1, group.now + kMs));
  group.Issue(1, TestGroup::Data(1, group.now + 2 * kMs));
  group.Advance(3 * kMs);
  group.ranks[0].hold_in = group.ranks[1].hold_in = false;
  group.Pump();
  EXPECT_EQ(group.End(0, 1).ranks, Ranks({2}));
  EXPECT_EQ(group.End(1, 1).text, "call 1: deadline exceeded on rank 0; rank 2 had not called it");
}

TEST(WithdrawTest, DecisionsThatSlowRanksHaveYetToReadAreKeptAsRuns) {
  TestGroup group(2);
  for (int i = 0; i < 5000; ++i) {
    const uint64_t call = group.Issue(0, TestGroup::Data(1, group.now + kMs));
    group.Advance(2 * kMs);
    ASSERT_EQ(group.End(0, call).kind, OutcomeKind::kDeadline);
  }
  EXPECT_EQ(group.coordinator->table_size(), 1u);
  for (int i = 0; i < 5000; ++i) group.Issue(1, TestGroup::Data());
  EXPECT_EQ(group.End(1, 5000).kind, OutcomeKind::kGivenUp);
  group.ExpectUsable();
}

TEST(WithdrawTest, TooManyDifferentDecisionsAreMerged) {
  TestGroup group(3);
  for (int i = 0; i < 3 * static_cast<int>(kMaxRuns); ++i) {
    const uint32_t by = static_cast<uint32_t>(i % 2);  // the decisions differ in who gave up
    const uint64_t call = group.Issue(by, TestGroup::Data(1, group.now + kMs));
    group.Advance(2 * kMs);
    ASSERT_TRUE(group.Ended(by, call));
    group.Issue(1 - by, TestGroup::Data(1));
    ASSERT_TRUE(group.Ended(1 - by, call));
  }
  EXPECT_LE(group.coordinator->table_size(), kMaxRuns);
  for (int i = 0; i < 3 * static_cast<int>(kMaxRuns); ++i) {
    const uint64_t call = group.Issue(2, TestGroup::Data());
    ASSERT_TRUE(group.Ended(2, call));
    ASSERT_FALSE(group.End(2, call).ok());
  }
  EXPECT_EQ(group.End(2, 3 * kMaxRuns).kind, OutcomeKind::kGivenUp);
  group.ExpectUsable();
}

// ---- Differences ----

std::string Description(const std::string& path) {
  return EncodeManifest(
      {ManifestEntry{true, "op", "op", "sum"}, ManifestEntry{false, path, path, "float32 [3]"}});
}

TEST(MismatchTest, NamesTheFirstDifference) {
  TestGroup group(3);
  group.manifests = {Description("k8"), Description("k9"), Description("k9")};
  group.Issue(0, TestGroup::Data(1));
  group.Issue(1, TestGroup::Data(2));
  EXPECT_FALSE(group.Ended(0, 1));
  group.Issue(2, TestGroup::Data(2));
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(group.End(r, 1).kind, OutcomeKind::kMismatch);
    EXPECT_EQ(group.End(r, 1).code, absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(group.End(r, 1).tree, TreeState::kUnchanged);
    EXPECT_EQ(group.End(r, 1).path, "k8");
    EXPECT_EQ(group.End(r, 1).ranks, Ranks({0}));
    EXPECT_EQ(group.End(r, 1).text,
              "call 1: rank 0 has k8 (float32 [3]), ranks 1 and 2 have k9 (float32 [3])");
  }
  // Only the lowest rank of each side was asked.
  EXPECT_EQ(group.ranks[2].wanted, 0u);
  group.ExpectUsable();
}

TEST(MismatchTest, LongDescriptionsTravelInChunks) {
  TestGroup group(2);
  std::vector<ManifestEntry> entries;
  for (int i = 0; i < 20000; ++i)
    entries.push_back(
        {false, "leaf" + std::to_string(i), "leaf" + std::to_string(i), "float32 [3]"});
  group.manifests = {EncodeManifest(entries), ""};
  entries.back().value = "float32 [4]";
  group.manifests[1] = EncodeManifest(entries);
  ASSERT_GT(group.manifests[0].size(), 8 * kManifestChunk);
  group.Issue(0, TestGroup::Data(1));
  group.Issue(1, TestGroup::Data(2));
  EXPECT_EQ(group.End(1, 1).text,
            "call 1: rank 0 has leaf19999 (float32 [3]), rank 1 has leaf19999 (float32 [4])");
  group.ExpectUsable();
}

TEST(MismatchTest, OneCallBehindIsSaid) {
  TestGroup group(2);
  group.manifests = {Description("x"), Description("y")};
  for (const uint64_t digest : {11, 12, 13}) {
    group.IssueAll(TestGroup::Data(digest));
    group.DataDone(0, group.ranks[0].machine->issued());
    group.DataDone(1, group.ranks[1].machine->issued());
  }
  group.Issue(0, TestGroup::Data(14));
  group.Issue(1, TestGroup::Data(13));
  EXPECT_NE(group.End(0, 4).text.find("; rank 1 is one call behind rank 0"), std::string::npos)
      << group.End(0, 4).text;
}

// A call that all made together a few calls ago, and one rank makes again where the others make a new one.
TEST(MismatchTest, ARankThatMakesAnAgreedCallAgainIsNotSaidToBeBehind) {
  TestGroup group(2);
  group.manifests = {Description("x"), Description("y")};
  for (const uint64_t digest : {11, 12, 13, 14}) {
    group.IssueAll(TestGroup::Data(digest));
    group.DataDone(0, group.ranks[0].machine->issued());
    group.DataDone(1, group.ranks[1].machine->issued());
  }
  group.Issue(0, TestGroup::Data(13));
  group.Issue(1, TestGroup::Data(99));
  EXPECT_EQ(group.End(0, 5).text.find("behind"), std::string::npos) << group.End(0, 5).text;
}

// Steps of one kind, and one rank that does something else once: nobody is behind.
TEST(MismatchTest, ARankThatRepeatsItsCallIsNotSaidToBeBehind) {
  for (const uint64_t period : {1, 2, 3}) {
    for (const uint64_t calls : {period, 2 * period, 6 * period}) {
      TestGroup group(2);
      group.manifests = {Description("x"), Description("y")};
      for (uint64_t call = 0; call < calls; ++call) {
        group.IssueAll(TestGroup::Data(11 + call % period));
        group.DataDone(0, group.ranks[0].machine->issued());
        group.DataDone(1, group.ranks[1].machine->issued());
      }
      group.Issue(0, TestGroup::Data(99));
      group.Issue(1, TestGroup::Data(11 + calls % period));
      EXPECT_EQ(group.End(0, calls + 1).text.find("behind"), std::string::npos)
          << "period " << period << ": " << group.End(0, calls + 1).text;
    }
  }
}

// The description of call 1, from a rank of a group whose machines give none.
void Say(TestGroup& group, uint32_t r, const std::string& description) {
  Record record;
  record.type = RecordType::kManifest;
  record.flags = kFlagLast;
  record.rank = r;
  record.call = 1;
  record.body = description;
  group.Inject(r, std::move(record));
}

// Two sides are enough for a report, but not before a second has passed.
TEST(MismatchTest, ASideThatSaysNothingIsWaitedForASecond) {
  TestGroup group(3);
  for (uint32_t r = 0; r < 3; ++r) group.Issue(r, TestGroup::Data(1 + r));
  Say(group, 0, Description("k8"));
  Say(group, 1, Description("k9"));
  group.Advance(kCollectTime - kMs);
  EXPECT_FALSE(group.Ended(0, 1));
  group.Advance(2 * kMs);
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(group.End(r, 1).kind, OutcomeKind::kMismatch);
    EXPECT_EQ(group.End(r, 1).path, "k8");
  }
  group.ExpectUsable();
}

// One side alone names no difference: the other one has until the deadline.
TEST(MismatchTest, ALateDescriptionCountsUntilTheDeadline) {
  for (const SteadyNanos late : {kCollectTime / 2, 30 * kCollectTime}) {
    TestGroup group(2);
    group.Issue(0, TestGroup::Data(1));
    group.Issue(1, TestGroup::Data(2));
    Say(group, 0, Description("k8"));
    group.Advance(late);
    EXPECT_FALSE(group.Ended(0, 1));
    Say(group, 1, Description("k9"));
    EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kMismatch);
    EXPECT_EQ(group.End(0, 1).path, "k8");
    group.ExpectUsable();
  }
}

TEST(MismatchTest, WithoutDescriptionsItEndsAtTheDeadline) {
  TestGroup group(2);
  group.Issue(0, TestGroup::Data(1, group.now + 5 * kCollectTime));
  group.Issue(1, TestGroup::Data(2));
  group.Advance(5 * kCollectTime - kMs);
  EXPECT_FALSE(group.Ended(0, 1));
  group.Advance(2 * kMs);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kMismatch);
  EXPECT_NE(group.End(0, 1).text.find("no description came from ranks 0 and 1"), std::string::npos)
      << group.End(0, 1).text;
  group.ExpectUsable();
}

TEST(MismatchTest, DeadlineOrLossEndsTheCollecting) {
  TestGroup group(2);
  group.Issue(0, TestGroup::Data(1));
  group.Issue(1, TestGroup::Data(2, group.now + 5 * kMs));
  group.Advance(6 * kMs);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kMismatch);
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kMismatch);
  group.ExpectUsable();

  TestGroup other(3);
  other.Issue(0, TestGroup::Data(1));
  other.Issue(1, TestGroup::Data(2));
  other.Issue(2, TestGroup::Data(1));
  other.Kill(1);
  EXPECT_EQ(other.End(0, 1).kind, OutcomeKind::kMismatch);
  EXPECT_EQ(other.End(2, 1).kind, OutcomeKind::kMismatch);
}

TEST(MismatchTest, BadDescriptionsAreIgnored) {
  TestGroup group(2);
  group.manifests = {"rubbish", Description("y")};
  group.Issue(0, TestGroup::Data(1));
  group.Issue(1, TestGroup::Data(2));
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kMismatch);
  group.ExpectUsable();
}

// ---- Queues, windows, bad peers ----

TEST(ConnectTest, RetractsWhatHasNotLeft) {
  TestGroup group(2, /*open=*/false);
  group.Open(0);
  group.Issue(1, TestGroup::Data(1, group.now + 10 * kMs));
  group.Issue(1, TestGroup::Data(1));
  group.Advance(11 * kMs);
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kDeadline);
  EXPECT_EQ(group.End(1, 1).ranks, Ranks({0}));
  EXPECT_FALSE(group.End(1, 1).outcome_unknown);
  group.Withdraw(1, 2);
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kInterrupted);
  group.Issue(0, TestGroup::Data());
  group.Issue(0, TestGroup::Data());
  group.Open(1);
  group.Pump();
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kGivenUp);
  EXPECT_EQ(group.End(0, 1).ranks, Ranks({1}));
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kGivenUp);
  group.ExpectUsable();
}

TEST(ConnectTest, ARankThatNeverConnectedIsNamedAsMissing) {
  TestGroup group(3, /*open=*/false);
  group.Open(0);
  group.Open(1);
  group.Issue(1, TestGroup::Data());
  group.Issue(0, TestGroup::Data(1, group.now + kMs));
  group.Advance(2 * kMs);
  EXPECT_EQ(group.End(1, 1).ranks, Ranks({2}));
  EXPECT_NE(group.End(0, 1).text.find("rank 2 has not connected yet"), std::string::npos)
      << group.End(0, 1).text;
}

TEST(WindowTest, SixtyFourUndecidedCallsThenPostsWait) {
  TestGroup group(2);
  for (int i = 0; i < 100; ++i)
    group.Issue(1, TestGroup::Data(1, i == 99 ? group.now + kMs : kNever));
  EXPECT_EQ(group.ranks[1].machine->posts_waiting(), 36u);
  EXPECT_EQ(group.ranks[1].sent.size(), kMaxUndecided);
  // One that waits still has its deadline, and ends without asking.
  group.Advance(2 * kMs);
  EXPECT_EQ(group.End(1, 100).kind, OutcomeKind::kDeadline);
  for (int i = 0; i < 100; ++i) group.Issue(0, TestGroup::Data());
  EXPECT_TRUE(group.dropped.empty());
  EXPECT_TRUE(group.Granted(1, 99));
  EXPECT_EQ(group.End(0, 100).kind, OutcomeKind::kGivenUp);
  EXPECT_EQ(group.ranks[1].machine->posts_waiting(), 0u);
}

TEST(WindowTest, OneMebibyteOfFrames) {
  TestGroup group(2);
  for (int i = 0; i < 40; ++i) group.Issue(1, TestGroup::Frame(std::string(kMaxFramePayload, 'x')));
  EXPECT_EQ(group.ranks[1].sent.size(), kMaxUndecidedPayload / kMaxFramePayload);
  for (int i = 0; i < 40; ++i) group.Issue(0, TestGroup::Frame(std::string(kMaxFramePayload, 'x')));
  for (uint64_t call = 1; call <= 40; ++call) ASSERT_TRUE(group.End(1, call).ok());
  EXPECT_TRUE(group.dropped.empty());
}

Record Agree(uint32_t rank, uint64_t call, std::string body = EncodeSoftDigest({})) {
  Record record;
  record.type = RecordType::kAgree;
  record.rank = rank;
  record.call = call;
  record.body = std::move(body);
  return record;
}

void ExpectDropped(Record record, const std::string& says) {
  TestGroup group(3);
  group.Issue(0, TestGroup::Data());
  group.Inject(1, std::move(record));
  ASSERT_TRUE(group.dropped.contains(1)) << says;
  EXPECT_NE(group.dropped[1].find(says), std::string::npos) << group.dropped[1];
  // The others are told why, and the call is LOST.
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kLost);
  EXPECT_EQ(group.End(0, 1).ranks, Ranks({1}));
  EXPECT_NE(group.End(0, 1).text.find(says), std::string::npos) << group.End(0, 1).text;
  EXPECT_FALSE(group.ranks[2].machine->Availability().ok());
}

TEST(BadPeerTest, IsDroppedWithTheReason) {
  ExpectDropped(Agree(1, 2), "AGREE of call 2 after call 0");
  ExpectDropped(Agree(1, 0), "AGREE of call 0 after call 0");
  ExpectDropped(Agree(2, 1), "names another rank");
  Record record = Agree(1, 1, "short");
  ExpectDropped(record, "too short");
  record = Agree(1, 1);
  record.epoch = 7;
  ExpectDropped(record, "epoch that does not exist");
  record = Agree(1, 1);
  record.flags = kFlagGap;  // of nothing
  ExpectDropped(record, "AGREE of call 1 after call 0");
  record = Agree(1, 1, "");
  record.type = RecordType::kCommit;
  ExpectDropped(record, "only the coordinator sends");
  record.type = RecordType::kWithdraw;
  ExpectDropped(record, "WITHDRAW of call 1 after call 0");
}

TEST(BadPeerTest, FrameOfAnotherLengthDropsThePeer) {
  TestGroup group(3);
  group.Issue(0, TestGroup::Frame("\x01"));
  group.Issue(1, TestGroup::Frame("\x01\x02"));
  group.Issue(2, TestGroup::Frame("\x01"));
  EXPECT_TRUE(group.dropped.contains(1));
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kLost);
  EXPECT_EQ(group.End(2, 1).ranks, Ranks({1}));
}

TEST(BadPeerTest, WindowIsEnforced) {
  TestGroup group(2);
  for (uint64_t call = 1; call <= kMaxUndecided; ++call) group.Inject(1, Agree(1, call));
  EXPECT_TRUE(group.dropped.empty());
  group.Inject(1, Agree(1, kMaxUndecided + 1));
  EXPECT_TRUE(group.dropped.contains(1));
}

TEST(BadPeerTest, ARankDoesNotBelieveTheCoordinatorEither) {
  RankMachine machine({1, 2, nullptr, Mutation::kNone});
  RankActions out;
  machine.OnChannelOpen(0, out);
  Record record;
  record.type = RecordType::kDecide;
  record.call = 1;
  EXPECT_FALSE(machine.OnRecord(record, 0, out).ok());  // of a call that was not issued
  machine.Issue(TestGroup::Data(), 0, out);
  EXPECT_FALSE(machine.OnRecord(record, 0, out).ok());  // of a call that was not posted
  ASSERT_TRUE(machine.TakeOutgoing().has_value());
  record.epoch = 3;
  EXPECT_FALSE(machine.OnRecord(record, 0, out).ok());  // of another epoch
  record.epoch = 0;
  EXPECT_TRUE(machine.OnRecord(record, 0, out).ok());
  EXPECT_FALSE(machine.OnRecord(record, 0, out).ok());  // twice
  record.type = RecordType::kAbort;
  record.body = EncodeAbort({});
  EXPECT_FALSE(machine.OnRecord(record, 0, out).ok());  // of no new epoch
  record.type = RecordType::kCommit;
  EXPECT_FALSE(machine.OnRecord(record, 0, out).ok());
  record.type = RecordType::kAgree;
  EXPECT_FALSE(machine.OnRecord(record, 0, out).ok());
}

}  // namespace
}  // namespace leafpack::protocol
