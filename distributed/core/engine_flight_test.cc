// What the flight recorder says of a group's calls, and that it is written where a call fails.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/engine.h"
#include "distributed/core/flight/dump.h"
#include "distributed/core/flight/recorder.h"
#include "distributed/core/group.h"
#include "distributed/core/testing/ranks.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;
using testing::MakeGroups;
using testing::OnRanks;
using testing::SumData;
using testing::SumFrame;

class EngineFlightTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineFlightTest, ::testing::Values(1, 2, 3));

std::string DumpsIn(const std::string& folder) {
  std::ifstream in(folder + "/flight-rank0-" + std::to_string(getpid()) + ".json");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST_P(EngineFlightTest, CallsGoThroughTheirStates) {
  std::vector<Group> groups = MakeGroups(GetParam());
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values(100, 1);
    ASSERT_TRUE(SumFrame(group, values, {.digest = 5}).ok());
    ASSERT_TRUE(SumData(group, values, {.digest = 6}).ok());
    const absl::Status own = group.engine().Refuse(
        CollectiveKind::kBarrier, absl::InvalidArgumentError("no good"), absl::Now());
    EXPECT_FALSE(own.ok());
    ASSERT_TRUE(SumFrame(group, values).ok());
    const std::vector<FlightCall> calls = group.engine().flight().Calls();
    ASSERT_EQ(calls.size(), 4u);
    for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(calls[i].number, i + 1);
    EXPECT_EQ(calls[0].kind, "all_reduce");
    EXPECT_TRUE(calls[0].frame);
    EXPECT_EQ(calls[0].digest, 5u);
    EXPECT_EQ(calls[0].state, FlightState::kDone);
    EXPECT_LE(calls[0].posted, calls[0].agreed);
    EXPECT_EQ(calls[0].in_data, 0);
    EXPECT_FALSE(calls[1].frame);
    EXPECT_EQ(calls[1].state, FlightState::kDone);
    EXPECT_LE(calls[1].posted, calls[1].agreed);
    EXPECT_LE(calls[1].agreed, calls[1].in_data);
    EXPECT_LE(calls[1].in_data, calls[1].ended);
    EXPECT_EQ(calls[2].kind, "barrier");
    EXPECT_EQ(calls[2].state, FlightState::kFailed);
    EXPECT_EQ(calls[2].reason, "no good");
    const FlightRecorder::Info& info = group.engine().flight().info();
    EXPECT_EQ(info.rank, rank);
    EXPECT_EQ(info.global_ranks.size(), static_cast<size_t>(GetParam()));
    EXPECT_EQ(group.engine().flight().session().empty(), GetParam() == 1);
    EXPECT_EQ(group.engine().flight().session(), groups[0].engine().flight().session());
  });
}

TEST(EngineFlightTest, ACallThatWaitsIsPostedAndItsDeadlineIsToldAndWritten) {
  const std::string folder = ::testing::TempDir() + "/deadline";
  unsetenv("RANK");
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int, Group& group) {
    std::vector<float> values = {1};
    ASSERT_TRUE(SumFrame(group, values).ok());
  });
  DumpFlightOnError(folder);
  std::vector<float> values = {1};
  {
    auto call = groups[0].engine().Post(testing::MakeSpec({}));
    ASSERT_TRUE(call.ok());
    EXPECT_EQ(groups[0].engine().flight().Calls().back().state, FlightState::kPosted);
    EXPECT_EQ(groups[0].engine().flight().Calls().back().agreed, 0);
  }
  const absl::Status late = SumFrame(groups[0], values, {.timeout = absl::Milliseconds(50)});
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  const FlightCall call = groups[0].engine().flight().Calls().back();
  EXPECT_EQ(call.state, FlightState::kFailed);
  EXPECT_FALSE(call.reason.empty());
  EXPECT_GT(call.ended, call.posted);
  // The file is there when the error is.
  EXPECT_THAT(DumpsIn(folder), HasSubstr("\"state\":\"failed\""));
  EXPECT_THAT(DumpsIn(folder), HasSubstr("\"reason\":\"error: "));
  DumpFlightOnError("");
}

TEST(EngineFlightTest, ADifferenceIsWrittenWithBothDigests) {
  const std::string folder = ::testing::TempDir() + "/mismatch";
  unsetenv("RANK");
  DumpFlightOnError(folder);
  std::vector<Group> groups = MakeGroups(2);
  OnRanks(groups, [&](int rank, Group& group) {
    std::vector<float> values = {1};
    const absl::Status status =
        SumFrame(group, values, {.digest = rank == 0 ? uint64_t{0xabc} : uint64_t{0xdef}});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  });
  groups.clear();  // what was put off is written when the groups go
  DumpFlightOnError("");
  EXPECT_THAT(DumpsIn(folder), HasSubstr("0000000000000abc\""));
  EXPECT_THAT(DumpsIn(folder), HasSubstr("0000000000000def\""));
}

}  // namespace
}  // namespace leafpack
