// Launch and LaunchFunction: what ranks are given, what is made of their output, and how a job ends.
#include "distributed/launch/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/launch/exit_status.h"

namespace leafpack {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string TempPath(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }

std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::sort(lines.begin(), lines.end());
  return lines;
}

struct Captured {
  absl::StatusOr<LaunchResult> result = absl::UnknownError("not run");
  std::string out, err;
  double seconds = 0;
};

// Runs a job with its output in files.
Captured Capture(LaunchOptions options,
            const std::function<absl::StatusOr<LaunchResult>(const LaunchOptions&)>& launch) {
  static int count = 0;
  const std::string base = TempPath(absl::StrCat("run_", getpid(), "_", count++));
  options.stdout_fd = open((base + ".out").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  options.stderr_fd = open((base + ".err").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  Captured run;
  const auto start = std::chrono::steady_clock::now();
  run.result = launch(options);
  run.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  close(options.stdout_fd);
  close(options.stderr_fd);
  run.out = ReadFile(base + ".out");
  run.err = ReadFile(base + ".err");
  return run;
}

Captured Shell(const LaunchOptions& options, const std::string& script) {
  return Capture(options, [&](const LaunchOptions& o) {
    return Launch(o, {"sh", "-c", script});
  });
}

LaunchOptions Ranks(int n) {
  LaunchOptions options;
  options.ranks = n;
  options.grace = absl::Seconds(20);
  options.timeout = absl::Seconds(50);
  return options;
}

// No process of the group of any rank is left.
void ExpectAllGone(const LaunchResult& result) {
  for (const RankOutcome& rank : result.ranks) EXPECT_EQ(kill(-rank.pid, 0), -1) << rank.pid;
}

TEST(Launch, GivesTorchrunsVariables) {
  unsetenv("OMP_NUM_THREADS");
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  Captured run = Shell(Ranks(3),
                  "echo $RANK $LOCAL_RANK $ROLE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                  "$GROUP_WORLD_SIZE $ROLE_WORLD_SIZE $ROLE_NAME $MASTER_ADDR $OMP_NUM_THREADS "
                  "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS "
                  "agent=$TORCHELASTIC_USE_AGENT_STORE");
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  ASSERT_TRUE(run.result.ok()) << run.result.status();
  EXPECT_EQ(run.result->exit_code, 0) << run.err;
  EXPECT_THAT(SortedLines(run.out),
              ElementsAre("[0] 0 0 0 3 3 0 1 3 default 127.0.0.1 1 0 0 agent=",
                          "[1] 1 1 1 3 3 0 1 3 default 127.0.0.1 1 0 0 agent=",
                          "[2] 2 2 2 3 3 0 1 3 default 127.0.0.1 1 0 0 agent="));
  EXPECT_EQ(run.err, "");
}

TEST(Launch, RunIdAndPortAreEqualOnAllRanksAndDifferBetweenJobs) {
  LaunchOptions options = Ranks(2);
  options.prefix_output = false;
  std::set<std::string> lines;
  for (int i = 0; i < 2; ++i) {
    Captured run = Shell(options, "echo $TORCHELASTIC_RUN_ID");
    const std::vector<std::string> ids = SortedLines(run.out);
    ASSERT_EQ(ids.size(), 2u) << run.out;
    EXPECT_EQ(ids[0], ids[1]);
    lines.insert(ids[0]);
  }
  EXPECT_EQ(lines.size(), 2u);
  options.run_id = "mine";
  EXPECT_EQ(Shell(options, "echo $TORCHELASTIC_RUN_ID").out, "mine\nmine\n");
}

TEST(Launch, EnvironmentForAllAndForOneRank) {
  setenv("LAUNCH_TEST_KEPT", "kept", 1);
  LaunchOptions options = Ranks(2);
  options.env = {{"A", "all"}, {"B", "all"}, {"OMP_NUM_THREADS", "7"}};
  options.rank_env[1] = {{"B", "one"}};
  Captured run = Shell(options, "echo $A $B $LAUNCH_TEST_KEPT $OMP_NUM_THREADS");
  EXPECT_THAT(SortedLines(run.out), ElementsAre("[0] all all kept 7", "[1] all one kept 7"));
}

TEST(Launch, OneRankKeepsItsThreads) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(Shell(Ranks(1), "echo threads=$OMP_NUM_THREADS").out, "[0] threads=\n");
}

TEST(Launch, StandardInputIsEmptyAndStreamsStayApart) {
  Captured run = Shell(Ranks(1), "cat; echo out; echo err >&2");
  EXPECT_EQ(run.out, "[0] out\n");
  EXPECT_EQ(run.err, "[0] err\n");
}

TEST(Launch, MergedStreamsKeepTheirOrder) {
  LaunchOptions options = Ranks(1);
  options.merge_stderr = true;
  Captured run = Shell(options, "for i in 1 2 3; do echo out $i; echo err $i >&2; done");
  EXPECT_EQ(run.out, "[0] out 1\n[0] err 1\n[0] out 2\n[0] err 2\n[0] out 3\n[0] err 3\n");
}

TEST(Launch, LinesAreNeverTorn) {
  // Each rank writes long lines in small pieces, and an unfinished one at the end.
  Captured run = Shell(Ranks(4),
                  "i=0; while [ $i -lt 200 ]; do printf 'a%s' $RANK; printf '%01000d' 0; "
                  "printf 'z%s\\n' $RANK; i=$((i+1)); done; printf 'end%s' $RANK");
  ASSERT_TRUE(run.result.ok());
  const std::vector<std::string> lines = SortedLines(run.out);
  std::map<std::string, int> count;
  for (const std::string& line : lines) count[line]++;
  std::map<std::string, int> expected;
  for (int r = 0; r < 4; ++r) {
    expected[absl::StrCat("[", r, "] a", r, std::string(1000, '0'), "z", r)] = 200;
    expected[absl::StrCat("[", r, "] end", r)] = 1;
  }
  EXPECT_EQ(count, expected);
}

TEST(Launch, KeepsALogOfEachRank) {
  LaunchOptions options = Ranks(2);
  options.log_dir = TempPath("logs/deep/er");
  Captured run = Shell(options, "echo out $RANK; echo err $RANK >&2; exit $RANK");
  ASSERT_TRUE(run.result.ok()) << run.result.status();
  EXPECT_EQ(run.result->exit_code, 1);
  for (int r = 0; r < 2; ++r) {
    const std::string path = absl::StrCat(options.log_dir, "/rank_", r, ".log");
    EXPECT_EQ(run.result->ranks[static_cast<size_t>(r)].log_path, path);
    EXPECT_THAT(SortedLines(ReadFile(path)),
                ElementsAre(absl::StrCat("err ", r), absl::StrCat("out ", r)));
  }
  EXPECT_THAT(run.result->summary, HasSubstr("rank 1 (pid "));
  EXPECT_THAT(run.result->summary, HasSubstr("its log is " + options.log_dir + "/rank_1.log"));
}

TEST(Launch, OneFailureEndsAllAndIsNamed) {
  Captured run = Shell(Ranks(3), "if [ $RANK = 1 ]; then echo bad; exit 7; fi; sleep 1000");
  ASSERT_TRUE(run.result.ok());
  const LaunchResult& result = *run.result;
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.first_failed_rank, 1);
  EXPECT_THAT(result.summary, HasSubstr("exited with code 7; the other ranks are ended"));
  EXPECT_THAT(run.err, HasSubstr("launch: rank 1 (pid "));
  EXPECT_FALSE(result.ranks[1].ended_by_launcher);
  EXPECT_TRUE(result.ranks[0].ended_by_launcher);
  EXPECT_FALSE(result.ranks[0].killed_by_launcher);
  EXPECT_EQ(result.ranks[2].status, (ExitStatus{0, SIGTERM}));
  EXPECT_THAT(result.ranks[1].tail, ElementsAre("bad"));
  ExpectAllGone(result);
}

TEST(Launch, AKilledRankGives128PlusSignal) {
  Captured run = Shell(Ranks(2), "if [ $RANK = 0 ]; then kill -SEGV $$; fi; sleep 1000");
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 128 + SIGSEGV);
  EXPECT_THAT(run.result->summary, HasSubstr("rank 0 (pid "));
  EXPECT_THAT(run.result->summary, HasSubstr("was killed by SIGSEGV"));
}

TEST(Launch, OtherRanksMaySayWhatTheySawBeforeTheyAreEnded) {
  LaunchOptions options = Ranks(2);
  options.failure_linger = absl::Seconds(30);
  Captured run = Shell(options, "if [ $RANK = 0 ]; then exit 3; fi; sleep 0.2; echo peer lost; exit 4");
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 3);
  EXPECT_EQ(run.out, "[1] peer lost\n");
  EXPECT_FALSE(run.result->ranks[1].ended_by_launcher);
}

TEST(Launch, WhoIgnoresSigtermIsKilled) {
  LaunchOptions options = Ranks(2);
  options.grace = absl::Milliseconds(200);
  Captured run = Shell(options,
                  "if [ $RANK = 0 ]; then sleep 1; exit 1; fi; trap '' TERM; "
                  "while :; do sleep 1000; done");
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 1);
  EXPECT_TRUE(run.result->ranks[1].killed_by_launcher);
  EXPECT_EQ(run.result->ranks[1].status.signal, SIGKILL);
  EXPECT_THAT(run.err, HasSubstr("rank 1 did not end within 200ms and is killed"));
}

TEST(Launch, AStoppedRankIsEndedToo) {
  Captured run = Shell(Ranks(2), "if [ $RANK = 0 ]; then sleep 0.3; exit 1; fi; kill -STOP $$; sleep 1000");
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 1);
  EXPECT_EQ(run.result->ranks[1].status.signal, SIGTERM);
}

TEST(Launch, ChildrenOfRanksAreEnded) {
  // One rank leaves a child behind and ends well; the child ignores SIGTERM and holds the pipe.
  LaunchOptions options = Ranks(2);
  options.grace = absl::Milliseconds(300);
  Captured run = Shell(options, "(trap '' TERM; sleep 1000) & echo started; sleep 0.3; exit 0");
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 0);
  EXPECT_LT(run.seconds, 45);
  ExpectAllGone(*run.result);
}

TEST(Launch, ExpectedExits) {
  LaunchOptions options = Ranks(3);
  options.expected_exits = {{1, {0, SIGKILL}}, {2, {5, 0}}};
  const std::string script =
      "case $RANK in 1) kill -KILL $$;; 2) exit 5;; esac; sleep 0.5; echo survived";
  Captured run = Shell(options, script);
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "[0] survived\n");
  EXPECT_EQ(run.result->summary, "");

  options.expected_exits = {{0, {0, SIGKILL}}, {1, {0, SIGKILL}}, {2, {5, 0}}};
  run = Shell(options, script);
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 1);
  EXPECT_EQ(run.result->first_failed_rank, 0);
  EXPECT_THAT(run.result->summary,
              HasSubstr("exited with code 0, but it was expected that it was killed by SIGKILL"));
}

TEST(Launch, TimeoutShowsWhereEachRankStood) {
  LaunchOptions options = Ranks(2);
  options.timeout = absl::Seconds(2);
  Captured run = Shell(options, "if [ $RANK = 1 ]; then exit 0; fi; echo one; echo two; sleep 1000");
  ASSERT_TRUE(run.result.ok());
  EXPECT_TRUE(run.result->timed_out);
  EXPECT_EQ(run.result->exit_code, 124);
  EXPECT_THAT(run.err, HasSubstr("the job did not end within 2s; rank 0 was still running. Where"));
  EXPECT_THAT(run.err, HasSubstr("launch:   | one\nlaunch:   | two\n"));
  EXPECT_THAT(run.err, HasSubstr("(sleep): sleeping"));
  EXPECT_THAT(run.err, HasSubstr(") exited with code 0\n"));
  ExpectAllGone(*run.result);
}

TEST(Launch, ARankWithATimeoutOfItsOwnIsNamed) {
  LaunchOptions options = Ranks(3);
  options.rank_timeouts = {{0, absl::Seconds(40)}, {1, absl::Seconds(2)}};
  const std::string script = "if [ $RANK = 0 ]; then exit 0; fi; echo here; sleep 1000";
  Captured run = Shell(options, script);
  ASSERT_TRUE(run.result.ok());
  EXPECT_TRUE(run.result->timed_out);
  EXPECT_EQ(run.result->exit_code, 124);
  EXPECT_EQ(run.result->first_failed_rank, 1);
  EXPECT_THAT(run.err, HasSubstr("rank 1 did not end within 2s; ranks 1, 2 were still running. Where"));
  ExpectAllGone(*run.result);

  // One that ended in time has no timeout any more.
  options.rank_timeouts = {{0, absl::Seconds(1)}};
  run = Shell(options, "[ $RANK = 0 ] || sleep 3");
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 0) << run.err;
}

TEST(Launch, WorkingDirectoryAndRelativePrograms) {
  const std::string folder = TempPath("work");
  mkdir(folder.c_str(), 0700);
  std::ofstream(folder + "/program") << "#!/bin/sh\npwd\n";
  chmod((folder + "/program").c_str(), 0700);
  LaunchOptions options = Ranks(1);
  options.working_directory = folder;
  Captured run = Capture(options, [](const LaunchOptions& o) { return Launch(o, {"./program"}); });
  ASSERT_TRUE(run.result.ok()) << run.result.status();
  EXPECT_THAT(run.out, HasSubstr("/work\n"));
}

TEST(Launch, BadOptionsAndProgramsStartNothing) {
  const auto status = [](LaunchOptions options, std::vector<std::string> command) {
    return Launch(options, std::move(command)).status();
  };
  EXPECT_EQ(status(Ranks(0), {"true"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(Ranks(1), {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(Ranks(1), {""}).code(), absl::StatusCode::kInvalidArgument);
  absl::Status missing = status(Ranks(1), {"./no/such"});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("./no/such"));
  EXPECT_EQ(status(Ranks(1), {"no-such-program-in-path"}).code(), absl::StatusCode::kNotFound);
  LaunchOptions options = Ranks(2);
  options.rank_env[2] = {{"A", "b"}};
  EXPECT_THAT(std::string(status(options, {"true"}).message()), HasSubstr("for rank 2, but the ranks are 0 to 1"));
  options = Ranks(2);
  options.expected_exits[-1] = {};
  EXPECT_EQ(status(options, {"true"}).code(), absl::StatusCode::kInvalidArgument);
  options = Ranks(1);
  options.timeout = absl::ZeroDuration();
  EXPECT_EQ(status(options, {"true"}).code(), absl::StatusCode::kInvalidArgument);
  options = Ranks(2);
  options.rank_timeouts[2] = absl::Seconds(1);
  EXPECT_EQ(status(options, {"true"}).code(), absl::StatusCode::kInvalidArgument);
  options.rank_timeouts = {{1, absl::ZeroDuration()}};
  EXPECT_EQ(status(options, {"true"}).code(), absl::StatusCode::kInvalidArgument);
  for (int hosts : {0, 3}) {
    options = Ranks(2);
    options.hosts = hosts;
    EXPECT_THAT(std::string(status(options, {"true"}).message()), HasSubstr("the number of ranks, 2"));
  }
  options = Ranks(1);
  options.working_directory = "/no/such/folder";
  EXPECT_THAT(std::string(status(options, {"true"}).message()), HasSubstr("/no/such/folder"));
  const std::string not_a_program = TempPath("not_a_program");
  std::ofstream(not_a_program) << "no interpreter, no magic";
  EXPECT_EQ(status(Ranks(1), {not_a_program}).code(), absl::StatusCode::kPermissionDenied);
  chmod(not_a_program.c_str(), 0700);
  EXPECT_THAT(std::string(status(Ranks(1), {not_a_program}).message()), HasSubstr("cannot run"));
}

TEST(LaunchFunction, RanksAreForksThatSeeTheirPlace) {
  Captured run = Capture(Ranks(3), [](const LaunchOptions& o) {
    return LaunchFunction(o, [](int rank) {
      std::printf("rank %d of %s\n", rank, std::getenv("WORLD_SIZE"));
      return rank == 2 ? 9 : 0;
    });
  });
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 9);
  EXPECT_EQ(run.result->first_failed_rank, 2);
  EXPECT_THAT(SortedLines(run.out), Contains("[2] rank 2 of 3"));
  EXPECT_EQ(std::getenv("WORLD_SIZE"), nullptr);
}

TEST(LaunchFunction, SignalActionsOfTheCallerComeBack) {
  struct sigaction before, after;
  sigaction(SIGTERM, nullptr, &before);
  Captured run = Capture(Ranks(1), [](const LaunchOptions& o) {
    return LaunchFunction(o, [](int) {
      raise(SIGTERM);
      return 0;
    });
  });
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  ASSERT_TRUE(run.result.ok());
  EXPECT_EQ(run.result->exit_code, 128 + SIGTERM);
}

TEST(ExitStatus, ParseAndPrint) {
  EXPECT_EQ(*ParseExitStatus("3"), (ExitStatus{3, 0}));
  EXPECT_EQ(*ParseExitStatus("SIGKILL"), (ExitStatus{0, SIGKILL}));
  EXPECT_EQ(*ParseExitStatus("TERM"), (ExitStatus{0, SIGTERM}));
  EXPECT_FALSE(ParseExitStatus("256").ok());
  EXPECT_FALSE(ParseExitStatus("-1").ok());
  EXPECT_FALSE(ParseExitStatus("SIGNOTHING").ok());
  EXPECT_FALSE(ParseExitStatus("").ok());
  EXPECT_EQ((ExitStatus{0, SIGABRT}).ToString(), "was killed by SIGABRT");
  EXPECT_EQ((ExitStatus{2, 0}).ToString(), "exited with code 2");
}

}  // namespace
}  // namespace leafpack
