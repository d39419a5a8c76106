#include "distributed/core/flight/dump.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/flight/json.h"
#include "distributed/core/flight/recorder.h"

namespace leafpack {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Folder(const std::string& name) { return ::testing::TempDir() + "/" + name; }

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string FileIn(const std::string& folder) {
  return folder + "/flight-rank4-" + std::to_string(getpid()) + ".json";
}

bool Appears(const std::string& path, const std::string& text) {
  for (int i = 0; i < 6000; ++i) {
    if (ReadFile(path).find(text) != std::string::npos) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

class DumpTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("RANK"); }
  void TearDown() override { DumpFlightOnError(""); }
  std::shared_ptr<FlightRecorder> recorder_ = NewFlightRecorder(
      {.group = "leaf \"pack\"", .rank = 1, .global_ranks = {2, 4}, .backend = "fake"});
};

TEST(JsonTest, TextsAreEscaped) {
  JsonWriter json;
  json.BeginArray();
  json.String("a\"b\\c\n\x01");
  json.String("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8d\x83");
  json.String("\xc3 \xff \xed\xa0\x80");
  json.BeginObject();
  json.Key("k").Int(-3);
  json.Key("l").Bool(false);
  json.EndObject();
  json.EndArray();
  EXPECT_EQ(std::move(json).Take(),
            "[\"a\\\"b\\\\c\\u000a\\u0001\",\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8d\x83\","
            "\"\\ufffd \\ufffd \\ufffd\\ufffd\\ufffd\",{\"k\":-3,\"l\":false}]");
}

TEST_F(DumpTest, TheTextHasGroupsAndCalls) {
  recorder_->set_session("0123");
  recorder_->End(recorder_->Begin({.kind = "all_reduce", .name = "n", .number = 3, .bytes = 8}),
                 absl::InternalError("it broke"));
  const std::string text = FlightRecord("why");
  for (const char* part :
       {"\"leafpack_flight\":1", "\"reason\":\"why\"", "\"group\":\"leaf \\\"pack\\\"\"",
        "\"session\":\"0123\"", "\"rank\":4", "\"group_rank\":1", "\"ranks\":[2,4]",
        "\"kind\":\"all_reduce\"", "\"name\":\"n\"", "\"number\":3", "\"bytes\":8",
        "\"state\":\"failed\"", "\"error\":\"it broke\"", "\"posted\":", "\"ended\":"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("in_data")));
}

TEST_F(DumpTest, FilesAreWhole) {
  const std::string folder = Folder("whole");
  absl::StatusOr<std::string> path = DumpFlight(folder);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, FileIn(folder));
  EXPECT_EQ(ReadFile(*path).back(), '}');
  const std::string missing = Folder("no/such/folder");
  absl::StatusOr<std::string> error = DumpFlight(missing);
  EXPECT_EQ(error.status().code(), absl::StatusCode::kNotFound) << error.status();
  EXPECT_THAT(std::string(error.status().message()), HasSubstr(missing));
  EXPECT_EQ(DumpFlight("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DumpTest, AnErrorWritesOnlyWhereAFolderIsGiven) {
  const std::string folder = Folder("errors");
  NoteFlightError(absl::InternalError("unasked"));
  EXPECT_EQ(access(folder.c_str(), F_OK), -1);
  DumpFlightOnError(folder);
  NoteFlightError(absl::InternalError("first"));
  EXPECT_THAT(ReadFile(FileIn(folder)), HasSubstr("error: first"));
  // Errors in a row are written together, at the latest when a group is shut down.
  for (int i = 0; i < 100; ++i) NoteFlightError(absl::InternalError("second"));
  FlushFlightErrors();
  EXPECT_THAT(ReadFile(FileIn(folder)), HasSubstr("error: second"));
}

volatile sig_atomic_t earlier_calls = 0;

TEST_F(DumpTest, ASignalWritesAndTheEarlierHandlerRuns) {
  const std::string folder = Folder("signal");
  signal(SIGUSR2, [](int) { earlier_calls = earlier_calls + 1; });
  ASSERT_TRUE(DumpFlightOnSignal(SIGUSR2, folder).ok());
  recorder_->Begin({.kind = "broadcast", .name = "stuck"});
  kill(getpid(), SIGUSR2);
  EXPECT_TRUE(Appears(FileIn(folder), "stuck"));
  EXPECT_EQ(earlier_calls, 1);
  // A second call moves the folder and does not chain the handler to itself.
  const std::string other = Folder("signal2");
  ASSERT_TRUE(DumpFlightOnSignal(SIGUSR2, other).ok());
  kill(getpid(), SIGUSR2);
  EXPECT_TRUE(Appears(FileIn(other), "stuck"));
  EXPECT_EQ(earlier_calls, 2);
}

TEST_F(DumpTest, AForkedChildDoesNotWakeItsParentAndCanDumpItself) {
  const std::string folder = Folder("fork");
  ASSERT_TRUE(DumpFlightOnSignal(SIGUSR2, folder).ok());
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGUSR2);  // nothing happens
    auto own = NewFlightRecorder({.group = "child", .rank = 0, .global_ranks = {4}});
    own->Begin({.kind = "barrier"});
    if (!DumpFlightOnSignal(SIGUSR2, folder).ok()) _exit(1);
    raise(SIGUSR2);
    _exit(Appears(FileIn(folder), "\"child\"") ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(access(FileIn(folder).c_str(), F_OK), -1);
}

TEST_F(DumpTest, SignalsThatCannotBeCaughtAreRefused) {
  for (int signo : {SIGKILL, SIGSTOP, SIGSEGV, SIGABRT, 0, -1, 1000}) {
    EXPECT_EQ(DumpFlightOnSignal(signo, "x").code(), absl::StatusCode::kInvalidArgument) << signo;
  }
  EXPECT_EQ(DumpFlightOnSignal(SIGUSR2, "").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace leafpack
