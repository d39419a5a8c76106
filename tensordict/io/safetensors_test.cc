#include "tensordict/io/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

// What the safetensors package for Python writes for the tree of Theirs().
constexpr char kTheirs[] =
    "48010000000000007b225f5f6d657461646174615f5f223a7b22666f726d6174223a227074227d2c"
    "226e223a7b226474797065223a22493634222c227368617065223a5b5d2c22646174615f6f666673"
    "657473223a5b302c385d7d2c226d6f64656c2e77223a7b226474797065223a22463332222c227368"
    "617065223a5b322c335d2c22646174615f6f666673657473223a5b382c33325d7d2c227a223a7b22"
    "6474797065223a22463332222c227368617065223a5b322c305d2c22646174615f6f666673657473"
    "223a5b33322c33325d7d2c22c3a95c6e5c22223a7b226474797065223a2242463136222c22736861"
    "7065223a5b335d2c22646174615f6f666673657473223a5b33322c33385d7d2c226d6f64656c2e62"
    "223a7b226474797065223a22424f4f4c222c227368617065223a5b335d2c22646174615f6f666673"
    "657473223a5b33382c34315d7d7d2020f9ffffffffffffff000000000000803f0000004000004040"
    "000080400000a0400000803f0040010001";

std::string TheirBytes() {
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(kTheirs, &bytes));
  return bytes;
}

TensorDict Theirs() {
  const at::Tensor flags = at::ones({3}, at::kBool);
  flags.slice(0, 1, 2).zero_();
  return *TensorDict::Make({{"model", {{"w", Counted({2, 3})}, {"b", flags}}},
                            {"n", at::full({}, -7, at::kLong)},
                            {"\u00e9\n\"", at::arange(3, at::kBFloat16)},
                            {"z", at::zeros({2, 0})}});
}

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/tree.safetensors";
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  std::string Read() {
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  size_t FilesInFolder() {
    const std::filesystem::directory_iterator files(folder_);
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  std::string folder_, path_;
};

TEST_F(SafetensorsTest, ReadsWhatOthersWrote) {
  Write(TheirBytes());
  for (const bool memory_map : {true, false}) {
    LEAFPACK_ASSIGN_OR_FAIL(const TensorDict tree,
                            LoadSafetensors(path_, {.memory_map = memory_map}));
    EXPECT_TRUE(*Equal(tree, Theirs()));
  }
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict flat, LoadSafetensors(path_, {.separator = ""}));
  EXPECT_TRUE(flat.Contains("model.w"));
  EXPECT_EQ(LoadSafetensorsMetadata(path_)->at("format"), "pt");
}

TEST_F(SafetensorsTest, WritesTheVerySameBytes) {
  ASSERT_TRUE(SaveSafetensors(Theirs(), path_, {.metadata = {{"format", "pt"}}}).ok());
  EXPECT_EQ(absl::BytesToHexString(Read()), kTheirs);
  EXPECT_EQ(FilesInFolder(), 1u);
}

TEST_F(SafetensorsTest, RoundTrips) {
  TensorDict tree;
  int i = 0;
  for (const at::ScalarType dtype :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong,
        at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz,
        at::kFloat8_e8m0fnu}) {
    ASSERT_TRUE(tree.Set({"d", i++}, at::ones({3}, at::kFloat).to(dtype)).ok());
  }
  ASSERT_TRUE(tree.Set("turned", Counted({3, 2}).t()).ok());
  ASSERT_TRUE(tree.Set("gaps", Counted({4, 6}).slice(1, 0, 6, 2)).ok());
  ASSERT_TRUE(tree.Set("expanded", at::ones({1}).expand({5})).ok());
  ASSERT_TRUE(tree.Set("grad", at::ones({2}).requires_grad_(true).mul(2)).ok());
  for (const char* key : {"shape", "dtype", "data_offsets", ""}) {
    ASSERT_TRUE(tree.Set(key, Counted({2})).ok());
  }
  ASSERT_TRUE(SaveSafetensors(tree, path_).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict back, LoadSafetensors(path_));
  EXPECT_EQ(back.num_leaves(), tree.num_leaves());
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    NestedKey key = path;
    if (path.back().is_position()) key = {path[0], std::to_string(path[1].position())};
    const absl::StatusOr<at::Tensor> other = back.Get(key);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->scalar_type(), leaf.scalar_type());
    EXPECT_TRUE(other->to(at::kDouble).equal(leaf.detach().to(at::kDouble))) << path;
  });
  ASSERT_TRUE(SaveSafetensors(TensorDict(), path_).ok());
  EXPECT_TRUE(LoadSafetensors(path_)->empty());
}

TEST_F(SafetensorsTest, ALeafIsItsOwn) {
  ASSERT_TRUE(SaveSafetensors(*TensorDict::Make({{"a", Counted({4})}}), path_).ok());
  const std::string before = Read();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict tree, LoadSafetensors(path_));
  tree.Get("a")->fill_(-1);  // reaches no file
  EXPECT_EQ(Read(), before);
  // A new file in place of the old one: the leaf keeps the old values.
  ASSERT_TRUE(SaveSafetensors(*TensorDict::Make({{"a", at::zeros({4})}}), path_).ok());
  std::filesystem::remove(path_);
  EXPECT_EQ(tree.Get("a")->sum().item<double>(), -4);
}

TEST_F(SafetensorsTest, WhatTheFormatLacksIsRefusedBeforeAnythingIsWritten) {
  Write("old");
  const auto refused = [&](const NestedKey& key, TreeValue value, const std::string& text,
                           const SaveSafetensorsOptions& options = {}) {
    TensorDict tree = *TensorDict::Make({{"ok", at::ones({2})}});
    ASSERT_TRUE(SetValue(tree, key, std::move(value)).ok());
    ExpectError(SaveSafetensors(tree, path_, options), text);
    EXPECT_EQ(Read(), "old");
    EXPECT_EQ(FilesInFolder(), 1u);
  };
  refused({"n", "s"}, "text", "n.s: the format has no values that are no tensors");
  refused("u", at::Tensor(), "u: the format has no undefined");
  refused("s", at::sparse_coo_tensor({5}, at::kFloat), "s: the format has only dense");
  refused("c", at::ones({1}, at::kComplexDouble), "c: the format has no complex128");
  refused("m", at::ones({1}).to(at::kMeta), "m: a meta tensor");
  refused("__metadata__", at::ones({1}), "__metadata__: the format keeps this name");
  refused("\xff", at::ones({1}), "not UTF-8");
  refused({"a", "b"}, at::ones({1}), "a.b: without a separator", {.separator = ""});
  TensorDict twice = *TensorDict::Make({{"a", {{"b", at::ones({1})}}}, {"a.b", at::ones({1})}});
  ExpectError(SaveSafetensors(twice, path_), "\"a.b\": two paths become this name");
  ExpectError(SaveSafetensors(twice, path_, {.separator = "/", .metadata = {{"k", "\xff"}}}),
              "metadata k");
  EXPECT_EQ(Read(), "old");
}

TEST_F(SafetensorsTest, FilesThatAreNoGood) {
  ExpectError(LoadSafetensors(path_), path_, absl::StatusCode::kNotFound);
  ExpectError(LoadSafetensors(folder_), "no regular file");
  const std::string good = TheirBytes();
  for (size_t length = 0; length < good.size(); ++length) {  // cut off anywhere
    Write(good.substr(0, length));
    ExpectError(LoadSafetensors(path_), path_);
  }
  Write(good + "x");
  ExpectError(LoadSafetensors(path_), "nothing stands");
  Write(std::string(8, '\xff'));
  ExpectError(LoadSafetensors(path_), "at most 100000000");
  std::string flag = good;
  flag.back() = 2;
  Write(flag);
  ExpectError(LoadSafetensors(path_), "\"model.b\": byte 40 of the values is no bool");
  ExpectError(SaveSafetensors(Theirs(), folder_ + "/no/such/folder"), "cannot be created",
              absl::StatusCode::kNotFound);
  // Names that collide when they are split.
  const at::Tensor x = at::ones({1});
  ASSERT_TRUE(SaveSafetensors(*TensorDict::Make({{"a", x}, {"a.b", x}}), path_).ok());
  ExpectError(LoadSafetensors(path_), "empty separator");
  EXPECT_TRUE(LoadSafetensors(path_, {.separator = ""}).ok());
}

TEST_F(SafetensorsTest, ValuesThatAreNotAlignedAreRead) {
  // An odd header, as old files have.
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )";
  ASSERT_NE(header.size() % 4, 0u);
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  const float values[] = {1.5f, -2.f};
  Write(bytes + header + std::string(reinterpret_cast<const char*>(values), 8));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict tree, LoadSafetensors(path_));
  EXPECT_EQ(tree.Get("a")->sum().item<double>(), -0.5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tree.Get("a")->data_ptr()) % 4, 0u);
}

TEST_F(SafetensorsTest, ProgressAndGivingUp) {
  const TensorDict tree = *TensorDict::Make({{"a", at::ones({5'000'000})}});
  int64_t last = 0;
  int calls = 0;
  const FileProgress watch = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 20'000'000);
    last = done;
    ++calls;
    return true;
  };
  ASSERT_TRUE(SaveSafetensors(tree, path_, {.progress = watch}).ok());
  EXPECT_EQ(last, 20'000'000);
  EXPECT_GT(calls, 2);
  last = 0;
  ASSERT_TRUE(LoadSafetensors(path_, {.memory_map = false, .progress = watch}).ok());
  EXPECT_EQ(last, 20'000'000);
  const std::string before = Read();
  const FileProgress stop = [](int64_t, int64_t) { return false; };
  ExpectError(SaveSafetensors(*Clone(tree), path_, {.progress = stop}), "given up",
              absl::StatusCode::kCancelled);
  EXPECT_EQ(Read(), before);
  EXPECT_EQ(FilesInFolder(), 1u);
  ExpectError(LoadSafetensors(path_, {.progress = stop}), "given up",
              absl::StatusCode::kCancelled);
}

TEST_F(SafetensorsTest, RightsOfTheFile) {
  ASSERT_TRUE(SaveSafetensors(Theirs(), path_).ok());
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  ASSERT_TRUE(SaveSafetensors(Theirs(), path_).ok());
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

}  // namespace
}  // namespace leafpack
