#include "benchmarks/workload.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

TEST(WorkloadTest, ParsesFiles) {
  const auto workload = ParseWorkload(
      R"({"name": "w", "leaves": [
{"key": "a.b", "shape": [2, 3], "dtype": "float32"},
{"key": "a.n", "shape": [], "dtype": "int64"}]})");
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ(workload->name, "w");
  ASSERT_EQ(workload->leaves.size(), 2u);
  EXPECT_EQ(workload->bytes(), 2 * 3 * 4 + 8);
  const auto tree = workload->MakeTree(2);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->num_leaves(), 2u);
  EXPECT_EQ(tree->Get({"a", "b"})->sizes(), at::IntArrayRef({2, 3}));
}

TEST(WorkloadTest, ErrorsSayWhere) {
  for (const char* text : {"", "{", "[]", R"({"name": 3})", R"({"leaves": [{"shape": [-1]}]})",
                           R"({"leaves": [{"kind": "x"}]})", R"({"name": "a"} x)",
                           R"({"leaves": [{"dtype": "float7"}]})", R"({"name": "a)"}) {
    const absl::Status status = ParseWorkload(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StrContains(status.message(), "workload")) << status;
  }
}

TEST(WorkloadTest, GridAndModels) {
  EXPECT_EQ(GridWorkload("1000x4KiB")->bytes(), 4096000);
  EXPECT_EQ(GridWorkload("1x64B")->leaves.size(), 1u);
  for (const char* text : {"", "4KiB", "0x4KiB", "1x4", "1x3B", "1x4GiB", "axb"}) {
    EXPECT_FALSE(GridWorkload(text).ok()) << text;
  }
  for (const std::string& name : GridNames()) EXPECT_TRUE(FindWorkload(name).ok()) << name;
  for (const std::string& name : ModelNames()) {
    const auto workload = FindWorkload(name);
    ASSERT_TRUE(workload.ok()) << name << ": " << workload.status();
    EXPECT_EQ(workload->name, name);
    EXPECT_GT(workload->leaves.size(), 100u);
  }
  EXPECT_EQ(FindWorkload("nosuch").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace leafpack
