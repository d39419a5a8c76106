#include "tensordict/io/memmap_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack::internal {
namespace {

using testing::HasSubstr;

constexpr char kTree[] = R"("shape": [2], "_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1)";

class MemmapTargetTest : public testing::Test {
 protected:
  MemmapTargetTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    path_ = folder_ + "/tree";
    std::filesystem::create_directories(path_);
  }
  ~MemmapTargetTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& file, const std::string& text = "x") {
    const std::filesystem::path path = path_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void WriteTree(const std::string& folder, const std::string& entries) {
    Write(folder + "meta.json", absl::StrCat("{", entries, entries.empty() ? "" : ", ", kTree, "}"));
  }
  // A tree with what leafpack and tensordict know.
  void WriteAll() {
    const std::string leaf = R"({"device": "cpu", "shape": [2], "dtype": "torch.uint8"})";
    WriteTree("", absl::StrCat(R"("a/b": )", leaf, R"(, "r": )", leaf,
                               R"(, "n": {"type": "TensorDict"}, "l": {"type": "LazyStackedTensorDict"}, )"
                               R"("c": {"type": "Mine"}, "none": )",
                               leaf));
    Write("a%2Fb.memmap");
    Write("r.memmap");
    Write("r.shape.memmap");
    WriteTree("n/", "");
    Write("l/meta.json", R"({"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0})");
    WriteTree("l/0/", "");
    WriteTree("l/1/", "");
    Write("c/meta.json", R"({"_type": "<class '__main__.Mine'>"})");
    Write("c/other.pickle");
    WriteTree("c/_tensordict/", "");
  }
  void ExpectKept(const std::string& text, const std::string& path) {
    const absl::StatusOr<std::string> target = MemmapTarget(path);
    EXPECT_EQ(target.status().code(), absl::StatusCode::kFailedPrecondition) << target.status();
    EXPECT_THAT(target.status().message(), HasSubstr(text));
  }
  void ExpectForeign(const std::string& entry) {
    ExpectKept(absl::StrCat("file ", path_, ": is not replaced, because it has ", entry, ", which is not of a tree"),
               path_);
  }

  std::string folder_, path_;
};

TEST_F(MemmapTargetTest, NothingAnEmptyFolderAndATree) {
  EXPECT_EQ(*MemmapTarget(folder_ + "/none//"), folder_ + "/none");
  EXPECT_EQ(*MemmapTarget("none"), "none");
  EXPECT_EQ(*MemmapTarget(path_ + "/"), path_);
  WriteAll();
  const absl::StatusOr<std::string> target = MemmapTarget(path_);
  EXPECT_TRUE(target.ok()) << target.status();
}

TEST_F(MemmapTargetTest, ForeignEntriesAreKept) {
  Write("sub/precious.txt");
  Write("more");
  ExpectForeign("more");
  for (const char* foreign : {"precious.txt", "n/x", "l/x", "l/0/y.memmap", "c/x", "c/_tensordict/other.pickle",
                              "shape.memmap", "n.memmap", "other.pickle", "l/7/x"}) {
    SCOPED_TRACE(foreign);
    std::filesystem::remove_all(path_);
    WriteAll();
    Write(foreign);
    ExpectForeign(foreign);
    EXPECT_TRUE(std::filesystem::exists(path_ + "/" + foreign));
  }
}

TEST_F(MemmapTargetTest, EntriesOfAnotherKindAreKept) {
  WriteAll();
  std::filesystem::remove(path_ + "/r.memmap");
  std::filesystem::create_symlink("/etc/hostname", path_ + "/r.memmap");
  ExpectForeign("r.memmap");
  std::filesystem::remove(path_ + "/r.memmap");
  std::filesystem::create_directory(path_ + "/r.memmap");
  ExpectForeign("r.memmap");
  std::filesystem::remove(path_ + "/r.memmap");
  std::filesystem::remove_all(path_ + "/n");
  std::filesystem::create_directory_symlink(folder_, path_ + "/n");
  ExpectForeign("n");
  std::filesystem::remove(path_ + "/n");
  Write("n");
  ExpectForeign("n");
}

TEST_F(MemmapTargetTest, AnotherMetaJsonIsForeign) {
  for (const char* text : {"", "{", "[]", "{}", R"({"_type": 3})", R"({"_type": "manifest", "shape": []})",
                           R"({"_type": "<class 'tensordict._td.TensorDict'>"})",
                           R"({"_type": "<class 'tensordict._td.TensorDict'>", "shape": 3})"}) {
    SCOPED_TRACE(text);
    Write("meta.json", text);
    ExpectForeign("meta.json");
  }
}

TEST_F(MemmapTargetTest, LinksAreFollowedAndFilesAreKept) {
  std::filesystem::create_directory_symlink("tree", folder_ + "/link");
  EXPECT_EQ(*MemmapTarget(folder_ + "/link/"), std::filesystem::canonical(path_).string());
  Write("precious");
  ExpectKept("precious", folder_ + "/link");
  std::filesystem::create_symlink("tree/precious", folder_ + "/tofile");
  ExpectKept("/tofile: is there, is no folder", folder_ + "/tofile");
  ExpectKept("/precious: is there, is no folder", path_ + "/precious");
  std::filesystem::create_symlink("nothing", folder_ + "/astray");
  ExpectKept("/astray: is a symbolic link to nothing", folder_ + "/astray");
}

TEST_F(MemmapTargetTest, PathsThatAreNone) {
  for (const std::string& path : {std::string(), std::string("/"), std::string("."), folder_ + "/..",
                                  folder_ + std::string("/x\0y", 4)}) {
    EXPECT_EQ(MemmapTarget(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
}

}  // namespace
}  // namespace leafpack::internal
