// Single cases of the protocol: doubt, failed data phases, epochs, lost ranks, farewell, trusted
// and unchecked calls.
#include <string>
#include <vector>

#include "distributed/core/protocol/test_group.h"
#include "gtest/gtest.h"

namespace leafpack::protocol {
namespace {

constexpr SteadyNanos kMs = kMillisecond;
std::vector<uint32_t> Ranks(std::initializer_list<uint32_t> ranks) { return ranks; }

// Rank 1 of a group whose rank 0 stands still, with call 1 in doubt; `spec` has a deadline of 1 ms.
struct Doubtful {
  explicit Doubtful(CallSpec spec, bool agreed) : group(2) {
    if (agreed) {
      group.Issue(0, spec);
      group.ranks[1].hold_in = true;  // the decision does not arrive
    } else {
      group.ranks[0].frozen = true;  // there is none
    }
    spec.deadline = group.now + kMs;
    group.Issue(1, spec);
    group.Advance(2 * kMs);
    EXPECT_FALSE(group.Ended(1, 1));
    group.Advance(kGrace);
  }
  void Thaw() {
    group.ranks[0].frozen = group.ranks[1].hold_in = false;
    group.Pump();
  }
  TestGroup group;
};

TEST(DoubtTest, SaysSoAndHoldsLaterCalls) {
  Doubtful doubtful(TestGroup::Data(), /*agreed=*/true);
  TestGroup& group = doubtful.group;
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kDoubt);
  EXPECT_EQ(group.End(1, 1).code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(group.End(1, 1).ranks, Ranks({0}));
  EXPECT_TRUE(group.End(1, 1).outcome_unknown);
  EXPECT_EQ(group.End(1, 1).tree, TreeState::kUnchanged);
  EXPECT_TRUE(group.ranks[1].machine->in_doubt());
  const size_t sent = group.ranks[1].sent.size();
  group.Issue(1, TestGroup::Frame("\x01", group.now + kMs));
  EXPECT_EQ(group.ranks[1].sent.size(), sent);
  // A held call ends at its own deadline.
  group.Advance(2 * kMs);
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kDeadline);
  EXPECT_EQ(group.End(1, 2).ranks, Ranks({0}));
}

TEST(DoubtTest, ResolvedAsNotOkHeldCallsGoOut) {
  Doubtful doubtful(TestGroup::Data(), /*agreed=*/false);
  TestGroup& group = doubtful.group;
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kDoubt);
  group.Issue(1, TestGroup::Frame());
  doubtful.Thaw();  // the coordinator reads AGREE and WITHDRAW, and decides WITHDRAWN
  EXPECT_FALSE(group.ranks[1].machine->in_doubt());
  group.Issue(0, TestGroup::Data());
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kGivenUp);
  group.Issue(0, TestGroup::Frame());
  EXPECT_TRUE(group.End(1, 2).ok()) << group.End(1, 2).text;
  group.ExpectUsable();
}

TEST(DoubtTest, ResolvedAsOkFrameTheNextCallIsRefusedAsTold) {
  Doubtful doubtful(TestGroup::Frame(), /*agreed=*/true);
  TestGroup& group = doubtful.group;
  EXPECT_TRUE(group.End(0, 1).ok());
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kDoubt);
  group.Issue(1, TestGroup::Frame());  // held
  group.Issue(1, TestGroup::Frame());
  doubtful.Thaw();
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kTold);
  EXPECT_EQ(group.End(1, 2).code, absl::StatusCode::kFailedPrecondition);
  group.Issue(0, TestGroup::Frame());
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kPeerRefused);
  EXPECT_EQ(group.End(0, 2).ranks, Ranks({1}));
  group.Issue(0, TestGroup::Frame());
  EXPECT_TRUE(group.End(1, 3).ok());
  EXPECT_EQ(group.ranks[0].machine->epoch(), 0u);
  group.ExpectUsable();
}

TEST(DoubtTest, ResolvedAsOkDataTheEpochEnds) {
  Doubtful doubtful(TestGroup::Data(), /*agreed=*/true);
  TestGroup& group = doubtful.group;
  group.Issue(1, TestGroup::Frame());  // held
  EXPECT_TRUE(group.Granted(0, 1));
  doubtful.Thaw();
  group.Advance(kProbeTime + kMs);
  EXPECT_EQ(group.ranks[0].machine->epoch(), 1u);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kDataFailed);
  EXPECT_EQ(group.End(0, 1).tree, TreeState::kPartial);
  // The held call ended by ABORT: that was notice enough.
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kDataFailed);
  EXPECT_EQ(group.End(1, 2).tree, TreeState::kUnchanged);
  EXPECT_TRUE(group.ranks[1].granted.empty());
  group.Issue(0, TestGroup::Frame());
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kPeerRefused);
  group.ExpectUsable();
}

TEST(DoubtTest, CommitReadLateIsTold) {
  TestGroup group(2);
  group.IssueAll(TestGroup::Restore(group.now + 5 * kMs));
  group.DataDone(1, 1);
  group.ranks[1].hold_in = true;
  group.DataDone(0, 1);
  EXPECT_TRUE(group.End(0, 1).ok());
  group.Advance(2 * kGrace + 6 * kMs);
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kDoubt);
  EXPECT_EQ(group.End(1, 1).tree, TreeState::kRestore);
  group.ranks[1].hold_in = false;
  group.Pump();
  EXPECT_EQ(group.ranks[0].machine->epoch(), 0u);  // FAIL of a committed call is ignored
  group.Issue(1, TestGroup::Frame());
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kTold);
  group.Issue(0, TestGroup::Frame());
  group.ExpectUsable();
}

TEST(DoubtTest, RankZeroIsNeverInDoubtWithItself) {
  TestGroup group(2);
  group.Issue(0, TestGroup::Data(1, group.now + kMs));
  group.ranks[0].frozen = true;
  group.Advance(5 * kGrace);
  group.ranks[0].frozen = false;
  group.Advance(kMs);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kDeadline);
  EXPECT_EQ(group.End(0, 1).ranks, Ranks({1}));
}

// ---- Failed data phases ----

TEST(EpochTest, AnErrorEndsEveryCallInFlightOnEveryRank) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Data());
  group.Issue(1, TestGroup::Data());  // call 2, not agreed yet
  group.DataFailed(2, 1);
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(group.End(r, 1).kind, OutcomeKind::kDataFailed);
    EXPECT_EQ(group.End(r, 1).tree, TreeState::kPartial);
    EXPECT_EQ(group.End(r, 1).ranks, Ranks({2}));
    EXPECT_EQ(group.End(r, 1).text, "call 1 failed on rank 2: connection reset; done there: a");
    EXPECT_EQ(group.ranks[r].aborted, std::vector<uint32_t>{0});
  }
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kDataFailed);
  EXPECT_EQ(group.End(1, 2).tree, TreeState::kUnchanged);
  // The others issue call 2 in the new epoch; it was posted in the old one.
  group.Issue(0, TestGroup::Data());
  group.Issue(2, TestGroup::Data());
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kPeerRefused);
  EXPECT_EQ(group.End(0, 2).ranks, Ranks({1}));
  group.ExpectUsable();
}

TEST(EpochTest, ARankThatHadFinishedRefusesItsNextCall) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Data());
  group.DataDone(0, 1);
  group.DataFailed(1, 1);
  EXPECT_TRUE(group.End(0, 1).ok());
  group.IssueAll(TestGroup::Data());
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kTold);
  EXPECT_EQ(group.End(0, 2).ranks, Ranks({1}));
  EXPECT_NE(group.End(0, 2).text.find("call 1 failed on rank 1"), std::string::npos);
  for (const uint32_t r : {1u, 2u}) {
    EXPECT_EQ(group.End(r, 2).kind, OutcomeKind::kPeerRefused);
    EXPECT_EQ(group.End(r, 2).ranks, Ranks({0}));
  }
  group.ExpectUsable();
}

TEST(EpochTest, AfterADeadlineSilentAndAbsentRanksAreNamed) {
  TestGroup group(4);
  group.ranks[2].hold_in = true;  // stopped before it read OK
  CallSpec spec = TestGroup::Data();
  for (const uint32_t r : {0u, 2u, 3u}) group.Issue(r, spec);
  spec.deadline = group.now + 2 * kMs;
  group.Issue(1, spec);
  // The grant gives at least kGrace.
  group.Advance(kGrace + 3 * kMs);
  EXPECT_FALSE(group.Ended(1, 1));
  group.Advance(kProbeTime);
  EXPECT_EQ(group.End(1, 1).code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(group.End(1, 1).ranks, Ranks({2}));
  EXPECT_NE(group.End(3, 1).text.find("rank 2 is late"), std::string::npos) << group.End(3, 1).text;
  group.ranks[2].hold_in = false;
  group.Pump();
  EXPECT_EQ(group.End(2, 1).kind, OutcomeKind::kDataFailed);
  group.ExpectUsable();
}

TEST(EpochTest, AllAnswersEndTheProbeEarly) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Data(1, group.now + 2 * kMs));
  group.Advance(kGrace + 3 * kMs);
  EXPECT_EQ(group.End(0, 1).code, absl::StatusCode::kDeadlineExceeded);
  group.ExpectUsable();
}

TEST(EpochTest, InterruptInDataFailsIt) {
  TestGroup group(2);
  group.IssueAll(TestGroup::Data());
  group.Withdraw(1, 1);
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kInterrupted);
  EXPECT_EQ(group.End(1, 1).tree, TreeState::kPartial);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kDataFailed);
  EXPECT_EQ(group.End(0, 1).code, absl::StatusCode::kCancelled);
  EXPECT_EQ(group.End(0, 1).ranks, Ranks({1}));
  group.ExpectUsable();
}

TEST(EpochTest, RestoreCallsAreRestoredEverywhere) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Restore());
  group.DataDone(0, 1);
  group.DataDone(1, 1);
  group.DataFailed(2, 1);
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(group.End(r, 1).tree, TreeState::kRestore);
  group.ExpectUsable();
}

TEST(EpochTest, FailAfterCommitIsIgnoredAndLaterCallsGoOn) {
  TestGroup group(2);
  group.ranks[1].hold_in = true;
  group.Issue(1, TestGroup::Restore());
  group.Issue(1, TestGroup::Data());
  group.Issue(0, TestGroup::Restore());
  group.Issue(0, TestGroup::Data());
  group.ranks[1].hold_in = false;
  group.Pump();
  group.DataDone(1, 1);
  group.ranks[1].hold_in = true;
  group.DataDone(0, 1);  // COMMIT is on its way to rank 1
  group.Withdraw(1, 1);
  EXPECT_EQ(group.ranks[1].stops, 1);
  group.ranks[1].hold_in = false;
  group.Pump();
  EXPECT_TRUE(group.End(1, 1).ok());
  EXPECT_EQ(group.ranks[1].resumes, 1);
  EXPECT_EQ(group.ranks[0].machine->epoch(), 0u);
  group.DataDone(0, 2);
  group.DataDone(1, 2);
  EXPECT_TRUE(group.End(1, 2).ok());
  group.ExpectUsable();
}

TEST(EpochTest, NothingIsGrantedAfterAFailureHere) {
  TestGroup group(2);
  group.IssueAll(TestGroup::Data());
  group.ranks[1].hold_in = true;
  group.Issue(1, TestGroup::Data());
  group.Issue(0, TestGroup::Data());  // OK of call 2 is on its way
  group.ranks[1].hold_out = true;
  group.DataFailed(1, 1);
  group.ranks[1].hold_in = false;
  group.Pump();
  EXPECT_FALSE(group.Granted(1, 2));
  group.ranks[1].hold_out = false;
  group.Pump();
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kDataFailed);
  EXPECT_EQ(group.End(1, 2).tree, TreeState::kUnchanged);
  group.ExpectUsable();
}

TEST(EpochTest, NoAnswerToAFailureIsDoubt) {
  TestGroup group(2);
  group.IssueAll(TestGroup::Data());
  group.ranks[1].hold_in = true;
  group.DataFailed(1, 1);
  EXPECT_FALSE(group.Ended(1, 1));
  group.Advance(kGrace + kMs);
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kDoubt);
  EXPECT_EQ(group.End(1, 1).tree, TreeState::kPartial);
  EXPECT_EQ(group.ranks[1].aborted, std::vector<uint32_t>{0});
  group.ranks[1].hold_in = false;
  group.Pump();
  // A doubt is no notice.
  group.IssueAll(TestGroup::Frame());
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kTold);
  group.ExpectUsable();
}

// ---- Lost ranks ----

TEST(LostTest, OpenCallsAreLostAndLaterOnesFailAtOnce) {
  for (const bool posted : {false, true}) {
    TestGroup group(3);
    group.Issue(0, TestGroup::Data());
    if (posted) group.Issue(2, TestGroup::Data());
    group.Kill(2);
    EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kLost);
    EXPECT_EQ(group.End(0, 1).code, absl::StatusCode::kUnavailable);
    EXPECT_EQ(group.End(0, 1).ranks, Ranks({2}));
    const size_t sent = group.ranks[1].sent.size();
    const uint64_t call = group.Issue(1, TestGroup::Data());
    EXPECT_EQ(group.End(1, call).kind, OutcomeKind::kLost);
    EXPECT_EQ(group.End(1, call).ranks, Ranks({2}));
    EXPECT_EQ(group.ranks[1].sent.size(), sent);
  }
}

TEST(LostTest, ARefusalIsToldEvenSo) {
  TestGroup group(3);
  group.Refuse(1, "no");
  group.Issue(0, TestGroup::Data());
  group.Kill(2);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kPeerRefused);
}

TEST(LostTest, GrantedCallsMayStillEndWell) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Data());
  group.Kill(2);
  EXPECT_FALSE(group.Ended(0, 1));
  group.DataDone(0, 1);
  EXPECT_TRUE(group.End(0, 1).ok());
  group.Advance(kLostPatience + kMs);
  EXPECT_EQ(group.End(1, 1).code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(group.End(1, 1).ranks, Ranks({2}));
  EXPECT_EQ(group.End(1, 1).tree, TreeState::kPartial);
}

TEST(LostTest, RestoreCallOfADeadRankIsRestoredUnlessItWasDone) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Restore());
  group.DataDone(0, 1);
  group.DataDone(1, 1);
  group.Kill(2);
  group.Advance(kLostPatience + kMs);
  EXPECT_EQ(group.End(0, 1).tree, TreeState::kRestore);
  EXPECT_EQ(group.End(1, 1).code, absl::StatusCode::kUnavailable);

  TestGroup done(3);
  done.IssueAll(TestGroup::Restore());
  done.DataDone(2, 1);
  done.Kill(2);
  done.DataDone(0, 1);
  done.DataDone(1, 1);
  EXPECT_TRUE(done.End(0, 1).ok());
  EXPECT_TRUE(done.End(1, 1).ok());
}

TEST(LostTest, ARankThatLeftAfterItsLastCallDoesNotHurryTheOthers) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Data(1, group.now + 10 * kGrace));
  group.DataDone(2, 1);
  group.Leave(2);
  group.Advance(5 * kGrace);
  EXPECT_FALSE(group.Ended(0, 1));
  group.DataDone(0, 1);
  group.DataDone(1, 1);
  EXPECT_TRUE(group.End(0, 1).ok());
  EXPECT_TRUE(group.End(1, 1).ok());
  const uint64_t call = group.Issue(0, TestGroup::Data());
  EXPECT_EQ(group.End(0, call).kind, OutcomeKind::kLost);
  EXPECT_NE(group.End(0, call).text.find("rank 2 left the group"), std::string::npos);
}

TEST(LostTest, RankZeroKilled) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Data());     // 1, in data
  group.Issue(1, TestGroup::Frame());    // 2, posted
  group.Issue(2, TestGroup::Restore());  // 2
  group.Kill(0);
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kLost);
  EXPECT_EQ(group.End(1, 2).ranks, Ranks({0}));
  EXPECT_TRUE(group.End(1, 2).outcome_unknown);
  EXPECT_NE(group.End(1, 2).text.find("may have had the result"), std::string::npos);
  EXPECT_FALSE(group.Ended(1, 1));
  group.DataDone(2, 1);
  EXPECT_TRUE(group.End(2, 1).ok());
  group.Advance(kLostPatience + kMs);
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kLost);
  EXPECT_EQ(group.End(1, 1).tree, TreeState::kPartial);
  EXPECT_EQ(group.ranks[1].aborted, std::vector<uint32_t>{0});
  const uint64_t call = group.Issue(1, TestGroup::Frame());
  EXPECT_EQ(group.End(1, call).kind, OutcomeKind::kLost);
  EXPECT_FALSE(group.End(1, call).outcome_unknown);
}

TEST(LostTest, RankZeroLeaves) {
  TestGroup group(3);
  group.IssueAll(TestGroup::Data(1, group.now + 10 * kGrace));
  group.Issue(1, TestGroup::Frame());
  group.DataDone(0, 1);
  group.Leave(0);
  EXPECT_EQ(group.End(1, 2).kind, OutcomeKind::kLost);
  EXPECT_FALSE(group.End(1, 2).outcome_unknown);  // it was decided before the farewell
  group.Advance(5 * kGrace);
  group.DataDone(1, 1);
  group.DataDone(2, 1);
  EXPECT_TRUE(group.End(1, 1).ok());
  EXPECT_TRUE(group.End(2, 1).ok());
}

// ---- check = first, check = off ----

CallSpec Trusted(uint64_t digest = 1) {
  CallSpec spec = TestGroup::Data(digest);
  spec.trusted = true;
  return spec;
}
CallSpec Unchecked() {
  CallSpec spec = TestGroup::Data();
  spec.unchecked = true;
  return spec;
}

TEST(TrustedTest, DataStartsAtOnceAndEndsWithTheDecision) {
  TestGroup group(2);
  group.Issue(1, Trusted());
  EXPECT_TRUE(group.Granted(1, 1));
  group.DataDone(1, 1);
  EXPECT_FALSE(group.Ended(1, 1));
  group.Issue(0, TestGroup::Data());
  EXPECT_TRUE(group.End(1, 1).ok());
  group.DataDone(0, 1);
  group.ExpectUsable();
}

TEST(TrustedTest, AnythingButOkEndsTheEpoch) {
  TestGroup group(3);
  group.manifests = {EncodeManifest({ManifestEntry{false, "a", "a", "1"}}),
                     EncodeManifest({ManifestEntry{false, "b", "b", "1"}}),
                     EncodeManifest({ManifestEntry{false, "a", "a", "1"}})};
  group.Issue(1, Trusted(2));
  group.Issue(0, TestGroup::Data(1));
  group.Issue(2, TestGroup::Data(1));
  EXPECT_EQ(group.End(1, 1).kind, OutcomeKind::kMismatch);
  EXPECT_EQ(group.End(1, 1).tree, TreeState::kPartial);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kMismatch);
  EXPECT_EQ(group.End(0, 1).tree, TreeState::kUnchanged);
  EXPECT_EQ(group.ranks[0].machine->epoch(), 1u);
  EXPECT_EQ(group.ranks[1].aborted, std::vector<uint32_t>{0});
  // Ranks 0 and 2 had no call that ABORT ended: earlier data of theirs may have failed elsewhere.
  group.IssueAll(TestGroup::Frame());
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kTold);
  group.ExpectUsable();
}

TEST(TrustedTest, IsTakenBackWhereTheCallMustWait) {
  TestGroup group(2);
  group.Issue(1, TestGroup::Data());
  group.Issue(1, Trusted());
  EXPECT_TRUE(group.ranks[1].granted.empty());
  group.IssueAll(TestGroup::Data());
  group.Issue(0, TestGroup::Data());
  EXPECT_TRUE(group.Granted(1, 2));
}

TEST(UncheckedTest, SendsNothingAndTheGapIsLegal) {
  TestGroup group(2);
  for (int i = 0; i < 3; ++i) {
    group.IssueAll(Unchecked());
    for (uint32_t r = 0; r < 2; ++r) {
      EXPECT_TRUE(group.Granted(r, static_cast<uint64_t>(i + 1)));
      group.DataDone(r, static_cast<uint64_t>(i + 1));
      EXPECT_TRUE(group.End(r, static_cast<uint64_t>(i + 1)).ok());
    }
  }
  EXPECT_TRUE(group.ranks[0].sent.empty());
  group.ExpectUsable();
}

TEST(UncheckedTest, AGapOverPostedNumbersIsAMismatch) {
  for (const bool gap_first : {true, false}) {
    TestGroup group(3);
    if (gap_first) {
      group.Issue(1, Unchecked());
      group.DataDone(1, 1);
      group.Issue(1, TestGroup::Frame());
    }
    group.Issue(0, TestGroup::Data());
    group.Issue(2, TestGroup::Data());
    if (!gap_first) {
      group.Issue(1, Unchecked());
      group.DataDone(1, 1);
      EXPECT_FALSE(group.Ended(0, 1));
      group.Issue(1, TestGroup::Frame());
    }
    EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kMismatch);
    EXPECT_EQ(group.End(0, 1).ranks, Ranks({1}));
    EXPECT_EQ(group.End(2, 1).kind, OutcomeKind::kMismatch);
    group.Issue(0, TestGroup::Frame());
    group.Issue(2, TestGroup::Frame());
    EXPECT_TRUE(group.End(1, 2).ok());
    group.ExpectUsable();
  }
}

TEST(UncheckedTest, AGapThatEndsTheEpochDecidesTheNextCallOnce) {
  TestGroup group(2);
  group.Issue(0, Trusted());
  group.Issue(0, TestGroup::Frame());
  group.Issue(1, Unchecked());
  group.DataDone(1, 1);
  group.Refuse(1, "no");  // shows the gap: call 1 is a mismatch, its trusted data ends the epoch
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kMismatch);
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kDataFailed);
  for (uint32_t r = 0; r < 2; ++r) {
    const Record& last = group.ranks[r].got.back();
    EXPECT_EQ(last.type, RecordType::kDecide);
    EXPECT_EQ(last.call, 2u);
    EXPECT_EQ(static_cast<Decision>(last.kind), Decision::kAborted);
  }
  EXPECT_EQ(group.coordinator->table_size(), 0u);
}

TEST(UncheckedTest, WaitsForEarlierDecisionsAndFailsLikeOthers) {
  TestGroup group(2);
  group.Issue(1, TestGroup::Data());
  group.Issue(1, Unchecked());
  EXPECT_TRUE(group.ranks[1].granted.empty());
  group.Issue(0, TestGroup::Data());
  group.Issue(0, Unchecked());
  EXPECT_TRUE(group.Granted(1, 2));
  group.DataFailed(1, 2);
  EXPECT_EQ(group.End(0, 2).kind, OutcomeKind::kDataFailed);
  EXPECT_EQ(group.End(0, 1).kind, OutcomeKind::kDataFailed);
  group.ExpectUsable();
}

}  // namespace
}  // namespace leafpack::protocol
