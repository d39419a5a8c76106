#include "tensordict/io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack::internal {
namespace {

using testing::HasSubstr;

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~AtomicFileTest() override { std::filesystem::remove_all(folder_); }

  static absl::Status Save(const std::string& path, const std::string& text) {
    absl::StatusOr<AtomicFile> file = AtomicFile::Create(path);
    if (!file.ok()) return file.status();
    if (absl::Status s = file->Write(text); !s.ok()) return s;
    return file->Commit();
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  static void ExpectKept(const absl::Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
  long Entries() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  std::string folder_;
};

TEST_F(AtomicFileTest, TakesThePlaceOfAFileWithItsRights) {
  const std::string path = folder_ + "/f";
  ASSERT_TRUE(Save(path, "old").ok());
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  {
    absl::StatusOr<AtomicFile> given_up = AtomicFile::Create(path);
    ASSERT_TRUE(given_up->Write("new").ok());
  }
  EXPECT_EQ(Read(path), "old");
  ASSERT_TRUE(Save(path, "new").ok());
  EXPECT_EQ(Read(path), "new");
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(Entries(), 1);
}

TEST_F(AtomicFileTest, WhatIsNoRegularFileIsKept) {
  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(folder_ + "/dir");
  std::filesystem::create_symlink("pipe", folder_ + "/link");
  std::filesystem::create_symlink("nothing", folder_ + "/astray");
  for (const char* name : {"/pipe", "/dir", "/link"}) {
    ExpectKept(Save(folder_ + name, "x"), absl::StrCat(name, ": is there, is no regular file"));
  }
  ExpectKept(Save(folder_ + "/astray", "x"), "/astray: is a symbolic link to nothing");
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ + "/pipe"));
  EXPECT_EQ(Entries(), 4);
}

TEST_F(AtomicFileTest, ALinkIsFollowed) {
  std::filesystem::create_directory(folder_ + "/below");
  ASSERT_TRUE(Save(folder_ + "/below/f", "old").ok());
  std::filesystem::create_symlink("below/f", folder_ + "/link");
  ASSERT_TRUE(Save(folder_ + "/link", "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/link"));
  EXPECT_EQ(Read(folder_ + "/below/f"), "new");
  EXPECT_EQ(Entries(), 2);
}

TEST_F(AtomicFileTest, AZeroByteDoesNotCutThePath) {
  ASSERT_TRUE(Save(folder_ + "/f", "old").ok());
  const std::string path = absl::StrCat(folder_, "/f", std::string("\0x", 2));
  const absl::Status status = Save(path, "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("/f\\x00x: a path cannot have a zero byte"));
  EXPECT_EQ(PutFolder(folder_, path, true).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PutFolder(path, folder_, true).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(folder_ + "/f"), "old");
}

// A process id that no process has.
pid_t Dead() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return child;
}

TEST_F(AtomicFileTest, LeftoversOfTheDeadGo) {
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  const auto make = [&](const std::string& name, bool is_folder, bool is_old) {
    const std::string path = folder_ + "/" + name;
    if (is_folder) {
      std::filesystem::create_directories(path + "/n");
      std::ofstream(path + "/n/x.memmap") << "x";
      if (is_old) {
        std::filesystem::last_write_time(path + "/n/x.memmap", old);
        std::filesystem::last_write_time(path + "/n", old);
      }
    } else {
      std::ofstream(path) << "x";
    }
    if (is_old) std::filesystem::last_write_time(path, old);
    return path;
  };
  const pid_t dead = Dead();
  const std::string file = make(absl::StrCat("f.", dead, ".0.tmp"), false, true);
  const std::string folder = make(absl::StrCat("f.", dead, ".1.tmp"), true, true);
  const std::string own = make(absl::StrCat("f.", getpid(), ".999999.tmp"), false, true);
  const std::string locked = make(absl::StrCat("f.", dead, ".2.tmp"), false, true);
  const std::string locked_folder = make(absl::StrCat("f.", dead, ".3.tmp"), true, true);
  const int locks[] = {LockTemporary(locked), LockTemporary(locked_folder)};
  EXPECT_GE(std::min(locks[0], locks[1]), 0);
  EXPECT_EQ(LockTemporary(locked), -1);
  const std::vector<std::string> kept = {
      locked, locked_folder,
      make(absl::StrCat("f.", dead, ".4.tmp"), false, false),  // young
      make(absl::StrCat("f.", getppid(), ".0.tmp"), false, true),  // alive
      make(absl::StrCat("g.", dead, ".0.tmp"), false, true),
      make(absl::StrCat("f.g.", dead, ".0.tmp"), false, true),
      make(absl::StrCat("f.", dead, ".0"), false, true),
      make(absl::StrCat("f.", dead, ".0.tmp.tmp"), false, true),
      make(absl::StrCat("f.", dead, ".tmp"), false, true),
      make(absl::StrCat("f.-", dead, ".0.tmp"), false, true),
      make("f.99999999999999999999.0.tmp", false, true),
      make("f.0.0.tmp", false, true),
  };
  // A folder with something else in it, or something young, is of somebody else.
  const std::string foreign = make(absl::StrCat("f.", dead, ".5.tmp"), true, true);
  const std::string growing = make(absl::StrCat("f.", dead, ".6.tmp"), true, true);
  std::filesystem::create_symlink("x.memmap", foreign + "/n/link.memmap");
  std::ofstream(growing + "/n/x.memmap", std::ios::app) << "y";
  std::filesystem::last_write_time(foreign + "/n", old);
  const std::string notes = make(absl::StrCat("f.", dead, ".7.tmp"), true, true);
  std::ofstream(notes + "/n/notes.txt") << "z";
  std::filesystem::last_write_time(notes + "/n/notes.txt", old);
  std::filesystem::last_write_time(notes + "/n", old);
  RemoveLeftovers(folder_ + "/f", TemporaryKind::kFile);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(own));
  EXPECT_TRUE(std::filesystem::exists(folder));
  RemoveLeftovers(folder_ + "/f", TemporaryKind::kFolder);
  EXPECT_FALSE(std::filesystem::exists(folder));
  for (const std::string& path : kept) EXPECT_TRUE(std::filesystem::exists(path)) << path;
  for (const std::string& path : {foreign, growing, notes}) {
    EXPECT_TRUE(std::filesystem::exists(path + "/n/x.memmap")) << path;
  }
  for (const int lock : locks) close(lock);
  RemoveLeftovers(folder_ + "/f", TemporaryKind::kFile);
  RemoveLeftovers(folder_ + "/f", TemporaryKind::kFolder);
  EXPECT_FALSE(std::filesystem::exists(locked) || std::filesystem::exists(locked_folder));
  RemoveLeftovers(folder_ + "/none/f", TemporaryKind::kFolder);
}

TEST_F(AtomicFileTest, AWriterLocksWhatItWrites) {
  absl::StatusOr<AtomicFile> file = AtomicFile::Create(folder_ + "/f");
  ASSERT_TRUE(file.ok());
  const std::string temporary = std::filesystem::directory_iterator(folder_)->path();
  EXPECT_EQ(LockTemporary(temporary), -1);
  std::filesystem::last_write_time(temporary,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  RemoveLeftovers(folder_ + "/f", TemporaryKind::kFile);
  EXPECT_TRUE(std::filesystem::exists(temporary));
  EXPECT_TRUE(file->Commit().ok());
}

}  // namespace
}  // namespace leafpack::internal
