// The launcher's command line.
#include "distributed/launch/arguments.h"

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(LaunchArguments, AllFlags) {
  absl::StatusOr<LaunchArguments> a = ParseLaunchArguments(
      {"-n", "4", "--env=A=b=c", "--env", "1:X=y:z", "--env=P=1:2", "--log_dir=/tmp/l",
       "--timeout=90s", "--grace=1.5s", "--linger=0s", "--expect_exit=1:SIGKILL",
       "--expect_exit=2:3", "--hosts=2", "--rank_timeout=3:5s", "--chdir=/", "--run_id=r", "--merge_stderr", "--no_prefix", "--",
       "program", "--its=flag", "-n", "--"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->options.ranks, 4);
  EXPECT_THAT(a->options.env, ElementsAre(Pair("A", "b=c"), Pair("P", "1:2")));
  EXPECT_THAT(a->options.rank_env[1], ElementsAre(Pair("X", "y:z")));
  EXPECT_EQ(a->options.log_dir, "/tmp/l");
  EXPECT_EQ(a->options.timeout, absl::Seconds(90));
  EXPECT_EQ(a->options.grace, absl::Seconds(1.5));
  EXPECT_EQ(a->options.failure_linger, absl::ZeroDuration());
  EXPECT_EQ(a->options.expected_exits.at(1), (ExitStatus{0, SIGKILL}));
  EXPECT_EQ(a->options.expected_exits.at(2), (ExitStatus{3, 0}));
  EXPECT_EQ(a->options.hosts, 2);
  EXPECT_EQ(a->options.rank_timeouts.at(3), absl::Seconds(5));
  EXPECT_FALSE(a->check_hosts);
  EXPECT_EQ(a->options.working_directory, "/");
  EXPECT_EQ(a->options.run_id, "r");
  EXPECT_TRUE(a->options.merge_stderr);
  EXPECT_FALSE(a->options.prefix_output);
  EXPECT_THAT(a->command, ElementsAre("program", "--its=flag", "-n", "--"));
}

TEST(LaunchArguments, TheProgramEndsOurFlags) {
  absl::StatusOr<LaunchArguments> a = ParseLaunchArguments({"-n2", "program", "-n", "7"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->options.ranks, 2);
  EXPECT_THAT(a->command, ElementsAre("program", "-n", "7"));
}

TEST(LaunchArguments, HelpNeedsNoProgram) {
  absl::StatusOr<LaunchArguments> a = ParseLaunchArguments({"--help"});
  ASSERT_TRUE(a.ok());
  EXPECT_TRUE(a->help);
}

TEST(LaunchArguments, ACheckOfHostsNeedsNoProgram) {
  absl::StatusOr<LaunchArguments> a = ParseLaunchArguments({"--hosts=3", "--check_hosts"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_TRUE(a->check_hosts);
  EXPECT_EQ(a->options.hosts, 3);
}

TEST(LaunchArguments, Mistakes) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "no PROGRAM"},
      {{"-n", "4"}, "no PROGRAM"},
      {{"-n", "4", "--"}, "no PROGRAM"},
      {{"-n"}, "no value follows -n"},
      {{"-n", "x", "p"}, "-n=x: not a number"},
      {{"--ranks=", "p"}, "--ranks=: not a number"},
      {{"--nonsense=1", "p"}, "unknown flag --nonsense"},
      {{"--timeout=soon", "p"}, "not a duration"},
      {{"--grace=-1s", "p"}, "not a duration"},
      {{"--env=A", "p"}, "NAME=VALUE"},
      {{"--env==b", "p"}, "NAME=VALUE"},
      {{"--env=x:A=b", "p"}, "NAME=VALUE"},
      {{"--env=1:=b", "p"}, "NAME=VALUE"},
      {{"--expect_exit=SIGKILL", "p"}, "not RANK:CODE"},
      {{"--expect_exit=1:SIGFOO", "p"}, "SIGFOO"},
      {{"--hosts=x", "p"}, "--hosts=x: not a number"},
      {{"--rank_timeout=5s", "p"}, "not RANK:DURATION"},
      {{"--rank_timeout=1:soon", "p"}, "not a duration"},
      {{"--rank_timeout=1:1s", "--rank_timeout=1:2s", "p"}, "given before"},
      {{"--expect_exit=1:1", "--expect_exit=1:2", "p"}, "given before"},
  };
  for (const auto& [arguments, message] : cases) {
    absl::StatusOr<LaunchArguments> a = ParseLaunchArguments(arguments);
    ASSERT_FALSE(a.ok()) << message;
    EXPECT_THAT(std::string(a.status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace leafpack
