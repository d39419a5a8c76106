// Groups that meet in a file, beside what dead and living runs left there.
#include "distributed/store/file_meeting.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/store/group_testutil.h"
#include "distributed/store/groups.h"

namespace leafpack {
namespace {

using store_internal::FileMeeting;
using store_internal::MeetingCard;

constexpr absl::Duration kPatience = absl::Seconds(60);

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A folder of its own for each test, which must be empty in the end.
class FileMeetingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/meeting_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/meet";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  std::string folder_, path_;
};

pid_t Fork(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  body();
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

int Wait(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// Waits for a byte that another process writes, and lets one be written.
struct Pipe {
  int ends[2];
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  void Tell() { EXPECT_EQ(write(ends[1], "x", 1), 1); }
  void Hear() {
    char byte;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
  }
};

void ExpectWorks(absl::StatusOr<Group> group, int64_t sum) {
  ASSERT_TRUE(group.ok()) << group.status();
  absl::StatusOr<int64_t> frame = FrameSum(*group, group->rank().value() + 1);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(*frame, sum);
}

// A whole run of two ranks in processes, the one that comes later by a little.
void RunOfTwo(const std::string& path, int late) {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(Fork([&] {
      if (rank == late) absl::SleepFor(absl::Milliseconds(300));
      absl::StatusOr<Group> group = GroupFromFile(path, rank, 2, {.timeout = kPatience});
      ExpectWorks(group, 3);
      ASSERT_TRUE(group.ok());
      EXPECT_EQ(DataSum(*group, 1, 20000).value_or(-1), 2);
      EXPECT_TRUE(group->Shutdown(absl::Seconds(30)).ok());
    }));
  }
  for (pid_t rank : ranks) EXPECT_EQ(Wait(rank), 0);
}

TEST(MeetingCardTest, TextAndBack) {
  MeetingCard card;
  card.token = "abc";
  card.size = 3;
  card.members = {{.rank = 2, .present = true, .groups = 4, .pid = 77, .host = "a host"},
                  {.rank = 0, .present = false, .groups = 1, .pid = 8, .host = "b"}};
  const std::string text = card.ToText();
  for (const char* behind : {"", "rank 9 left over from a longer card\n"}) {
    absl::StatusOr<MeetingCard> read = MeetingCard::Parse(absl::StrCat(text, behind));
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read->ToText(), text);
  }
  // Whatever a killed writer leaves is a card that says nothing, not an error and not a part.
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    absl::StatusOr<MeetingCard> cut = MeetingCard::Parse(text.substr(0, length));
    ASSERT_TRUE(cut.ok()) << length;
    EXPECT_TRUE(cut->members.empty()) << length;
  }
  for (const char* other : {"hello", "leafpack-meeting 2\n", "leafpack"}) {
    EXPECT_EQ(MeetingCard::Parse(other).ok(), std::string(other) == "leafpack") << other;
  }
}

TEST_F(FileMeetingTest, ARunLeavesNothingBehind) {
  for (int late : {0, 1}) {
    RunOfTwo(path_, late);
    EXPECT_EQ(Files(), std::vector<std::string>());
  }
}

TEST_F(FileMeetingTest, AKilledRunIsReplacedAndNotWaitedFor) {
  for (int late : {0, 1}) {
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(Fork([&] {
        absl::StatusOr<Group> group = GroupFromFile(path_, rank, 2, {.timeout = kPatience});
        ExpectWorks(group, 3);
        kill(getpid(), SIGKILL);
      }));
    }
    for (pid_t rank : ranks) EXPECT_EQ(Wait(rank), SIGKILL);
    EXPECT_EQ(Files().size(), 2u);  // what it left behind
    const absl::Time start = absl::Now();
    RunOfTwo(path_, late);
    EXPECT_LT(absl::Now() - start, kPatience / 2);
    EXPECT_EQ(Files(), std::vector<std::string>());
  }
}

TEST_F(FileMeetingTest, ARunThatWasKilledBeforeAllHadComeIsReplaced) {
  const pid_t lonely = Fork([&] {
    absl::StatusOr<Group> group = GroupFromFile(path_, 1, 2);
    ASSERT_TRUE(group.ok()) << group.status();
    kill(getpid(), SIGKILL);
  });
  EXPECT_EQ(Wait(lonely), SIGKILL);
  RunOfTwo(path_, 0);
  EXPECT_EQ(Files(), std::vector<std::string>());
}

TEST_F(FileMeetingTest, ARunWithOneSurvivorIsReplacedToo) {
  Pipe up, end;
  const pid_t survivor = Fork([&] {
    absl::StatusOr<Group> group = GroupFromFile(path_, 1, 2, {.timeout = kPatience});
    ExpectWorks(group, 3);
    up.Tell();
    end.Hear();
    kill(getpid(), SIGKILL);
  });
  const pid_t victim = Fork([&] {
    absl::StatusOr<Group> group = GroupFromFile(path_, 0, 2, {.timeout = kPatience});
    ExpectWorks(group, 3);
    kill(getpid(), SIGKILL);
  });
  EXPECT_EQ(Wait(victim), SIGKILL);
  up.Hear();
  RunOfTwo(path_, 1);  // rank 1 of the old run is alive all the time
  RunOfTwo(path_, 0);
  end.Tell();
  EXPECT_EQ(Wait(survivor), SIGKILL);
  for (const std::string& name : Files()) EXPECT_TRUE(absl::StrContains(name, "meet.")) << name;
  EXPECT_LE(Files().size(), 1u);  // the survivor's values
}

// Its connections tell of its death before the kernel has let its lock on the card go.
TEST_F(FileMeetingTest, SurvivorsOfADyingRankTakeTheFilesAway) {
  for (int run = 0; run < 20; ++run) {
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(Fork([&] {
        absl::StatusOr<Group> group = GroupFromFile(path_, rank, 3, {.timeout = kPatience});
        ExpectWorks(group, 6);
        if (rank == 1) kill(getpid(), SIGKILL);
        EXPECT_FALSE(FrameSum(*group, 1).ok());
        group->Shutdown(absl::Seconds(30)).IgnoreError();
      }));
    }
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(Wait(ranks[rank]), rank == 1 ? SIGKILL : 0);
    ASSERT_EQ(Files(), std::vector<std::string>()) << run;
  }
}

TEST_F(FileMeetingTest, AChildOfADeadRankDoesNotKeepItAlive) {
  Pipe up, end;
  const pid_t rank = Fork([&] {
    absl::StatusOr<Group> group = GroupFromFile(path_, 0, 2);
    ASSERT_TRUE(group.ok());
    Fork([&] { end.Hear(); });
    up.Tell();
    kill(getpid(), SIGKILL);
  });
  up.Hear();
  EXPECT_EQ(Wait(rank), SIGKILL);
  RunOfTwo(path_, 1);
  end.Tell();
}

TEST_F(FileMeetingTest, ALivingRunIsNamed) {
  Pipe up, end;
  const pid_t other = Fork([&] {
    absl::StatusOr<Group> group = GroupFromFile(path_, 0, 2);
    ASSERT_TRUE(group.ok()) << group.status();
    up.Tell();
    end.Hear();
    exit(0);  // with the group alive: the hook at exit takes the files away
  });
  up.Hear();
  const absl::Status status = GroupFromFile(path_, 0, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("process ", other))) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), path_)) << status;
  const absl::Status size = GroupFromFile(path_, 1, 3).status();
  EXPECT_EQ(size.code(), absl::StatusCode::kFailedPrecondition) << size;
  EXPECT_TRUE(absl::StrContains(size.message(), "a run of 2 ranks")) << size;
  end.Tell();
  EXPECT_EQ(Wait(other), 0);
  EXPECT_EQ(Files(), std::vector<std::string>());
}

TEST_F(FileMeetingTest, AnOldRunThatIsJustEndingIsWaitedForALittle) {
  Pipe up;
  const pid_t other = Fork([&] {
    absl::StatusOr<Group> group = GroupFromFile(path_, 0, 1);
    ASSERT_TRUE(group.ok()) << group.status();
    up.Tell();
    absl::SleepFor(absl::Seconds(1));
    kill(getpid(), SIGKILL);
  });
  up.Hear();
  ExpectWorks(GroupFromFile(path_, 0, 1), 1);
  EXPECT_EQ(Wait(other), SIGKILL);
}

TEST_F(FileMeetingTest, AFileOfAnotherKindIsLeftAlone) {
  std::ofstream(path_) << "the user's own work";
  const absl::Status status = GroupFromFile(path_, 0, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), path_)) << status;
  EXPECT_EQ(ReadFile(path_), "the user's own work");
}

TEST_F(FileMeetingTest, SeveralGroupsOverOneFile) {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(Fork([&] {
      const auto make = [&] { return GroupFromFile(path_, rank, 2, {.timeout = kPatience}); };
      absl::StatusOr<Group> first = make(), second = make();
      ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
      EXPECT_EQ(FrameSum(*second, 10).value_or(-1), 20);
      EXPECT_EQ(FrameSum(*first, 1).value_or(-1), 2);
      // The ranks let go and come back at times of their own: the run goes on as long as one is in.
      if (rank == 0) {
        first = absl::CancelledError("gone");
        absl::StatusOr<Group> third = make();
        ASSERT_TRUE(third.ok());
        second = absl::CancelledError("gone");
        EXPECT_EQ(FrameSum(*third, 100).value_or(-1), 200);
      } else {
        first = second = absl::CancelledError("gone");
        absl::SleepFor(absl::Milliseconds(200));
        absl::StatusOr<Group> third = make();
        ASSERT_TRUE(third.ok());
        EXPECT_EQ(FrameSum(*third, 100).value_or(-1), 200);
      }
    }));
  }
  for (pid_t rank : ranks) EXPECT_EQ(Wait(rank), 0);
}

TEST_F(FileMeetingTest, ALockThatStaysTakenEndsAtTheDeadline) {
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  ASSERT_EQ(fcntl(fd, F_OFD_SETLK, &lock), 0);
  const absl::Status status =
      GroupFromFile(path_, 0, 1, {.timeout = absl::Milliseconds(200)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), path_)) << status;
  close(fd);
  ExpectWorks(GroupFromFile(path_, 0, 1), 1);
}

// Many runs that die at any moment, one after the other, and then one that must work.
TEST_F(FileMeetingTest, RunsThatDieAtAnyMoment) {
  for (int run = 0; run < 20; ++run) {
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(Fork([&] {
        absl::StatusOr<Group> group = GroupFromFile(path_, rank, 3, {.timeout = kPatience});
        if (group.ok()) FrameSum(*group, 1).IgnoreError();
        pause();
      }));
    }
    absl::SleepFor(absl::Milliseconds(run * 3));
    for (pid_t rank : ranks) kill(rank, SIGKILL);
    for (pid_t rank : ranks) EXPECT_EQ(Wait(rank), SIGKILL);
  }
  RunOfTwo(path_, 0);
}

}  // namespace
}  // namespace leafpack
